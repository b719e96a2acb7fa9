"""A Program keeps to what the datapath of its Node supports."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest
from hypothesis import given, settings
from msgspec import structs
from node_states import BOTH, node_states, serving_cluster, small_cluster, small_services
from program_flows import flows_of

from windlass.cli.render import state_of
from windlass.lab.scenarios.scenario_files import ScenarioFiles, find
from windlass.model.families import Family
from windlass.model.nodes import NodeState, OperatingSystem, TrafficMode
from windlass.model.services import Protocol
from windlass.openflow.actions import Action, Clone, Ct, Goto, Move, Nat, Output, Resubmit, Set, ToController, ToGroup
from windlass.openflow.conditions import destination_port, protocol, tunnel_destination
from windlass.openflow.fields import (
    ICMP,
    ICMP_TYPE,
    IN_PORT,
    IN_PORT_PORT,
    IP_PROTO,
    IPV4_DST,
    IPV6_DST,
    IPV6_SRC,
    LOCAL_PORT,
    PKT_MARK,
    TCP,
    TCP_FLAGS,
    UDP,
    Term,
)
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.pipeline.datapaths import DATAPATHS, longest_path, violations
from windlass.pipeline.declarations import Table, goto
from windlass.pipeline.layout import SERVICE_REJECT, UN_SNAT, UPLINK
from windlass.pipeline.priorities import NORMAL
from windlass.program import Owner, OwnerKind, part, program

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FIRST_RESERVED = 0xFFFFFF00  # of port numbers that have a meaning in OpenFlow, such as FLOOD and NORMAL
LINUX, WINDOWS = DATAPATHS[OperatingSystem.LINUX], DATAPATHS[OperatingSystem.WINDOWS]


def flow(*actions: Action, table: int = 0, when: tuple[Term, ...] = ()) -> Flow:
    return Flow(table, 200, when, actions, "a test")


def all_flows(state: NodeState) -> list[Flow]:
    return [flow for _, flow in flows_of(program(state))]


def all_groups(state: NodeState) -> list[Group]:
    return [group for part in program(state).values() for group in part.groups]


@given(node_states(OperatingSystem.WINDOWS))
@settings(max_examples=60)
def test_flows_of_windows_nodes_use_only_features_of_windows(state):
    flows = all_flows(state)
    assert list(violations(WINDOWS, flows, all_groups(state))) == []
    # No flow floods, so the uplink needs no no-flood.
    ports = {action.port for one in flows for action in one.actions if isinstance(action, Output)}
    assert {port for port in ports if port >= FIRST_RESERVED} <= {LOCAL_PORT, IN_PORT_PORT}


@given(node_states())
@settings(max_examples=30)
def test_flows_of_linux_nodes_use_only_features_of_linux(state):
    assert list(violations(LINUX, all_flows(state), all_groups(state))) == []


def windows_states(found: ScenarioFiles) -> list[NodeState]:
    states = (state_of(desired, name) for _, desired in found.read().states() for name in desired.nodes)
    return [state for state in states if state.node.os is OperatingSystem.WINDOWS]


@pytest.mark.parametrize("found", find(SCENARIOS), ids=lambda found: found.name)
def test_the_windows_nodes_of_a_scenario_need_no_more_than_windows_has(found):
    """Policies included."""
    for state in windows_states(found):
        assert list(violations(WINDOWS, all_flows(state), all_groups(state))) == []


def test_windows_does_not_support_a_linux_program_of_both_families():
    found = list(violations(WINDOWS, all_flows(small_cluster(TrafficMode.ENCAP, *BOTH))))
    assert any("Windows datapath, table 20 " in sentence and "a write to ipv6_src" in sentence for sentence in found)


def test_protocols_that_windows_cannot_track_are_not_tracked_there():
    """Its connection tracking does not know SCTP, and reports ICMP errors as invalid."""
    state = small_cluster(TrafficMode.ENCAP, Family.IPV4, os=OperatingSystem.WINDOWS)
    tracked = {flow.match[1:] for flow in all_flows(state) if flow.table == 30 and flow.priority >= NORMAL}
    # Except errors from the wire to the Node: ct reports them as invalid, and they go to the host.
    assert {match for match in tracked if IPV4_DST not in {term.field for term in match}} == {
        (IP_PROTO(TCP),),
        (IP_PROTO(UDP),),
        (IP_PROTO(ICMP), ICMP_TYPE(8)),
        (IP_PROTO(ICMP), ICMP_TYPE(0)),
    }


@pytest.mark.parametrize("os", OperatingSystem)
def test_replies_of_all_translated_protocols_are_looked_up(os):
    """Otherwise a Pod could send to the outside in that protocol, but get no reply."""
    flows = all_flows(small_cluster(TrafficMode.ENCAP, Family.IPV4, os=os))
    assert protocols_in(UPLINK, flows) == {*DATAPATHS[os].transports, ICMP}
    errors = {ICMP} if DATAPATHS[os].icmp_errors else set()
    assert protocols_in(UN_SNAT, flows) == {*DATAPATHS[os].transports, *errors}  # Services have no others


def protocols_in(table: Table, flows: list[Flow]) -> set[int]:
    matches = (flow.match for flow in flows if flow.table == table.number)
    return {term.value for match in matches for term in match if term.field is IP_PROTO}


def test_a_windows_node_serves_no_sctp():
    """SCTP is refused there, as any port that the Service does not have."""
    web, *_ = small_services(Family.IPV4)
    sctp = structs.replace(web, ports=tuple(structs.replace(port, protocol=Protocol.SCTP) for port in web.ports))
    for os, groups in ((OperatingSystem.LINUX, 1), (OperatingSystem.WINDOWS, 0)):
        state = replace(small_cluster(TrafficMode.ENCAP, Family.IPV4, os=os), services={sctp.key: sctp})
        owned = part(state, Owner(OwnerKind.SERVICE, sctp.key))
        assert len(owned.groups) == groups
        assert any(goto(SERVICE_REJECT) in flow.actions for flow in owned.flows)


def test_each_kind_of_violation_is_named():
    wrong = [
        flow(when=(TCP_FLAGS(2),)),
        flow(Set(PKT_MARK(1)), table=1),
        flow(Move(IPV6_SRC.whole, IPV6_DST.whole), table=2),
        flow(Ct(0, table=4), table=3),
        flow(Ct(5, commit=True, sets=(Set(PKT_MARK(1)),)), table=4),
        flow(ToController(b"", meter=1), table=5),
        flow(Clone((Ct(5, commit=True),)), table=6),
        flow(Ct(5, commit=True, nat=Nat(to=IPv4Address("172.16.1.9"), ports=(80, 81))), table=7),
        flow(Ct(5, commit=True, nat=Nat(IPv4Address(0))), table=8),
    ]
    assert list(violations(WINDOWS, wrong)) == [
        "Windows datapath, table 0 priority 200 (a test): it ignores a match on tcp_flags",
        "Windows datapath, table 1 priority 200 (a test): it does not apply a write to pkt_mark",
        "Windows datapath, table 2 priority 200 (a test): it does not apply a write to ipv6_dst",
        "Windows datapath, table 3 priority 200 (a test): zone 0 belongs to the host",
        "Windows datapath, table 4 priority 200 (a test): it does not apply a write to pkt_mark",
        "Windows datapath, table 5 priority 200 (a test): it has no meters",
        "Windows datapath, table 6 priority 200 (a test): it has no clone",
        "Windows datapath, table 7 priority 200 (a test): destination translation needs one address and one port",
        "Windows datapath, table 8 priority 200 (a test): source translation needs an address",
    ]


def test_buckets_are_checked_as_flows_are():
    to_endpoint = Ct(0, table=9, commit=True, nat=Nat(to=IPv4Address("172.16.1.9"), ports=(80, 80)))
    rewrites = Set(IPV6_DST(int(IPv6Address("fd00::1"))))
    group = Group(7, (Bucket(1, (to_endpoint,)), Bucket(2, (rewrites,))), "a test")
    assert list(violations(WINDOWS, [], [group])) == [
        "Windows datapath, group 7: zone 0 belongs to the host",
        "Windows datapath, group 7: it does not apply a write to ipv6_dst",
    ]


def test_too_many_recirculations():
    tcp = protocol(Family.IPV4, TCP)
    stairs = [flow(Ct(n + 1, table=n + 1), table=n, when=tcp) for n in range(7)]
    assert list(violations(LINUX, stairs)) == []
    assert list(violations(WINDOWS, stairs)) == [
        "Windows datapath: a packet could recirculate 7 times, but the maximum is 6"
    ]


def test_flows_must_carry_tunnelled_packets_of_windows():
    """It encapsulates on the bridge interface, whose packets meet the flows again."""
    into_tunnel = flow(Set(tunnel_destination(IPv4Address("192.168.77.2"))), Output(2), table=70)
    from_wire = flow(Output(LOCAL_PORT), table=5, when=destination_port(Family.IPV4, UDP, 6081))
    from_host = flow(Output(1), when=(IN_PORT(LOCAL_PORT),))
    look_up = flow(Ct(5, table=31), table=30, when=protocol(Family.IPV4, TCP))
    missing = "Windows datapath: no flows carry tunnelled packets between host and wire before any ct"
    assert list(violations(WINDOWS, [into_tunnel, from_wire, from_host, look_up])) == []
    assert list(violations(WINDOWS, [into_tunnel, from_wire, look_up])) == [missing]
    assert list(violations(WINDOWS, [into_tunnel, from_host, look_up])) == [missing]
    late = flow(Output(LOCAL_PORT), table=40, when=destination_port(Family.IPV4, UDP, 6081))
    assert list(violations(WINDOWS, [into_tunnel, late, from_host, look_up])) == [missing]
    assert list(violations(LINUX, [into_tunnel, look_up])) == []


def test_the_longest_path_is_that_of_one_packet():
    flows = [
        flow(Goto(1)),
        flow(Ct(1, table=2), table=1),
        flow(Ct(1, table=3), table=1),  # the path of another packet
        flow(ToGroup(7), table=2),
        flow(Ct(1, commit=True), Output(1), table=3),  # a commit without a table does not recirculate
    ]
    bucket = (Ct(2, table=3, commit=True),)
    assert longest_path(flows, {7: [bucket, ()]}) == 3
    assert longest_path(flows, {7: []}) == 2
    assert longest_path([], {}) == 0


def test_a_bucket_may_lead_back_to_its_own_table():
    flows = [flow(ToGroup(7), table=1), flow(Ct(1, table=2), table=1), flow(Output(1), table=2)]
    assert longest_path(flows, {7: [(Resubmit(1),)]}) == 2


@pytest.mark.parametrize("os", OperatingSystem)
@pytest.mark.parametrize("mode", TrafficMode)
def test_no_packet_recirculates_more_than_five_times(mode, os):
    """Each pass costs: on Windows an upcall for each new connection, and the seventh pass drops the packet.

    Five is what the tables would allow: looked up in both zones, balanced, translated twice. What packets of Services
    take is in `test_what_a_connection_costs`.
    """
    state = serving_cluster(mode, Family.IPV4, os=os)
    buckets = {group.identity: [bucket.actions for bucket in group.buckets] for group in all_groups(state)}
    assert longest_path(all_flows(state), buckets) == 5


@pytest.mark.parametrize("mode", TrafficMode)
def test_fewer_recirculations_without_services(mode):
    """A reply may be looked up in both zones; the first packet of a Pod to the outside is committed with SNAT."""
    assert longest_path(all_flows(small_cluster(mode, *BOTH)), {}) == 3
