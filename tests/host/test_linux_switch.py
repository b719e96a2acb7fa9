"""The Linux host beside a real Open vSwitch, whose userspace datapath recreates its interfaces when it starts."""

from __future__ import annotations

from contextlib import aclosing, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from host_machines import ip, requires_namespaces
from host_states import STATE

from switches import requires_ovs
from windlass.host.linux.hosts import LinuxHost
from windlass.host.linux.namespaces import entered, path_of
from windlass.host.plans import HostNames, diff, plan
from windlass.host.protocol import HostError

if TYPE_CHECKING:
    from pathlib import Path

    from switches import Switch

NAMES = HostNames(uplink="eth0")
NODE_IPS = (ip_address("192.0.2.5"), ip_address("2001:db8::5"))
DESIRED = plan(STATE, NAMES, 1500, userspace=True)
NIC = """
link set eth0 address 02:00:00:00:00:05
addr add 192.0.2.5/24 dev eth0
addr add 2001:db8::5/64 dev eth0 nodad
route add default via 192.0.2.1
"""
BRIDGE = (
    "add-br br-int -- set bridge br-int datapath_type=netdev other-config:hwaddr=02:00:00:00:00:05 "
    "-- add-port br-int eth0 -- add-port br-int windlass-gw0 -- set interface windlass-gw0 type=internal "
    "mtu_request=1450 -- set interface br-int mtu_request=1500"
)


@requires_namespaces
@requires_ovs
async def test_after_a_restart_of_the_switch_the_host_is_as_before(switch: Switch, tmp_path: Path):
    await switch.add_nics("eth0")
    with entered(path_of(switch.namespace)):
        ip("-batch", "-", stdin=NIC)
        await switch.vsctl(*BRIDGE.split())
        host = LinuxHost(tmp_path)
        adopted = (await host.uplink.adopt("eth0", "br-int", NODE_IPS)).uplink
        assert await host.apply(diff(await host.installed(NAMES), DESIRED)) == ()

        async with aclosing(host.watch(NAMES)) as changes:
            await anext(changes)
            await switch.stop_vswitchd()
            assert "br-int" in await anext(changes)
            await switch.start_vswitchd()
            async for _ in changes:
                with suppress(HostError):  # until the interfaces are there again
                    assert (await host.uplink.adopt("eth0", "br-int", NODE_IPS)).uplink == adopted
                    await host.apply(diff(await host.installed(NAMES), DESIRED))
                    if not diff(await host.installed(NAMES), DESIRED):
                        break
        await host.close()
        assert "192.0.2.5" in ip("address", "show", "br-int")
        assert "default via 192.0.2.1 dev br-int" in ip("route")
