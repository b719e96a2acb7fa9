"""What we encode is byte for byte what Open vSwitch reports, whether it was sent as bytes or loaded as text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import openflow_strategies as generated
import pytest
from channels import Bridge, Channel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switches import requires_ovs
from windlass.model.families import Family
from windlass.openflow import ofctl
from windlass.openflow.conditions import MULTICAST_MAC, TAGGED, ip
from windlass.openflow.fields import IN_PORT
from windlass.openflow.flows import Flow, Group, Meter
from windlass.openflow.matches import match
from windlass.openflow.wire import flows, groups, matches, meters
from windlass.openflow.wire.flows import EncodedFlow
from windlass.openflow.wire.groups import EncodedGroup

pytestmark = requires_ovs

# One switch serves all examples of a test; each example empties it first.
on_one_switch = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
many_flows = st.lists(generated.flows(), min_size=1, max_size=25)
many_groups = st.lists(generated.groups(), min_size=1, max_size=4)
many_meters = st.lists(generated.meters(), min_size=1, max_size=4, unique_by=lambda meter: meter.identity)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "text"


@on_one_switch
@given(wanted=many_flows)
def test_a_dump_reports_the_flows_that_were_sent(channel: Channel, wanted: list[Flow]) -> None:
    encoded = encoded_flows(wanted)
    prepare_groups(channel)
    channel.accepts(*(flows.add(flow, channel.xid()) for flow in encoded))
    assert_same_flows(channel.flows(), encoded)


def test_a_dump_reports_tags_and_multicast_as_they_were_sent(channel: Channel) -> None:
    """We match only on the presence of a tag: other conditions on it have more than one form."""
    matched = (match(TAGGED), match(IN_PORT(1), TAGGED, ip(Family.IPV6)), match(IN_PORT(1), MULTICAST_MAC))
    encoded = encoded_flows([Flow(0, 1, found, (), "") for found in matched])
    channel.empty()
    channel.accepts(*(flows.add(flow, channel.xid()) for flow in encoded))
    assert_same_flows(channel.flows(), encoded)


@on_one_switch
@given(wanted=many_flows)
def test_a_dump_reports_the_flows_whose_text_was_loaded(
    bridge: Bridge, channel: Channel, file: Path, wanted: list[Flow]
) -> None:
    by_key = {flows.encode(flow).key: flow for flow in wanted}
    prepare_groups(channel)
    file.write_text("".join(f"cookie={flows.encode(f).cookie:#x},{ofctl.flow_text(f)}\n" for f in by_key.values()))
    bridge.ofctl("add-flows", str(file))
    assert_same_flows(channel.flows(), encoded_flows(by_key.values()))


@on_one_switch
@given(wanted=many_flows)
def test_deleting_by_key_deletes_that_flow(channel: Channel, wanted: list[Flow]) -> None:
    encoded = encoded_flows(wanted)
    prepare_groups(channel)
    channel.accepts(*(flows.add(flow, channel.xid()) for flow in encoded))
    gone = set(list(encoded)[::2])
    channel.accepts(*(flows.delete(flow, channel.xid()) for flow in gone))
    assert_same_flows(channel.flows(), encoded - gone)


@on_one_switch
@given(wanted=many_groups)
def test_a_dump_reports_the_groups_that_were_sent(channel: Channel, wanted: list[Group]) -> None:
    encoded = encoded_groups(wanted)
    channel.empty()
    channel.accepts(*(groups.add(group, channel.xid()) for group in encoded))
    assert channel.groups() == encoded


@on_one_switch
@given(wanted=many_groups)
def test_a_dump_reports_the_groups_whose_text_was_loaded(
    bridge: Bridge, channel: Channel, file: Path, wanted: list[Group]
) -> None:
    by_identity = {group.identity: group for group in wanted}
    channel.empty()
    file.write_text("".join(f"{ofctl.group_text(group)}\n" for group in by_identity.values()))
    bridge.ofctl("add-groups", str(file))
    assert channel.groups() == encoded_groups(by_identity.values())


@given(flow=generated.flows())
def test_a_match_survives_the_wire(flow: Flow) -> None:
    assert matches.decode(matches.encode(flow.match)) == flow.match


@on_one_switch
@given(wanted=many_meters)
def test_a_dump_reports_the_meters_that_were_sent_or_whose_text_was_loaded(
    bridge: Bridge, channel: Channel, wanted: list[Meter]
) -> None:
    encoded = {meters.encode(meter) for meter in wanted}
    channel.empty()
    channel.accepts(*(meters.add(meter, channel.xid()) for meter in encoded))
    assert channel.meters() == encoded
    channel.accepts(*(meters.modify(meter, channel.xid()) for meter in encoded))
    assert channel.meters() == encoded
    channel.accepts(*(meters.delete(meter, channel.xid()) for meter in encoded))
    assert channel.meters() == set()
    for meter in wanted:
        bridge.ofctl("add-meter", ofctl.meter_text(meter))
    assert channel.meters() == encoded


def encoded_flows(wanted: Iterable[Flow]) -> set[EncodedFlow]:
    """A switch holds one flow for each key: the last."""
    return set({flow.key: flow for flow in map(flows.encode, wanted)}.values())


def encoded_groups(wanted: Iterable[Group]) -> set[EncodedGroup]:
    return set({group.identity: group for group in map(groups.encode, wanted)}.values())


def prepare_groups(channel: Channel) -> None:
    channel.empty()
    for identity in generated.GROUPS:
        channel.accepts(groups.add(groups.encode(Group(identity, (), "flows lead to it")), channel.xid()))


def assert_same_flows(reported: set[EncodedFlow], sent: set[EncodedFlow]) -> None:
    """With both sides in hexadecimal, so that a difference is readable."""
    assert sorted(map(_readable, reported)) == sorted(map(_readable, sent))


def _readable(flow: EncodedFlow) -> tuple[int, int, str, str, int]:
    return flow.table, flow.priority, flow.match.hex(), flow.instructions.hex(" ", 4), flow.cookie
