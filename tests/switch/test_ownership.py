"""Which owner requests which flow: properties of ownership, without a switch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counted_lines import lines_run
from windlass.openflow.actions import Output, ToGroup
from windlass.openflow.fields import reg
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.openflow.wire import flows, groups
from windlass.openflow.wire.errors import parse_error
from windlass.program import NOTHING, Owner, OwnerKind, Part, Program
from windlass.switch import retirement
from windlass.switch.changes import AddFlow, DeleteGroup, ModifyGroup, SwitchContents, SwitchStep
from windlass.switch.deliveries import DeliveryResult, RefusedItem
from windlass.switch.ownership import FlowOwnership
from windlass.switch.retirement import GroupRetirement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WEB, DNS = (Owner(OwnerKind.POD, name) for name in ("web", "dns"))


def flow(value: int, port: int = 1) -> Flow:
    return Flow(0, 100, match(reg(0)(value)), (Output(port),), "")


def service(number: int, *endpoints: int) -> Part:
    buckets = tuple(Bucket(port, (Output(port),)) for port in endpoints)
    return Part((Flow(1, 100, match(reg(1)(number)), (ToGroup(number),), ""),), (Group(number, buckets, ""),))


def contents(parts: Iterable[Part]) -> SwitchContents:
    """What a switch holds if these are requested in this order."""
    held = SwitchContents()
    for part in parts:
        held.groups.update({group.identity: groups.encode(group) for group in part.groups})
        held.flows.update({encoded.key: encoded for encoded in map(flows.encode, part.flows)})
    return held


def take(ownership: FlowOwnership, steps: Iterable[SwitchStep]) -> None:
    """The switch accepts all steps."""
    ownership.record(DeliveryResult(list(steps), []))


def installed(program: Program, held: SwitchContents | None = None) -> FlowOwnership:
    ownership = FlowOwnership(program)
    take(ownership, ownership.restart(held or SwitchContents()))
    return ownership


# Few owners, flows and groups, so that owners often request the same with different contents.
owners = st.sampled_from([Owner(OwnerKind.POD, name) for name in "abc"])
parts = st.builds(
    lambda ports, endpoints: Part(
        (
            *(flow(value, port) for value, port in ports.items()),
            *(served for number, port in endpoints.items() for served in service(number, port).flows),
        ),
        tuple(group for number, port in endpoints.items() for group in service(number, port).groups),
    ),
    st.dictionaries(st.integers(0, 3), st.integers(1, 2)),
    st.dictionaries(st.integers(1, 2), st.integers(1, 2)),
)
programs = st.dictionaries(owners, parts)


@given(programs, st.lists(st.dictionaries(owners, parts | st.just(NOTHING))))
def test_the_switch_always_holds_what_the_last_requester_of_each_flow_asked_for(program, changes):
    ownership = installed(program)
    requested = dict(program)
    for change in changes:
        take(ownership, ownership.adopt(change))
        for owner, part in change.items():
            requested.pop(owner, None)  # a new request is the last one
            if part != NOTHING:
                requested[owner] = part
        assert ownership.installed == contents(requested.values())
        assert ownership.program == requested


@given(programs, programs)
def test_a_restart_gives_the_program_whatever_the_switch_holds(before, after):
    assert installed(after, contents(before.values())).installed == contents(after.values())


@given(programs)
def test_the_same_parts_again_take_no_steps_where_owners_do_not_overlap(program):
    alone = dict(list(program.items())[:1])
    assert installed(alone).adopt(alone) == []


@given(programs, programs)
def test_restoring_drift_gives_what_was_installed(program, other):
    ownership = installed(program)
    found = contents(other.values())
    drift = ownership.drift(ownership.installed.copy(), found)
    take(ownership, ownership.restore(drift, found))
    assert ownership.installed == contents(program.values())


def test_our_own_changes_since_the_copy_are_not_drift():
    ownership = installed({WEB: Part((flow(1),))})
    before = ownership.installed.copy()
    take(ownership, ownership.adopt({WEB: Part((flow(1, port=2), flow(2)))}))
    assert ownership.drift(before, before) == set()
    assert ownership.drift(before, SwitchContents()) == set()


def test_a_refused_flow_is_a_failure_of_its_owner_until_the_owner_changes():
    ownership = FlowOwnership({WEB: Part((flow(1),)), DNS: Part((flow(2),))})
    accepted, refused = ownership.restart(SwitchContents())
    ownership.record(DeliveryResult([accepted], [RefusedItem(refused, parse_error(bytes(4)))]))
    assert [(failure.owner, failure.what) for failure in ownership.failures.values()] == [(DNS, flow(2))]
    assert ownership.retry() == [AddFlow(flows.encode(flow(2)))]
    ownership.adopt({DNS: NOTHING})
    assert not ownership.failures


def test_the_owner_of_a_refused_flow_is_found_without_all_other_owners():
    def work(others: int) -> int:
        owners_of = {value: Owner(OwnerKind.POD, str(value)) for value in range(others)}
        ownership = installed({owner: Part((flow(value),)) for value, owner in owners_of.items()})
        (step,) = ownership.adopt({WEB: Part((flow(others),))})
        result = DeliveryResult([], [RefusedItem(step, parse_error(bytes(4)))])
        return lines_run(lambda: ownership.record(result))

    assert work(1000) < 1.1 * work(10)


def test_an_empty_switch_gets_pods_last_also_after_other_owners_have_changed():
    peer, pod = Owner(OwnerKind.POLICY_PEER, "10.0.0.0/8"), Owner(OwnerKind.POD, "web")
    ownership = installed({peer: Part((flow(1),)), pod: Part((flow(2),))})
    take(ownership, ownership.adopt({peer: Part((flow(3),))}))
    steps = list(ownership.restart(SwitchContents()))
    assert steps == [AddFlow(flows.encode(flow(3))), AddFlow(flows.encode(flow(2)))]


def test_a_group_that_is_too_large_keeps_its_former_buckets():
    ownership = installed({WEB: service(1, 1, 2)})
    assert ownership.adopt({WEB: service(1, *range(4000))}) == []
    assert ownership.failures.keys() == {1}
    assert ownership.adopt({WEB: service(1, 3)}) == [ModifyGroup(groups.encode(service(1, 3).groups[0]))]
    assert not ownership.failures


# ---- retirement


class Sender:
    """Stands for the connection: decides and takes steps at once."""

    def __init__(self, ownership: FlowOwnership) -> None:
        self.ownership = ownership
        self.sent: list[SwitchStep] = []

    async def send(self, decide: Callable[[], Sequence[SwitchStep]]) -> None:
        steps = decide()
        self.sent += steps
        take(self.ownership, steps)


@pytest.mark.parametrize("requested_again", [True, False])
async def test_a_group_is_deleted_later_unless_it_is_requested_again(
    monkeypatch: pytest.MonkeyPatch, *, requested_again: bool
):
    monkeypatch.setattr(retirement, "GROUP_STAYS", 0.0)
    ownership = installed({WEB: service(1, 1)})
    sender = Sender(ownership)
    retiring = GroupRetirement(ownership, sender.send)
    group = ownership.installed.groups[1]
    take(ownership, retiring.postpone(ownership.adopt({WEB: NOTHING})))
    assert ownership.installed.groups == {1: group}
    if requested_again:
        take(ownership, retiring.postpone(ownership.adopt({DNS: service(1, 1)})))
    await retiring.settled()
    assert sender.sent == ([] if requested_again else [DeleteGroup(group)])


async def test_groups_that_expire_together_are_rotated_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retirement, "ROTATION_DELAY", 0.0)
    ownership = installed({WEB: service(1, 1, 2, 3), DNS: service(2, 1, 2)})
    sender = Sender(ownership)
    retiring = GroupRetirement(ownership, sender.send)
    before = dict(ownership.installed.groups)
    for group in (1, 2, 1, 99):  # 99 is gone
        retiring.rotate(group)
    await retiring.settled()
    await asyncio.sleep(0)
    assert sorted(step.identity for step in sender.sent) == [1, 2]
    assert all(ownership.installed.groups[number] != before[number] for number in (1, 2))
