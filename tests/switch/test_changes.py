"""The laws of a difference, on a model of a switch that is as strict as Open vSwitch."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from windlass.openflow.actions import Output, ToGroup
from windlass.openflow.fields import reg
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.openflow.wire import flows, groups, messages
from windlass.openflow.wire.flows import EncodedFlow, Key
from windlass.switch.changes import (
    AddFlow,
    AddGroup,
    DeleteFlow,
    DeleteGroup,
    Holding,
    ModifyGroup,
    Step,
    diff,
    message,
)

GROUPS = (1, 2, 3)
LEADS_TO = {flows.encode(Flow(0, 0, (), (ToGroup(group),), "")).instructions: group for group in GROUPS}


@st.composite
def programs(draw) -> tuple[list[Flow], list[Group]]:
    """Few keys and few contents, so that two programs often share some."""
    identities = draw(st.sets(st.sampled_from(GROUPS)))
    actions = [(Output(1),), (Output(2),), *((ToGroup(identity),) for identity in sorted(identities))]
    keys = draw(st.sets(st.tuples(st.integers(0, 1), st.integers(1, 2), st.integers(0, 2))))
    return (
        [
            Flow(table, priority, match(reg(0)(value)), draw(st.sampled_from(actions)), "")
            for table, priority, value in sorted(keys)
        ],
        [Group(identity, (Bucket(0, (Output(draw(st.integers(1, 3))),)),), "") for identity in sorted(identities)],
    )


holdings = programs().map(
    lambda program: Holding(
        {encoded.key: encoded for encoded in map(flows.encode, program[0])},
        {encoded.identity: encoded for encoded in map(groups.encode, program[1])},
    )
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
        held.record(step)
        self.seen.append(set(held.flows))


def leads_to(flow: EncodedFlow) -> int | None:
    return LEADS_TO.get(flow.instructions)


def steps_between(before: Holding, after: Holding) -> list[Step]:
    return list(diff(before, after.flows.values(), after.groups.values()))


@given(holdings, holdings)
def test_applying_the_difference_gives_what_is_desired_whatever_was_installed(installed, desired):
    switch = StrictSwitch(Holding(dict(installed.flows), dict(installed.groups)))
    for step in steps_between(installed, desired):
        switch.take(step)
    assert switch.holding == desired


@given(holdings)
def test_equal_holdings_have_no_difference(holding):
    assert steps_between(holding, holding) == []


@given(holdings, holdings)
def test_a_flow_that_is_there_before_and_after_is_there_all_the_time(installed, desired):
    switch = StrictSwitch(Holding(dict(installed.flows), dict(installed.groups)))
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
    asked: list[EncodedFlow] = []

    def flows_in_order():
        for flow in desired.flows.values():
            asked.append(flow)
            yield flow

    for step in diff(installed, flows_in_order(), desired.groups.values()):
        if isinstance(step, AddFlow):
            assert asked[-1] is step.flow


@given(holdings, st.sets(st.sampled_from([*GROUPS, (0, 1, b""), (1, 2, b"")])))
def test_a_part_of_a_holding_has_these_identities_and_no_others(holding, identities):
    wanted = identities | set(list(holding.flows)[:2])
    part = holding.only(wanted)
    assert part.flows == {key: flow for key, flow in holding.flows.items() if key in wanted}
    assert part.groups == {identity: group for identity, group in holding.groups.items() if identity in wanted}


@given(holdings, holdings, st.integers(1, 0xFFFFFFFF))
def test_each_step_is_one_message_with_its_xid(installed, desired, xid):
    for step in steps_between(installed, desired):
        data = message(step, xid)
        header = messages.parse_header(data)
        assert (header.xid, header.length) == (xid, len(data))
