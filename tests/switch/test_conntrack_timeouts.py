"""Conntrack timeouts by zone in a real switch; ovs-vsctl shows the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from switches import Switch, requires_ovs
from windlass.switch import conntrack_timeouts
from windlass.switch.bridges import ensure_bridge
from windlass.switch.ovsdb import open_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from windlass.switch.ovsdb import Database

from test_bridges import SPEC

pytestmark = requires_ovs

OURS = """\
Zone:65520, Timeout Policies: tcp_close=5 tcp_time_wait=10
Zone:65521, Timeout Policies: tcp_close=5 tcp_time_wait=10
"""


@pytest.fixture
async def db(switch: Switch) -> AsyncIterator[Database]:
    async with open_database(str(switch.database)) as database:
        await ensure_bridge(database, SPEC)
        yield database


async def policies(switch: Switch) -> str:
    return await switch.vsctl("list-zone-tp", "netdev")


async def datapaths(switch: Switch) -> str:
    return await switch.vsctl("get", "open_vswitch", ".", "datapaths")


async def test_timeouts_are_installed_once_and_removed(switch, db):
    assert await conntrack_timeouts.install(db, "netdev")
    assert await policies(switch) == OURS
    number = db.view.done
    assert await conntrack_timeouts.install(db, "netdev")
    assert db.view.done == number, "nothing differed"
    await conntrack_timeouts.remove(db, "netdev")
    assert await datapaths(switch) == "{}\n"
    assert (db.view.datapaths, db.view.zones, db.view.timeout_policies) == ({}, {}, {})


async def test_timeouts_of_the_node_are_added_and_changed(switch, db):
    await conntrack_timeouts.install(db, "netdev", {"tcp_close_wait": 3600})
    assert (await policies(switch)).count("tcp_close_wait=3600") == 2
    await conntrack_timeouts.install(db, "netdev", {"tcp_close_wait": 120})
    assert (await policies(switch)).count("tcp_close_wait=120") == 2


async def test_timeouts_of_other_programs_stay(switch, db):
    datapath = ("--id=@dp", "create", "datapath", "datapath_version=1")
    await switch.vsctl("--", *datapath, "--", "set", "open_vswitch", ".", "datapaths:netdev=@dp")
    await switch.vsctl("add-zone-tp", "netdev", "zone=7", "udp_first=3")
    await switch.vsctl("add-zone-tp", "netdev", "zone=65520", "tcp_close=99")
    assert await conntrack_timeouts.install(db, "netdev")
    assert await policies(switch) == "Zone:7, Timeout Policies: udp_first=3\n" + OURS
    await conntrack_timeouts.remove(db, "netdev")
    assert await policies(switch) == "Zone:7, Timeout Policies: udp_first=3\n"


async def test_a_restarted_switch_applies_the_timeouts(switch, db):
    await conntrack_timeouts.install(db, "netdev")
    assert await has_timeouts(switch)
    await switch.stop_vswitchd()
    await switch.start_vswitchd()
    assert await has_timeouts(switch)


async def has_timeouts(switch: Switch) -> bool:
    """Whether a committed connection gets a timeout policy."""
    await switch.ofctl("add-flow", str(switch.management("br-int")), "ip actions=ct(commit,zone=65521)")
    said = await switch.appctl("ovs-vswitchd", "ofproto/trace", "br-int", "in_port=LOCAL,tcp")
    return "timeout=" in said.partition("Datapath actions:")[2]


async def test_a_datapath_without_support_keeps_its_own_timeouts(switch, db):
    """A datapath without a bridge of its type reports no capabilities."""
    assert not await conntrack_timeouts.install(db, "system")
    assert await switch.vsctl("list-zone-tp", "system") == ""
