"""A Program in a real switch: synced, changed, tampered with, restarted. `ovs-ofctl` shows what the switch holds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from installed_programs import Bridge, flow, installed, service

from switches import Switch, requires_ovs, running_switch
from windlass.openflow.actions import Output, Resubmit, ToController, ToGroup
from windlass.openflow.fields import ETH_TYPE, LOCAL_PORT, TCP_DST, reg
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.openflow.wire import flows as wire
from windlass.openflow.wire.monitors import FlowUpdate
from windlass.openflow.wire.packets import PacketIn
from windlass.program import NOTHING, Owner, OwnerKind, Part
from windlass.switch import retirement
from windlass.switch.connection import connected
from windlass.switch.programs import InstalledProgram

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from windlass.openflow.wire.flows import Key
    from windlass.switch.connection import OpenFlowConnection

pytestmark = [requires_ovs, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(30)]

WEB, DNS, API = (Owner(OwnerKind.POD, name) for name in ("web", "dns", "api"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Switch]:
    """One switch for all tests that do not break it; each has a bridge of its own."""
    async with running_switch(tmp_path_factory.mktemp("ovs")) as switch:
        yield switch


@pytest.fixture(autouse=True)
def groups_are_deleted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retirement, "GROUP_STAYS", 0.0)


@pytest_asyncio.fixture(loop_scope="module")
async def bridge(running: Switch) -> Bridge:
    return await Bridge.new(running)


NONSENSE = Flow(0, 100, (TCP_DST(80),), (Output(1),), "a TCP port without TCP")
DANGLING = Flow(0, 100, match(reg(0)(99)), (ToGroup(77),), "its group does not exist")


# ---- sync


async def test_the_first_sync_leaves_the_program_and_nothing_else(bridge: Bridge):
    await bridge.ofctl("add-group", "group_id=1,type=all,bucket=output:9")
    await bridge.ofctl("add-group", "group_id=8,type=select,bucket=bucket_id:0,actions=output:9")
    await bridge.ofctl("add-flow", "table=3,ip,nw_dst=10.0.0.1,actions=group:8")
    await bridge.ofctl(
        "add-flow", "table=0,priority=100,reg0=1,actions=drop"
    )  # a flow of the Program with different actions
    program = {WEB: Part((flow(1), flow(2))), DNS: service(1, 1, 2)}
    async with installed(bridge.path, program) as kept:
        await kept.settled()
        assert await bridge.holds(program)
        assert kept.problems == ()
        assert kept.counters.changes_sent == 6  # groups 1 and 8, three flows of the Program, one foreign flow


async def test_a_restart_with_the_same_state_sends_nothing(bridge: Bridge):
    many = {Owner(OwnerKind.POD, f"pod-{number}"): Part((flow(number),)) for number in range(2000)}
    program = {**many, DNS: service(1, 1, 2), API: service(2, 3)}
    async with installed(bridge.path, program) as before:
        assert before.counters.changes_sent == 2004
    async with installed(bridge.path, program) as after:
        assert after.counters.changes_sent == 0
        assert await after.audit() == 0
        assert await bridge.holds(program)


async def test_a_restart_with_a_different_state_sends_the_difference(bridge: Bridge):
    async with installed(bridge.path, {WEB: Part((flow(1), flow(2), flow(3))), DNS: service(1, 1)}):
        pass
    program = {WEB: Part((flow(1), flow(2, port=2), flow(4))), API: service(2, 1)}
    async with installed(bridge.path, program) as after:
        await after.settled()
        assert await bridge.holds(program)
        assert (
            after.counters.changes_sent == 3 + 4
        )  # flows changed, added, deleted; a flow and a group added, both deleted


async def test_the_difference_that_a_restart_sends_becomes_visible_as_a_whole(bridge: Bridge):
    """With one half of a change of policies, denied packets would pass. The switch takes 50 single messages at once."""
    numbers = range(200)
    async with installed(bridge.path, {WEB: Part(tuple(flow(number) for number in numbers))}):
        pass
    async with connected(bridge.path) as watcher:
        await watcher.watch_flows()
        changing = asyncio.create_task(changed_at_once(watcher))
        async with installed(bridge.path, {WEB: Part(tuple(flow(number, port=2) for number in numbers))}):
            assert await changing == {wire.encode(flow(number)).key for number in numbers}


async def changed_at_once(watcher: OpenFlowConnection) -> set[Key]:
    """A flow monitor reports all flows of one bundle at once."""
    return {event.flow.key for event in await watcher.events() if isinstance(event, FlowUpdate)}


# ---- changes


async def test_a_change_sends_only_differences_and_is_installed_when_the_call_returns(bridge: Bridge):
    program = {WEB: Part((flow(1), flow(2))), DNS: service(1, 1, 2)}
    async with installed(bridge.path, program) as kept:
        before = kept.counters.changes_sent
        await kept.apply({WEB: Part((flow(1), flow(2, port=7)))})
        assert kept.counters.changes_sent - before == 1
        await kept.apply({DNS: service(1, 1, 2, 3), API: service(2, 1)})
        assert kept.counters.changes_sent - before == 4
        await kept.apply({DNS: service(1, 1, 2, 3)})
        assert kept.counters.changes_sent - before == 4
        assert await bridge.holds({WEB: Part((flow(1), flow(2, port=7))), DNS: service(1, 1, 2, 3), API: service(2, 1)})
        await kept.apply({DNS: NOTHING, WEB: NOTHING})
        await kept.settled()
        assert await bridge.holds({API: service(2, 1)})
        assert kept.counters.drift_healed == 0


async def test_a_group_stays_for_a_while_after_its_flows_are_deleted(bridge: Bridge, monkeypatch: pytest.MonkeyPatch):
    """The datapath uses cached flows a little longer: without the group it would drop their packets."""
    monkeypatch.setattr(retirement, "GROUP_STAYS", 3600.0)
    async with installed(bridge.path, {DNS: service(1, 1), API: service(2, 1)}) as kept:
        await kept.apply({DNS: NOTHING})
        assert await bridge.holds({API: service(2, 1), DNS: Part(groups=service(1, 1).groups)})
        assert await kept.audit() == 0
        await kept.apply({DNS: service(1, 2)})  # it can be requested again, changed
        assert await bridge.holds({API: service(2, 1), DNS: service(1, 2)})


async def test_a_group_that_is_requested_again_is_not_deleted(bridge: Bridge):
    async with installed(bridge.path, {DNS: service(1, 1)}) as kept:
        await kept.apply({DNS: NOTHING})
        await kept.apply({API: service(1, 1)})
        await kept.settled()
        assert await bridge.holds({API: service(1, 1)})


async def test_a_change_becomes_visible_as_a_whole(bridge: Bridge):
    async with installed(bridge.path, {WEB: Part((flow(1), flow(2)))}) as kept, connected(bridge.path) as watcher:
        await watcher.watch_flows()
        await kept.apply({WEB: Part((flow(1, port=2), flow(3))), DNS: service(1, 1)})
        assert await changed_at_once(watcher) == {
            wire.encode(each).key for each in (flow(1), flow(2), flow(3), *service(1, 1).flows)
        }


async def test_a_flow_that_a_new_owner_requests_stays_when_the_old_owner_goes(bridge: Bridge):
    async with installed(bridge.path, {WEB: Part((flow(1),))}) as kept:
        await kept.apply({API: Part((flow(1),))})
        await kept.apply({WEB: NOTHING})
        assert await bridge.holds({API: Part((flow(1),))})


@pytest.mark.parametrize("first", [True, False])
async def test_a_flow_of_two_owners_stays_until_both_are_gone(bridge: Bridge, *, first: bool):
    """Whichever goes first, and whether they requested it from the start or later."""
    going, staying = (WEB, API) if first else (API, WEB)
    both = {WEB: Part((flow(1), flow(2))), API: Part((flow(1), flow(3)))}
    for begin, later in ((both, {}), ({}, both), ({WEB: both[WEB]}, {API: both[API]})):
        async with installed(bridge.path, begin) as kept:
            await kept.apply(later)
            await kept.apply({going: NOTHING})
            assert await bridge.holds({staying: both[staying]})
            await kept.apply({staying: NOTHING})
            assert await bridge.holds({})


async def test_the_last_owner_to_request_a_flow_decides_its_actions(bridge: Bridge):
    async with installed(bridge.path, {WEB: Part((flow(1, port=1),))}) as kept:
        await kept.apply({API: Part((flow(1, port=2),)), DNS: Part((flow(1, port=3), flow(2)))})
        assert await bridge.holds({DNS: Part((flow(1, port=3), flow(2)))})
        await kept.apply({DNS: Part((flow(2),))})
        assert await bridge.holds({DNS: Part((flow(2), flow(1, port=2)))})
        await kept.apply({WEB: Part((flow(1, port=4),))})
        assert await bridge.holds({DNS: Part((flow(2), flow(1, port=4)))})
        await kept.apply({WEB: NOTHING, API: NOTHING})
        assert await bridge.holds({DNS: Part((flow(2),))})


async def test_concurrent_changes_are_all_installed(bridge: Bridge):
    owners = {Owner(OwnerKind.POD, f"pod-{number}"): Part((flow(number),)) for number in range(50)}
    async with installed(bridge.path, {}) as kept:
        await asyncio.gather(*(kept.apply({owner: part}) for owner, part in owners.items()))
        assert await bridge.holds(owners)


# ---- refusals


async def test_a_refused_flow_is_a_problem_and_the_others_are_installed(bridge: Bridge):
    async with installed(bridge.path, {WEB: Part((flow(1), NONSENSE)), DNS: Part((flow(2),))}) as kept:
        assert await bridge.holds({WEB: Part((flow(1),)), DNS: Part((flow(2),))})
        (problem,) = kept.problems
        assert str(problem) == (
            "Pod web: not in the switch, the rest is: table=0,priority=100,tcp_dst=80 actions=output:1: "
            "a condition needs another before it (tcp_dst needs tcp, ip_dst needs ip) (MATCH_BAD_PREREQUISITE)"
        )
        await kept.apply({WEB: Part((flow(1), flow(3)))})
        assert kept.problems == ()


@pytest.mark.parametrize("bad", [NONSENSE, DANGLING], ids=["cannot be read", "cannot be done"])
async def test_a_change_with_a_refused_flow_installs_the_rest(bridge: Bridge, bad: Flow):
    async with installed(bridge.path, {WEB: Part((flow(1),))}) as kept:
        await kept.apply({WEB: Part((flow(1, port=5), bad, flow(2))), DNS: service(1, 1)})
        assert [problem.what for problem in kept.problems] == [bad]
        assert await bridge.holds({WEB: Part((flow(1, port=5), flow(2))), DNS: service(1, 1)})
        await kept.apply({WEB: NOTHING})
        assert kept.problems == ()
        assert await bridge.holds({DNS: service(1, 1)})


async def test_an_audit_retries_refused_flows(bridge: Bridge):
    async with installed(bridge.path, {WEB: Part((DANGLING,))}) as kept:
        assert [problem.owner for problem in kept.problems] == [WEB]
        group = Group(77, (Bucket(0, (Output(1),)),), "late")
        await kept.apply({DNS: Part((), (group,))})
        assert await kept.audit() == 0
        assert kept.problems == ()
        assert await bridge.holds({WEB: Part((DANGLING,)), DNS: Part((), (group,))})


async def test_a_group_that_is_too_large_is_a_problem_and_keeps_its_former_buckets(bridge: Bridge):
    program = {WEB: service(1, 1, 2)}
    async with installed(bridge.path, program) as kept:
        await kept.apply({WEB: service(1, *range(2000))})
        assert ["Spread them over several groups" in str(problem) for problem in kept.problems] == [True]
        assert await bridge.holds(program)
        await kept.apply(program)
        assert kept.problems == ()


# ---- changes by other clients


async def repaired(bridge: Bridge, program: Mapping[Owner, Part], watcher: OpenFlowConnection) -> None:
    """Returns when the bridge holds the Program; compares again after each change, because a repair is a change."""
    while not await bridge.holds(program):
        await watcher.events()


@pytest.mark.parametrize(
    ("command", "argument", "drift"),
    [
        ("add-flow", "table=9,priority=5,ip,actions=normal", 1),
        ("add-flow", "table=0,priority=100,reg0=1,actions=drop", 1),
        ("mod-flows", "table=0,actions=drop", 2),
        ("del-flows", "table=0", 2),
        ("del-flows", "", 3),
        ("del-groups", "", 2),  # with its flow
        ("mod-group", "group_id=1,type=select,bucket=bucket_id:0,actions=output:9", 1),
        ("add-group", "group_id=5,type=select,bucket=bucket_id:0,actions=output:9", 1),
    ],
)
async def test_changes_by_other_clients_are_reverted_at_once(bridge: Bridge, command: str, argument: str, drift: int):
    program = {WEB: Part((flow(1), flow(2))), DNS: service(1, 1, 2)}
    async with connected(bridge.path) as watcher, installed(bridge.path, program) as kept:
        await watcher.watch_flows()
        await bridge.ofctl(command, *filter(None, [argument]))
        await repaired(bridge, program, watcher)
        assert await kept.audit() == 0
        assert kept.counters.drift_healed == drift


async def test_thousands_of_foreign_flows_are_deleted(bridge: Bridge, tmp_path: Path):
    program = {WEB: Part((flow(1),)), DNS: service(1, 1)}
    theirs = tmp_path / "theirs.txt"
    theirs.write_text("".join(f"table=8,reg2={number},actions=drop\n" for number in range(3000)))
    async with connected(bridge.path) as watcher, installed(bridge.path, program) as kept:
        await watcher.watch_flows()
        await bridge.switch.ofctl("--bundle", "add-flows", bridge.path, str(theirs))
        await repaired(bridge, program, watcher)
        assert await kept.audit() == 0
        assert kept.counters.drift_healed == 3000


async def test_an_audit_finds_changes_that_no_monitor_reported(bridge: Bridge):
    """As on a switch without flow monitors."""
    program = {WEB: Part((flow(1), flow(2)))}
    async with installed(bridge.path, program) as kept:
        connection = kept.requests.connection
        assert connection is not None
        await connection.unwatch_flows()
        await bridge.ofctl("add-flow", "table=9,actions=normal")
        await bridge.ofctl("del-flows", "table=0,reg0=1")
        assert await kept.audit() == 2
        assert kept.counters.drift_healed == 2
        assert await bridge.holds(program)


async def test_our_own_changes_are_not_drift(bridge: Bridge):
    async with installed(bridge.path, {}) as kept:
        for number in range(20):
            await kept.apply({WEB: Part((flow(number),)), DNS: service(1, number)})
        assert await kept.audit() == 0
        assert kept.counters.drift_healed == 0


async def test_changes_during_an_audit_are_not_drift(bridge: Bridge):
    many = Part(tuple(flow(number) for number in range(3000)))
    async with installed(bridge.path, {WEB: many}) as kept:
        audits = asyncio.gather(*(kept.audit() for _ in range(5)))
        changes = 0
        while not audits.done():
            changes += 1
            await kept.apply({API: service(2, changes), DNS: Part((flow(5000, port=changes),))})
        assert changes > 1
        assert await audits == [0] * 5
        assert kept.counters.drift_healed == 0
        assert await bridge.holds({WEB: many, API: service(2, changes), DNS: Part((flow(5000, port=changes),))})


# ---- restarts and losses


async def test_a_restarted_switch_gets_the_program_with_changes_made_meanwhile(tmp_path: Path):
    async with running_switch(tmp_path) as switch:
        bridge = await Bridge.new(switch)
        async with installed(bridge.path, {WEB: Part((flow(1),)), DNS: service(1, 1)}) as kept:
            await switch.stop_vswitchd()
            change = asyncio.create_task(kept.apply({WEB: Part((flow(2),)), API: service(2, 1)}))
            await switch.start_vswitchd()
            await change
            assert kept.counters.syncs == 2
            assert await bridge.holds({WEB: Part((flow(2),)), DNS: service(1, 1), API: service(2, 1)})


async def test_a_switch_that_starts_later_gets_the_program(tmp_path: Path):
    async with running_switch(tmp_path) as switch:
        later = Bridge(switch, "later")
        kept = InstalledProgram(later.path, {WEB: Part((flow(1),))})
        keeper = asyncio.create_task(kept.keep())
        change = asyncio.create_task(kept.apply({DNS: service(1, 1)}))
        while "no such socket; start Open vSwitch" not in kept.trouble:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # it gives no signal
        assert not change.done()
        await switch.vsctl("add-br", "later", "--", "set", "bridge", "later", "datapath_type=netdev")
        await change
        assert kept.trouble == ""
        assert await later.holds({WEB: Part((flow(1),)), DNS: service(1, 1)})
        keeper.cancel()
        await asyncio.wait([keeper])


async def test_a_sync_completes_a_change_that_was_cancelled_half_way(bridge: Bridge):
    async with installed(bridge.path, {WEB: Part((flow(1),))}) as kept:
        change = asyncio.create_task(kept.apply({WEB: Part(tuple(flow(number) for number in range(3000)))}))
        await asyncio.sleep(0)  # the change has started
        change.cancel()
        with suppress(asyncio.CancelledError):
            await change
        await kept.apply({DNS: service(1, 1)})
        assert await bridge.holds({WEB: Part(tuple(flow(number) for number in range(3000))), DNS: service(1, 1)})


# ---- events for the agent


async def test_packets_to_the_controller_arrive_as_events(bridge: Bridge):
    came: asyncio.Queue[PacketIn] = asyncio.Queue()
    to_us = Flow(0, 1, match(ETH_TYPE(0x88B5)), (ToController(b"why"),), "to the controller")

    def on_packet(event: object) -> None:
        if isinstance(event, PacketIn):
            came.put_nowait(event)

    async with installed(bridge.path, {WEB: Part((to_us,))}, on_packet=on_packet) as kept:
        packet = bytes.fromhex("ffffffffffff 020000000001 88b5") + bytes(50)
        await kept.requests.packet_out(packet, LOCAL_PORT, (Resubmit(0),))
        assert (await came.get()).userdata == b"why"
