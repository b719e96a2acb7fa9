"""The OpenFlow connection, against a real ovs-vswitchd, and against peers that misbehave."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from platforms import not_on_windows
from switches import Switch, requires_ovs, running_switch
from windlass.openflow.actions import Output, Resubmit, Set, ToController, ToGroup
from windlass.openflow.fields import ETH_TYPE, LOCAL_PORT, TCP_DST, reg
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.openflow.wire import flows, groups, messages
from windlass.openflow.wire.messages import Type
from windlass.openflow.wire.monitors import FlowUpdate
from windlass.openflow.wire.packets import PacketIn
from windlass.switch.connection import connected
from windlass.switch.message_streams import ConnectionLostError
from windlass.switch.streams import SwitchUnreachableError
from windlass.switch.switch_events import GroupsChanged, UnclaimedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from windlass.openflow.wire.flows import EncodedFlow
    from windlass.switch.connection import OpenFlowConnection
    from windlass.switch.switch_events import SwitchEvent

# One switch for all tests that do not break it; each has a bridge of its own.
shared_loop = pytest.mark.asyncio(loop_scope="module")
_names = (f"br{number}" for number in itertools.count())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Switch]:
    async with running_switch(tmp_path_factory.mktemp("ovs")) as switch:
        yield switch


async def new_bridge(switch: Switch, *settings: str) -> str:
    """The path of its management socket."""
    name = next(_names)
    await switch.vsctl(
        "add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure", *settings
    )
    return str(switch.management(name))


@pytest_asyncio.fixture(loop_scope="module")
async def path(running: Switch) -> str:
    return await new_bridge(running)


def flow(value: int, *, table: int = 0, port: int = 1) -> EncodedFlow:
    return flows.encode(Flow(table, 100, match(reg(0)(value)), (Output(port),), ""))


NONSENSE = flows.encode(Flow(0, 100, (TCP_DST(80),), (Output(1),), ""))  # a TCP port without TCP
DANGLING = flows.encode(Flow(0, 100, (reg(0)(99),), (ToGroup(77),), ""))  # its group does not exist


async def held(connection: OpenFlowConnection) -> set[EncodedFlow]:
    return {each async for body in connection.dump(flows.dump_request) for each in flows.dumped(body)}


async def processed(connection: OpenFlowConnection) -> None:
    """Returns when the switch has processed everything that was sent before."""
    await connection.deliver((), flows.add)


async def reported(connection: OpenFlowConnection, *kinds: type[SwitchEvent]) -> list[SwitchEvent]:
    """The next events of these kinds; a new bridge also reports its own port."""
    while True:
        if events := [event for event in await connection.events() if isinstance(event, kinds)]:
            return events


# ---- deliveries


@requires_ovs
@shared_loop
async def test_delivered_flows_are_in_the_switch_when_the_call_returns(path: str):
    async with connected(path) as connection:
        outcome = await connection.deliver([flow(1), flow(2)], flows.add)
        assert (outcome.accepted, outcome.refused) == ([flow(1), flow(2)], [])
        assert await held(connection) == {flow(1), flow(2)}


@requires_ovs
@shared_loop
async def test_an_error_names_the_flow_that_caused_it_and_the_others_are_installed(path: str):
    async with connected(path) as connection:
        outcome = await connection.deliver([flow(1), NONSENSE, flow(2), DANGLING], flows.add)
        assert outcome.accepted == [flow(1), flow(2)]
        assert [refused.what for refused in outcome.refused] == [NONSENSE, DANGLING]
        assert "tcp_dst needs tcp" in str(outcome.refused[0].error)
        assert "a group that does not exist" in str(outcome.refused[1].error)
        assert await held(connection) == {flow(1), flow(2)}


@requires_ovs
@shared_loop
async def test_a_commit_is_all_or_nothing(path: str):
    async with connected(path) as connection:
        assert await connection.commit([flow(1), DANGLING], flows.add) is None
        assert await held(connection) == set()
        outcome = await connection.commit([flow(1), flow(2)], flows.add)
        assert outcome is not None
        assert outcome.accepted == [flow(1), flow(2)]
        assert await held(connection) == {flow(1), flow(2)}


@requires_ovs
@shared_loop
async def test_a_commit_reports_messages_that_the_switch_cannot_parse_and_leaves_them_out(path: str):
    async with connected(path) as connection:
        outcome = await connection.commit([flow(1), NONSENSE, flow(2)], flows.add)
        assert outcome is not None
        assert outcome.accepted == [flow(1), flow(2)]
        assert [refused.what for refused in outcome.refused] == [NONSENSE]
        assert await held(connection) == {flow(1), flow(2)}


@requires_ovs
@shared_loop
async def test_concurrent_deliveries_get_their_own_errors(path: str):
    async with connected(path) as connection:
        outcomes = await asyncio.gather(
            connection.deliver([flow(1), NONSENSE], flows.add),
            connection.commit([flow(2), flow(3)], flows.add),
            connection.deliver([DANGLING, flow(4)], flows.add),
        )
        assert [[refused.what for refused in outcome.refused] for outcome in outcomes if outcome] == [
            [NONSENSE],
            [],
            [DANGLING],
        ]
        assert await held(connection) == {flow(1), flow(2), flow(3), flow(4)}


@requires_ovs
@shared_loop
async def test_thousands_of_messages_in_both_directions(path: str):
    """Megabytes, so that every buffer on the way is full at times and messages arrive in pieces."""
    everything = [flow(number) for number in range(20_000)]
    async with connected(path) as connection:
        outcome = await connection.deliver(everything, flows.add)
        assert len(outcome.accepted) == len(everything)
        assert await held(connection) == set(everything)
        refused = await connection.deliver([NONSENSE] * 5_000, flows.add)
        assert (len(refused.accepted), len(refused.refused)) == (0, 5_000)


@requires_ovs
@shared_loop
async def test_a_refused_dump_raises_an_error(path: str):
    async with connected(path) as connection:
        with pytest.raises(Exception, match="does not know this kind of request"):
            await anext(
                connection.dump(lambda xid: messages.message(Type.MULTIPART_REQUEST, xid, b"\x77\x77" + bytes(6)))
            )
        await processed(connection)


# ---- events


@requires_ovs
@shared_loop
async def test_flow_changes_by_other_clients_are_reported_and_our_own_are_not(path: str, running: Switch):
    async with connected(path) as connection:
        await connection.watch_flows()
        await connection.deliver([flow(1)], flows.add)
        await connection.commit([flow(2)], flows.add)
        await running.ofctl("add-flow", path, "table=9,priority=5,actions=drop")
        (event,) = await reported(connection, FlowUpdate)
        theirs = flows.encode(Flow(9, 5, (), (), ""))
        assert isinstance(event, FlowUpdate)
        assert not event.removed
        assert event.flow.key == theirs.key
        await running.ofctl("del-flows", path, "table=0")
        assert {(event.removed, event.flow.key) for event in await reported(connection, FlowUpdate)} == {
            (True, flow(1).key),
            (True, flow(2).key),
        }


@requires_ovs
@shared_loop
async def test_no_flow_is_reported_after_the_monitor_is_cancelled(path: str, running: Switch):
    async with connected(path) as connection:
        await connection.watch_flows()
        await connection.unwatch_flows()
        await running.ofctl("add-flow", path, "table=9,actions=drop")
        await running.ofctl("add-group", path, "group_id=1,type=select,bucket=bucket_id:0,actions=drop")
        assert await reported(connection, FlowUpdate, GroupsChanged) == [GroupsChanged()]


@requires_ovs
@shared_loop
async def test_group_changes_by_other_clients_are_reported_and_our_own_are_not(path: str, running: Switch):
    ours = groups.encode(Group(1, (Bucket(0, (Output(1),)),), ""))
    async with connected(path) as connection:
        await connection.deliver([ours], groups.add)
        await connection.commit([ours], groups.modify)
        await running.ofctl("del-groups", path)
        assert await reported(connection, FlowUpdate, GroupsChanged) == [GroupsChanged()]


@requires_ovs
@shared_loop
async def test_a_packet_out_passes_the_tables_and_returns_with_its_userdata(path: str):
    packet = bytes.fromhex("ffffffffffff 020000000001 88b5") + bytes(50)
    to_us = Flow(0, 1, match(ETH_TYPE(0x88B5)), (Set(reg(3)(7)), ToController(b"why")), "")
    async with connected(path) as connection:
        await connection.deliver([flows.encode(to_us)], flows.add)
        await connection.packet_out(packet, LOCAL_PORT, (Resubmit(0),))
        (came,) = await reported(connection, PacketIn)
        assert (came.packet, came.userdata, came.in_port) == (packet, b"why", LOCAL_PORT)
        assert reg(3)(7) in came.metadata


@requires_ovs
@shared_loop
async def test_a_refused_packet_out_is_an_event(path: str):
    async with connected(path) as connection:
        await connection.packet_out(bytes(60), LOCAL_PORT, (ToGroup(77),))
        (unclaimed,) = await reported(connection, UnclaimedError)
        assert "a group that does not exist" in str(unclaimed.error)


# ---- connecting and losing the connection


async def test_a_missing_socket_is_an_error_with_its_path_and_a_hint(tmp_path: Path):
    with pytest.raises(SwitchUnreachableError, match=r"br-int.mgmt: no such socket; start Open vSwitch"):
        async with connected(f"{tmp_path}/br-int.mgmt"):
            pass


@requires_ovs
@shared_loop
async def test_a_bridge_without_openflow_1_5_is_an_error_with_a_hint(running: Switch):
    old = await new_bridge(running, "protocols=OpenFlow10,OpenFlow13")
    with pytest.raises(SwitchUnreachableError, match=r"does not speak OpenFlow 1.5; add it: ovs-vsctl set bridge"):
        async with connected(old):
            pass


@requires_ovs
async def test_a_switch_that_stops_ends_every_wait(switch: Switch):
    path = await new_bridge(switch)
    async with connected(path) as connection, asyncio.timeout(30):
        waiting = asyncio.create_task(connection.events())
        await processed(connection)
        await switch.stop_vswitchd()
        with pytest.raises(ConnectionLostError, match=rf"{re.escape(path)}: the connection was lost"):
            await waiting
        for ask in (lambda: processed(connection), connection.events, lambda: connection.deliver([flow(1)], flows.add)):
            with pytest.raises(ConnectionLostError, match=r"ovs-vswitchd has stopped, or the bridge was deleted"):
                await ask()


@requires_ovs
@not_on_windows("Windows stops no process by a signal")
async def test_a_switch_that_hangs_is_lost(switch: Switch):
    path = await new_bridge(switch)
    pid = int((switch.rundir / "ovs-vswitchd.pid").read_text())
    async with connected(path, probe_interval=0.05) as connection, asyncio.timeout(30):
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConnectionLostError, match=r"has not answered for 0\.05 s"):
                await processed(connection)
        finally:
            os.kill(pid, signal.SIGCONT)


@requires_ovs
@shared_loop
async def test_closing_leaves_no_wait_behind(path: str):
    async with connected(path) as connection:
        waiting = asyncio.create_task(connection.events())
        await processed(connection)
    with pytest.raises(ConnectionLostError, match="it was closed"):
        await waiting
