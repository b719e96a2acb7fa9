"""The bridge and its own ports on a real switch; ovs-vsctl and ovs-ofctl show the result."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

import bridge_ports
from platforms import not_on_windows
from switches import Switch, requires_ovs, run
from windlass.model.nodes import TunnelType
from windlass.switch import ovsdb
from windlass.switch.bridge_differences import bridge_difference
from windlass.switch.bridge_specs import TunnelSpec
from windlass.switch.bridges import BridgePortNumbers, add_uplink, ensure_bridge, remove_uplink, retry_interfaces
from windlass.switch.operations import Mutate, Update
from windlass.switch.ovsdb import SwitchRefusedError, open_database
from windlass.switch.rows import View
from windlass.switch.streams import SwitchUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from windlass.switch.ovsdb import Database

pytestmark = requires_ovs

SPEC = replace(bridge_ports.SPEC, tunnel=TunnelSpec(TunnelType.GENEVE, local_ip=ip_address("10.0.0.1")))


@pytest.fixture
async def db(switch: Switch) -> AsyncIterator[Database]:
    async with open_database(str(switch.database)) as database:
        yield database


async def column(switch: Switch, table: str, name: str, column: str) -> object:
    """As ovs-vsctl reads it; maps as dicts, sets as lists."""
    table_json = json.loads(await switch.vsctl("--format=json", f"--columns={column}", "list", table, name))
    match table_json["data"][0][0]:
        case ["map", pairs]:
            return dict(pairs)
        case ["set", items]:
            return items
        case value:
            return value


async def mac(switch: Switch, interface: str) -> str:
    """As the kernel has it; no kernel has the interfaces of a dummy datapath."""
    if sys.platform == "win32":
        return await column(switch, "Interface", interface, "mac_in_use")
    (link,) = json.loads(await run("ip", "-json", "-n", switch.namespace, "link", "show", interface))
    return link["address"]


async def ports(switch: Switch) -> dict[str, int]:
    """As the switch reports them over OpenFlow."""
    shown = await switch.ofctl("show", str(switch.management("br-int")))
    lines = [line.strip() for line in shown.splitlines() if "): addr:" in line]
    numbers = dict(line.split("):")[0].split("(")[::-1] for line in lines)
    return {name: 65534 if number == "LOCAL" else int(number) for name, number in numbers.items()}


@asynccontextmanager
async def no_transaction(switch: Switch) -> AsyncIterator[None]:
    """No transaction of any client changes the database: each would be appended to its file."""
    file = switch.rundir / "conf.db"
    size = file.stat().st_size
    yield
    assert file.stat().st_size == size


async def test_a_bridge_is_created_in_an_empty_database(switch: Switch, db: Database):
    assert await ensure_bridge(db, SPEC) == BridgePortNumbers(local=65534, gateway=2, tunnel=1)
    assert await ports(switch) == {"br-int": 65534, "windlass-gw0": 2, "windlass-tun0": 1}
    assert await column(switch, "Bridge", "br-int", "datapath_type") == "netdev"
    assert await column(switch, "Bridge", "br-int", "fail_mode") == "secure"
    assert await column(switch, "Bridge", "br-int", "protocols") == ["OpenFlow13", "OpenFlow15"]
    assert await mac(switch, "br-int") == SPEC.hwaddr
    assert await mac(switch, "windlass-gw0") == SPEC.gateway_mac
    assert await column(switch, "Interface", "windlass-gw0", "type") == "internal"
    assert await column(switch, "Interface", "windlass-tun0", "type") == "geneve"
    assert await column(switch, "Interface", "windlass-tun0", "options") == {
        "remote_ip": "flow",
        "key": "flow",
        "local_ip": "10.0.0.1",
    }


async def test_ovs_vswitchd_tries_again_if_the_database_has_anything(db: Database):
    await retry_interfaces(db)
    assert db.view.root is None
    await ensure_bridge(db, SPEC)
    before = db.view.done
    await retry_interfaces(db)
    assert db.view.done > before


async def test_the_tables_of_policy_peers_track_prefixes_of_both_families(switch: Switch, db: Database):
    await ensure_bridge(db, SPEC)
    prefixes = {
        number: db.view.flow_tables[uuid].prefixes for number, uuid in db.view.bridges["br-int"].flow_tables.items()
    }
    assert prefixes == {76: {"ip_dst", "ipv6_dst"}, 91: {"ip_src", "ipv6_src"}}
    await switch.vsctl(
        "--", "--id=@t", "create", "Flow_Table", "flow_limit=9", "--", "set", "Bridge", "br-int", "flow_tables:5=@t"
    )
    await switch.vsctl("clear", "Flow_Table", db.view.bridges["br-int"].flow_tables[76], "prefixes")
    async with open_database(str(switch.database)) as agent:
        await ensure_bridge(agent, SPEC)
        tables = agent.view.bridges["br-int"].flow_tables
        assert tables.keys() == {5, 76, 91}, "what another program set stays"
        assert agent.view.flow_tables[tables[76]].prefixes == {"ip_dst", "ipv6_dst"}


async def test_an_existing_bridge_takes_no_transaction_also_after_an_agent_restart(switch: Switch, db: Database):
    await switch.add_nics("eth0")
    numbers = await ensure_bridge(db, SPEC)
    await add_uplink(db, SPEC)
    async with no_transaction(switch):
        assert await ensure_bridge(db, SPEC) == numbers
        assert await add_uplink(db, SPEC) == 3
        async with open_database(str(switch.database)) as next_agent:
            assert await ensure_bridge(next_agent, SPEC) == numbers
            assert await add_uplink(next_agent, SPEC) == 3


async def test_changes_by_other_clients_are_reverted_and_nothing_else_is_touched(switch: Switch, db: Database):
    await ensure_bridge(db, SPEC)
    before = db.view
    await switch.vsctl("set-fail-mode", "br-int", "standalone", "--", "clear", "Interface", "windlass-gw0", "mac")
    await switch.vsctl("set", "Bridge", "br-int", "other_config:hwaddr=02:00:00:00:00:99", "other_config:theirs=1")
    async with open_database(str(switch.database)) as agent:
        sent = bridge_difference(agent.view, SPEC)
        assert [(type(operation), operation.table) for operation in sent] == [
            (Update, "Bridge"),
            (Mutate, "Bridge"),
            (Update, "Interface"),
        ]
        await ensure_bridge(agent, SPEC)
        assert await column(switch, "Bridge", "br-int", "fail_mode") == "secure"
        assert await mac(switch, "br-int") == SPEC.hwaddr
        assert (await column(switch, "Bridge", "br-int", "other_config"))["theirs"] == "1"
        assert others(agent.view) == others(before)


async def test_a_different_tunnel_type_replaces_only_the_tunnel(switch: Switch, db: Database):
    await ensure_bridge(db, SPEC)
    before = db.view
    vxlan = replace(SPEC, tunnel=TunnelSpec(TunnelType.VXLAN))
    assert await ensure_bridge(db, vxlan) == BridgePortNumbers(local=65534, gateway=2, tunnel=1)
    assert others(db.view, "windlass-tun0") == others(before, "windlass-tun0")
    assert await column(switch, "Interface", "windlass-tun0", "type") == "vxlan"
    assert await column(switch, "Interface", "windlass-tun0", "options") == {"remote_ip": "flow", "key": "flow"}
    assert await ports(switch) == {"br-int": 65534, "windlass-gw0": 2, "windlass-tun0": 1}


async def test_without_encapsulation_there_is_no_tunnel(switch: Switch, db: Database):
    await ensure_bridge(db, SPEC)
    assert await ensure_bridge(db, replace(SPEC, tunnel=None)) == BridgePortNumbers(local=65534, gateway=2, tunnel=None)
    assert await ports(switch) == {"br-int": 65534, "windlass-gw0": 2}


async def test_a_different_gateway_name_replaces_only_the_gateway(switch: Switch, db: Database):
    await ensure_bridge(db, SPEC)
    before = db.view
    assert (await ensure_bridge(db, replace(SPEC, gateway="gw1"))).gateway == 2
    assert others(db.view, "gw1") == others(before, "windlass-gw0")
    assert await ports(switch) == {"br-int": 65534, "gw1": 2, "windlass-tun0": 1}


def others(view: View, *names: str):
    """The rows of the other ports."""
    return {name: row for name, row in view.interfaces.items() if name not in names}


async def test_foreign_ports_stay(switch: Switch, db: Database):
    await switch.add_nics("theirs", "first")
    await switch.vsctl(
        "add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=netdev", "protocols=OpenFlow10"
    )
    await switch.vsctl("add-port", "br-int", "first")  # it gets number 1 without a request
    await switch.vsctl("add-port", "br-int", "theirs", "--", "set", "Interface", "theirs", "ofport_request=7")
    assert await ensure_bridge(db, SPEC) == BridgePortNumbers(local=65534, gateway=2, tunnel=1)
    assert await ensure_bridge(db, replace(SPEC, tunnel=None)) == BridgePortNumbers(local=65534, gateway=2, tunnel=None)
    assert (await ports(switch))["theirs"] == 7
    assert "first" in await ports(switch)
    assert await column(switch, "Bridge", "br-int", "protocols") == ["OpenFlow10", "OpenFlow13", "OpenFlow15"]


# ---- the uplink


async def test_the_uplink_is_added_replaced_and_removed(switch: Switch, db: Database):
    await switch.add_nics("eth0", "eth1")
    await ensure_bridge(db, SPEC)
    assert await add_uplink(db, SPEC) == 3
    assert (await ports(switch))["eth0"] == 3
    before = db.view
    assert await add_uplink(db, replace(SPEC, uplink="eth1")) == 3
    assert others(db.view, "eth1") == others(before, "eth0")
    assert await ports(switch) == {"br-int": 65534, "windlass-gw0": 2, "windlass-tun0": 1, "eth1": 3}
    await remove_uplink(db, SPEC.name)
    assert await ports(switch) == {"br-int": 65534, "windlass-gw0": 2, "windlass-tun0": 1}
    async with no_transaction(switch):
        await remove_uplink(db, SPEC.name)


async def test_ensuring_the_bridge_does_not_touch_the_uplink(switch: Switch, db: Database):
    await switch.add_nics("eth0")
    await ensure_bridge(db, SPEC)
    await add_uplink(db, SPEC)
    await ensure_bridge(db, replace(SPEC, uplink="another", tunnel=None))
    assert (await ports(switch))["eth0"] == 3


@not_on_windows("in a dummy datapath, any name is a NIC")
async def test_a_missing_uplink_is_an_error_and_becomes_a_port_when_it_appears(switch: Switch, db: Database):
    await ensure_bridge(db, SPEC)
    with pytest.raises(SwitchRefusedError, match=r"^br-int: port eth0: .*No such device.*; set `uplink`"):
        await add_uplink(db, SPEC)
    await switch.add_nics("eth0")
    await db.wait_for(lambda view: view.interfaces["eth0"].ofport == 3)
    assert await add_uplink(db, SPEC) == 3


async def test_an_uplink_whose_number_another_port_requests_is_an_error(switch: Switch, db: Database):
    await switch.add_nics("eth0", "theirs")
    await ensure_bridge(db, SPEC)
    await switch.vsctl("add-port", "br-int", "theirs", "--", "set", "Interface", "theirs", "ofport_request=3")
    message = "theirs also requests its number 3; release it: ovs-vsctl clear Interface theirs ofport_request"
    with pytest.raises(SwitchRefusedError, match=f"^br-int: port eth0: {message}"):
        await add_uplink(db, SPEC)


async def test_an_uplink_without_its_bridge_is_an_error(db: Database):
    with pytest.raises(SwitchRefusedError, match=r"^br-int: there is no such bridge"):
        await add_uplink(db, SPEC)


# ---- errors


@not_on_windows("a dummy datapath takes two tunnels of a kind")
async def test_a_tunnel_of_the_same_kind_on_another_bridge_is_an_error(switch: Switch, db: Database):
    await switch.vsctl("add-br", "br1", "--", "set", "Bridge", "br1", "datapath_type=netdev")
    options = ["type=geneve", "options:remote_ip=flow", "options:key=flow", "options:local_ip=10.0.0.1"]
    await switch.vsctl("add-port", "br1", "their-tunnel", "--", "set", "Interface", "their-tunnel", *options)
    with pytest.raises(SwitchRefusedError, match=r"port windlass-tun0: .*File exists.*; .* `tunnelType`"):
        await ensure_bridge(db, SPEC)


async def test_a_gateway_on_another_bridge_is_an_error(switch: Switch, db: Database):
    await switch.vsctl("add-br", "br1", "--", "set", "Bridge", "br1", "datapath_type=netdev")
    internal = ["set", "Interface", "windlass-gw0", "type=internal"]
    await switch.vsctl("add-port", "br1", "windlass-gw0", "--", *internal)
    with pytest.raises(SwitchRefusedError, match=r"windlass-gw0: is a port of bridge br1; .*del-port windlass-gw0"):
        await ensure_bridge(db, SPEC)
    assert "br-int" not in await switch.vsctl("list-br")


@not_on_windows("a dummy datapath has no interfaces of the host")
async def test_a_gateway_whose_name_the_host_uses_is_an_error(switch: Switch, db: Database):
    await switch.add_nics("windlass-gw0")
    with pytest.raises(
        SwitchRefusedError, match=r"^br-int: port windlass-gw0: .*; an interface of this name may exist"
    ):
        await ensure_bridge(db, SPEC)


async def test_a_stopped_switch_is_an_error_and_creates_the_bridge_when_it_starts(
    switch: Switch, db: Database, monkeypatch: pytest.MonkeyPatch
):
    await switch.stop_vswitchd()
    with monkeypatch.context() as impatient:
        impatient.setattr(ovsdb, "PATIENCE", 0.05)
        with pytest.raises(SwitchUnreachableError, match=r"ovs-vswitchd has not carried out a change .* is it running"):
            await ensure_bridge(db, SPEC)
        with pytest.raises(
            SwitchUnreachableError, match=r"ovs-vswitchd has not created port br-int within .* is it running"
        ):
            await ensure_bridge(db, SPEC)
    await switch.start_vswitchd()
    assert await ensure_bridge(db, SPEC) == BridgePortNumbers(local=65534, gateway=2, tunnel=1)


async def test_a_deleted_bridge_is_noticed_and_created_again(switch: Switch, db: Database):
    await ensure_bridge(db, SPEC)
    changes = db.changes(since=db.view)
    await switch.vsctl("del-br", "br-int")
    async for before, after in changes:
        if "br-int" not in after.bridges:
            assert bridge_difference(before, SPEC) == []
            assert bridge_difference(after, SPEC) != []
            break
    assert await ensure_bridge(db, SPEC) == BridgePortNumbers(local=65534, gateway=2, tunnel=1)
    await changes.aclose()
