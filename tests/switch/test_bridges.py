from ovs import Switch, requires_ovs
pytestmark = requires_ovs
async def test_x(switch: Switch):
    await switch.add_nics("a", "b")
    await switch.vsctl("add-br","br0","--","set","bridge","br0","datapath_type=netdev", "--", "add-port", "br0", "a")
    print(await switch.ofctl("show", str(switch.management("br0"))))
    await switch.stop_vswitchd()
    await switch.stop_database()
    await switch.start_database()
    await switch.start_vswitchd()
    print(await switch.vsctl("show"))
    print(await switch.appctl("ovsdb-server", "version"))
    print((switch.rundir/"ovs-vswitchd.log").read_text())
