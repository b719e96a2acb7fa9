"""Properties of a difference, checked on a model of a switch that is as strict as Open vSwitch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from windlass.openflow.actions import Output, ToGroup
from windlass.openflow.fields import reg
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.openflow.wire import flows, groups, messages
from windlass.openflow.wire.flows import EncodedFlow, Key
from windlass.openflow.wire.groups import EncodedGroup
from windlass.switch.changes import (
    AddFlow,
    AddGroup,
    DeleteFlow,
    DeleteGroup,
    ModifyGroup,
    SwitchContents,
    SwitchStep,
    diff,
    differing,
    message,
)

GROUPS = (1, 2, 3)
LEADS_TO = {flows.encode(Flow(0, 0, (), (ToGroup(group),), "")).instructions: group for group in GROUPS}


@cache
def encoded_flow(table: int, value: int, port: int, group: int | None) -> EncodedFlow:
    action = Output(port) if group is None else ToGroup(group)
    return flows.encode(Flow(table, 100, match(reg(0)(value)), (action,), ""))


@cache
def encoded_group(identity: int, port: int) -> EncodedGroup:
    return groups.encode(Group(identity, (Bucket(0, (Output(port),)),), ""))


def contents_of(ports_of_groups: dict[int, int], actions_of_flows: dict[tuple[int, int], int]) -> SwitchContents:
    """A flow whose action is the number of an existing group leads to it; otherwise the action is a port."""
    held = SwitchContents()
    for identity, port in ports_of_groups.items():
        held.groups[identity] = encoded_group(identity, port)
    for (table, value), action in actions_of_flows.items():
        flow = encoded_flow(table, value, action, action if action in ports_of_groups else None)
        held.flows[flow.key] = flow
    return held


# Few identities and few values, so that two examples often share some.
contents = st.builds(
    contents_of,
    st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 2)),
    st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 2)), st.integers(0, 4)),
)


@dataclass
class StrictSwitch:
    """Refuses what Open vSwitch refuses, and deletes flows with the group that they lead to."""

    contents: SwitchContents
    seen: list[set[Key]] = field(default_factory=list)  # the keys of its flows after each step

    def take(self, step: SwitchStep) -> None:
        held = self.contents
        match step:
            case AddFlow(flow):
                assert leads_to(flow) is None or leads_to(flow) in held.groups, "the group is not there yet"
            case DeleteFlow(flow):
                assert flow.key in held.flows
            case AddGroup(group):
                assert group.identity not in held.groups, "the group exists"
            case ModifyGroup(group):
                assert group.identity in held.groups, "no such group"
            case DeleteGroup(group):
                for flow in list(held.flows.values()):
                    if leads_to(flow) == group.identity:
                        del held.flows[flow.key]
        step.take(held)
        self.seen.append(set(held.flows))


def leads_to(flow: EncodedFlow) -> int | None:
    return LEADS_TO.get(flow.instructions)


def steps_between(before: SwitchContents, after: SwitchContents) -> list[SwitchStep]:
    return list(diff(before, after.contents))


@given(contents, contents)
def test_applying_the_difference_gives_the_desired_contents_whatever_was_installed(installed, desired):
    switch = StrictSwitch(installed.copy())
    for step in steps_between(installed, desired):
        switch.take(step)
    assert switch.contents == desired


def test_a_flow_that_several_owners_want_is_added_once_and_not_again():
    flow, held = encoded_flow(1, 1, 1, None), contents_of({}, {(1, 1): 1})
    assert [*held.flows.values()] == [flow]
    assert [*diff(held, [flow, flow])] == []
    assert [*diff(SwitchContents(), [flow, flow])] == [AddFlow(flow)]


@given(contents)
def test_equal_contents_have_no_difference(held):
    assert steps_between(held, held) == []


@given(contents, contents)
def test_a_flow_that_exists_before_and_after_exists_all_the_time(installed, desired):
    switch = StrictSwitch(installed.copy())
    for step in steps_between(installed, desired):
        switch.take(step)
    stays = installed.flows.keys() & desired.flows.keys()
    assert all(stays <= keys for keys in switch.seen)


@given(contents, contents)
def test_unchanged_flows_and_groups_get_no_step(installed, desired):
    touched = {
        step.flow.key if isinstance(step, AddFlow | DeleteFlow) else step.group.identity
        for step in steps_between(installed, desired)
    }
    same_flows = {key for key, flow in desired.flows.items() if installed.flows.get(key) == flow}
    same_groups = {identity for identity, group in desired.groups.items() if installed.groups.get(identity) == group}
    assert not touched & (same_flows | same_groups)


@given(contents, contents)
def test_steps_are_made_only_when_they_are_consumed(installed, desired):
    """So that the switch processes the first while the last are still being encoded."""
    asked: list[EncodedFlow | EncodedGroup] = []

    def in_order():
        for one in desired.contents:
            asked.append(one)
            yield one

    for step in diff(installed, in_order()):
        if isinstance(step, AddFlow):
            assert asked[-1] is step.flow
        elif isinstance(step, AddGroup | ModifyGroup):
            assert asked[-1] is step.group


@given(contents, st.sets(st.sampled_from([*GROUPS, (0, 1, b""), (1, 2, b"")])))
def test_a_part_has_these_identities_and_no_others(held, identities):
    wanted = identities | set(list(held.flows)[:2])
    part = held.only(wanted)
    assert part.flows == {key: flow for key, flow in held.flows.items() if key in wanted}
    assert part.groups == {identity: group for identity, group in held.groups.items() if identity in wanted}


@given(contents, contents)
def test_replacing_what_differs_makes_two_contents_equal(one, other):
    identities = differing(one, other)
    assert all(one.get(identity) != other.get(identity) for identity in identities)
    result = one.copy()
    result.put(identities, other.only(identities))
    assert result == other


@given(contents, contents, st.integers(1, 0xFFFFFFFF))
def test_each_step_is_one_message_with_its_xid(installed, desired, xid):
    for step in steps_between(installed, desired):
        data = message(step, xid)
        header = messages.parse_header(data)
        assert (header.xid, header.length) == (xid, len(data))
