"""Laws that hold for the Program of every Node in every state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from node_states import (
    BOTH,
    attached_pods,
    families,
    local_node,
    local_nodes,
    modes,
    node_states,
    peer,
    peers,
    pod_cidr,
    services,
)
from program_flows import changed_owners, flows_of

from windlass.model.families import Family
from windlass.model.nodes import NodeState, OperatingSystem, TrafficMode
from windlass.openflow.actions import Goto, Output, ToGroup
from windlass.openflow.conditions import MULTICAST_MAC
from windlass.openflow.fields import ETH_DST, IN_PORT, LOCAL_PORT, mac
from windlass.openflow.flows import Flow
from windlass.openflow.matches import ContradictionError, match
from windlass.pipeline.declarations import MISS
from windlass.pipeline.layout import CLASSIFIER, LAYOUT, SESSION_AFFINITY, UPLINK
from windlass.pipeline.packet_marks import FROM_UPLINK
from windlass.program import NOTHING, Owner, OwnerKind, Program, owners, part, program

any_state = st.sampled_from(OperatingSystem).flatmap(node_states)


def flows(state: NodeState) -> list[Flow]:
    return [flow for _, flow in flows_of(program(state))]


# Each owner's part is its own -------------------------------------------------------------------------------------


@given(before=node_states(), data=st.data())
@settings(max_examples=60)
def test_recomputing_changed_owners_equals_recomputing_everything(before, data):
    kept = dict(program(before))
    state = before
    for _ in range(data.draw(st.integers(1, 4))):
        state, allowed = data.draw(changes(earlier := state))
        changed = set(changed_owners(earlier, state))
        assert changed <= allowed, "the work grows with the change"
        for owner in changed:
            kept[owner] = part(state, owner)
        kept = {owner: found for owner, found in kept.items() if found is not NOTHING}
        assert kept == program(state)


@st.composite
def changes(draw: st.DrawFn, state: NodeState) -> tuple[NodeState, set[Owner]]:
    """A later state, and the owners that may have to be recomputed for it."""
    number = draw(st.integers(2, 9))
    match draw(st.sampled_from(["peer", "no peer", "pod", "no pod", "service", "no service", "node"])):
        case "peer":
            changed = draw(peers(number))
            return replace(state, peers={**state.peers, changed.name: changed}), {Owner(OwnerKind.PEER, changed.name)}
        case "no peer":
            name = f"node-{number}"
            left = {other: found for other, found in state.peers.items() if other != name}
            return replace(state, peers=left), {Owner(OwnerKind.PEER, name)}
        case "pod":
            pod = draw(attached_pods(number))
            return replace(state, pods={**state.pods, pod.container_id: pod}), {Owner(OwnerKind.POD, pod.container_id)}
        case "no pod":
            gone = f"c{number}"
            remaining = {other: pod for other, pod in state.pods.items() if other != gone}
            return replace(state, pods=remaining), {Owner(OwnerKind.POD, gone)}
        case "service":
            service = draw(services(number))
            served = {**state.services, service.key: service}
            return replace(state, services=served), {Owner(OwnerKind.SERVICE, service.key)}
        case "no service":
            key = f"default/service-{number}"
            others = {other: service for other, service in state.services.items() if other != key}
            return replace(state, services=others), {Owner(OwnerKind.SERVICE, key)}
        case _:
            # The Node itself is the one object whose change recomputes everything.
            other = replace(state, node=draw(local_nodes()))
            return other, set(owners(other))


@given(any_state)
@settings(max_examples=30)
def test_owners_share_no_group(state):
    """And the flows of an owner use only its own groups."""
    numbers = Counter(group.identity for owned in program(state).values() for group in owned.groups)
    assert [number for number, times in numbers.items() if times > 1] == []
    for owned in program(state).values():
        led_to = {action.group for flow in owned.flows for action in flow.actions if isinstance(action, ToGroup)}
        assert led_to <= {group.identity for group in owned.groups}


@given(any_state)
@settings(max_examples=30)
def test_no_group_is_empty(state):
    """An empty group would drop packets silently; a flow handles a Service without endpoints."""
    assert all(group.buckets for owned in program(state).values() for group in owned.groups)


@given(any_state)
@settings(max_examples=30)
def test_an_unknown_owner_has_no_part(state):
    for kind in OwnerKind:
        assert part(state, Owner(kind, "nobody")) is NOTHING


@given(any_state)
@settings(max_examples=30)
def test_every_flow_is_owned_by_an_object_of_the_state(state):
    known = {state.node.name, *state.peers, *state.pods, *state.services}
    assert {owner.name for owner, _ in flows_of(program(state))} <= known


@given(any_state)
@settings(max_examples=30)
def test_the_same_state_gives_the_same_program(state):
    assert program(state) == program(state)
    assert list(program(state)) == list(owners(state))


# A packet meets one decision --------------------------------------------------------------------------------------


@given(any_state)
@settings(max_examples=60)
def test_no_two_different_flows_have_the_same_key(state):
    """Two owners may have the same flow, as Services that share an external address do."""
    places = Counter((flow.table, flow.priority, flow.match) for flow in set(flows(state)))
    assert [place for place, times in places.items() if times > 1] == []


@given(any_state)
@settings(max_examples=40)
def test_flows_of_one_priority_never_disagree_about_a_packet(state):
    """OpenFlow does not define which of them a switch takes."""
    levels: dict[tuple[int, int], list[Flow]] = {}
    for flow in flows(state):
        levels.setdefault((flow.table, flow.priority), []).append(flow)
    for level in levels.values():
        for one, other in combinations(level, 2):
            assert one.actions == other.actions or not could_both_match(one, other), (one, other)


def could_both_match(one: Flow, other: Flow) -> bool:
    try:
        match(one.match, other.match)
    except ContradictionError:
        return False
    return True


# Flows keep to the declarations (see also test_table_statements) ----------------------------------------------------


@given(any_state)
@settings(max_examples=30)
def test_every_table_has_the_miss_that_it_declares_and_no_other(state):
    """No module writes a miss flow of its own: a flow of that priority, or one that matches everything, is declared."""
    declared = {flow for flow in LAYOUT.miss_flows() if flow.table != SESSION_AFFINITY.number}
    assert {flow for flow in flows(state) if not flow.match or flow.priority == MISS} == declared
    assert {flow.table for flow in declared} == LAYOUT.tables.keys() - {SESSION_AFFINITY.number}


@given(any_state)
@settings(max_examples=30)
def test_every_flow_has_a_reason(state):
    assert [flow for flow in flows(state) if not flow.why.strip()] == []
    assert all(group.why.strip() for owned in program(state).values() for group in owned.groups)


@given(any_state)
@settings(max_examples=30)
def test_a_goto_is_the_last_action(state):
    for flow in flows(state):
        assert not any(isinstance(action, Goto) for action in flow.actions[:-1]), flow


# The host is never cut off ----------------------------------------------------------------------------------------


@given(mode=modes, own=families)
@settings(max_examples=20)
def test_the_host_is_connected_without_pods_and_peers(mode, own):
    assert_host_is_connected(program(NodeState(local_node(mode, *own))))


def test_the_host_is_connected_without_a_pod_network():
    assert_host_is_connected(program(NodeState(local_node(TrafficMode.ENCAP))))


@given(any_state)
@settings(max_examples=30)
def test_the_host_is_connected_in_every_state(state):
    assert_host_is_connected(program(state))


def assert_host_is_connected(whole: Program) -> None:
    """Out by one flow; in by two flows, for the Node's MAC and for multicast, and the miss of Uplink."""
    ways = {(flow.table, flow.match): flow.actions for _, flow in flows_of(whole)}
    assert ways[CLASSIFIER.number, (IN_PORT(LOCAL_PORT),)] == (Output(3),)
    for addressed in (ETH_DST(mac("02:00:0a:b0:19:0b")), MULTICAST_MAC):
        assert ways[CLASSIFIER.number, (IN_PORT(3), addressed)] == (FROM_UPLINK.set(), Goto(UPLINK.number))
    assert ways[UPLINK.number, ()] == (Output(LOCAL_PORT),)


# Peers --------------------------------------------------------------------------------------------------------------


def test_packets_to_a_peer_without_a_common_underlay_are_dropped():
    """Its Pods have IPv6 addresses, its Node has only an IPv4 address and ours only an IPv6 address: no tunnel."""
    stranger = peer(2, 25, Family.IPV4)
    stranger = replace(stranger, pod_cidrs={family: pod_cidr(2, family) for family in BOTH})
    state = NodeState(local_node(TrafficMode.ENCAP, Family.IPV6), {stranger.name: stranger})
    owned = part(state, Owner(OwnerKind.PEER, stranger.name))
    assert {flow.actions for flow in owned.flows} == {()}


@given(node_states())
@settings(max_examples=30)
def test_a_peer_has_a_few_flows_for_each_common_family(state):
    """To its Pods one, another as the Node, and one for replies to its host; from the tunnel for each underlay one from
    its Pods, one from its host and one to this host; one against forged sources.
    """
    for name, found in state.peers.items():
        common = set(found.pod_cidrs) & set(state.node.families)
        assert len(part(state, Owner(OwnerKind.PEER, name)).flows) <= len(common) * (3 + 2 * 3 + 1)
