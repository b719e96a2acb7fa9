"""Conntrack timeouts by zone in a real switch; ovs-vsctl is the judge."""

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


async def test_they_are_set_once_and_taken_back(switch, db):
    assert await conntrack_timeouts.hold(db, "netdev")
    assert await policies(switch) == OURS
    number = db.view.done
    assert await conntrack_timeouts.hold(db, "netdev")
    assert db.view.done == number, "nothing differed"
    await conntrack_timeouts.give_back(db, "netdev")
    assert await datapaths(switch) == "{}\n"
    assert (db.view.datapaths, db.view.zones, db.view.timeout_policies) == ({}, {}, {})


async def test_what_somebody_else_set_stays(switch, db):
    datapath = ("--id=@dp", "create", "datapath", "datapath_version=1")
    await switch.vsctl("--", *datapath, "--", "set", "open_vswitch", ".", "datapaths:netdev=@dp")
    await switch.vsctl("add-zone-tp", "netdev", "zone=7", "udp_first=3")
    await switch.vsctl("add-zone-tp", "netdev", "zone=65520", "tcp_close=99")
    assert await conntrack_timeouts.hold(db, "netdev")
    assert await policies(switch) == "Zone:7, Timeout Policies: udp_first=3\n" + OURS
    await conntrack_timeouts.give_back(db, "netdev")
    assert await policies(switch) == "Zone:7, Timeout Policies: udp_first=3\n"


async def test_a_restarted_switch_has_them(switch, db):
    await conntrack_timeouts.hold(db, "netdev")
    assert await has_timeouts(switch)
    await switch.stop_vswitchd()
    await switch.start_vswitchd()
    assert await has_timeouts(switch)


async def has_timeouts(switch: Switch) -> bool:
    """Does a connection that is committed get a timeout policy?"""
    await switch.ofctl("add-flow", str(switch.management("br-int")), "ip actions=ct(commit,zone=65521)")
    said = await switch.appctl("ovs-vswitchd", "ofproto/trace", "br-int", "in_port=LOCAL,tcp")
    return "timeout=" in said.partition("Datapath actions:")[2]


async def test_a_datapath_without_them_keeps_its_own(switch, db):
    """Without a bridge of its type nothing is known of a datapath."""
    assert not await conntrack_timeouts.hold(db, "system")
    assert await switch.vsctl("list-zone-tp", "system") == ""
