"""The laws of a difference, on a model of a switch that is as strict as Open vSwitch."""

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
    Holding,
    ModifyGroup,
    Step,
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


def holding(ports_of_groups: dict[int, int], actions_of_flows: dict[tuple[int, int], int]) -> Holding:
    """A flow whose action is the number of a group leads to that group, if there is one; else it is a port."""
    held = Holding()
    for identity, port in ports_of_groups.items():
        held.groups[identity] = encoded_group(identity, port)
    for (table, value), action in actions_of_flows.items():
        flow = encoded_flow(table, value, action, action if action in ports_of_groups else None)
        held.flows[flow.key] = flow
    return held


# Few identities and few contents, so that two of them often share some.
holdings = st.builds(
    holding,
    st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 2)),
    st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 2)), st.integers(0, 4)),
)


@dataclass
class StrictSwitch:
    """Refuses what Open vSwitch refuses, and deletes flows with the group that they lead to."""

    holding: Holding
    seen: list[set[Key]] = field(default_factory=list)  # the keys of its flows after each step

    def take(self, step: Step) -> None:
        held = self.holding
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


def steps_between(before: Holding, after: Holding) -> list[Step]:
    return list(diff(before, after.contents))


@given(holdings, holdings)
def test_applying_the_difference_gives_what_is_desired_whatever_was_installed(installed, desired):
    switch = StrictSwitch(installed.copy())
    for step in steps_between(installed, desired):
        switch.take(step)
    assert switch.holding == desired


@given(holdings)
def test_equal_holdings_have_no_difference(holding):
    assert steps_between(holding, holding) == []


@given(holdings, holdings)
def test_a_flow_that_is_there_before_and_after_is_there_all_the_time(installed, desired):
    switch = StrictSwitch(installed.copy())
    for step in steps_between(installed, desired):
        switch.take(step)
    stays = installed.flows.keys() & desired.flows.keys()
    assert all(stays <= keys for keys in switch.seen)


@given(holdings, holdings)
def test_nothing_is_touched_that_stays_as_it_is(installed, desired):
    touched = {
        step.flow.key if isinstance(step, AddFlow | DeleteFlow) else step.group.identity
        for step in steps_between(installed, desired)
    }
    same_flows = {key for key, flow in desired.flows.items() if installed.flows.get(key) == flow}
    same_groups = {identity for identity, group in desired.groups.items() if installed.groups.get(identity) == group}
    assert not touched & (same_flows | same_groups)


@given(holdings, holdings)
def test_steps_are_made_only_when_asked_for(installed, desired):
    """So that the switch takes in the first while the last are still being encoded."""
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


@given(holdings, st.sets(st.sampled_from([*GROUPS, (0, 1, b""), (1, 2, b"")])))
def test_a_part_of_a_holding_has_these_identities_and_no_others(holding, identities):
    wanted = identities | set(list(holding.flows)[:2])
    part = holding.only(wanted)
    assert part.flows == {key: flow for key, flow in holding.flows.items() if key in wanted}
    assert part.groups == {identity: group for identity, group in holding.groups.items() if identity in wanted}


@given(holdings, holdings)
def test_what_differs_is_all_that_must_be_put_to_make_two_holdings_equal(one, other):
    identities = differing(one, other)
    assert all(one.get(identity) != other.get(identity) for identity in identities)
    result = one.copy()
    result.put(identities, other.only(identities))
    assert result == other


@given(holdings, holdings, st.integers(1, 0xFFFFFFFF))
def test_each_step_is_one_message_with_its_xid(installed, desired, xid):
    for step in steps_between(installed, desired):
        data = message(step, xid)
        header = messages.parse_header(data)
        assert (header.xid, header.length) == (xid, len(data))
