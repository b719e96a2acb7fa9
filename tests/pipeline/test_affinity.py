"""Session affinity, packet by packet: which clients keep their endpoint, and what the switch learns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journeys import HOST, WIRE, Journeys
from msgspec import structs
from node_states import node_states, pod_address, with_ports
from packets import Ends
from service_cases import NODE_PORT, POD_1, POD_2, Known, cluster, elsewhere, here, on_cluster_ip, on_node_port

from windlass.model.families import Family
from windlass.model.nodes import NodeState
from windlass.model.services import Endpoint, Frontend
from windlass.openflow.actions import Learn, Resubmit, Set
from windlass.pipeline import affinity
from windlass.pipeline.layout import ENDPOINT_DNAT, SESSION_AFFINITY
from windlass.pipeline.packet_marks import ENDPOINT
from windlass.program import Owner, OwnerKind, part, program


def sticky(at: Known, frontend: Frontend, *endpoints: Endpoint, seconds: int = 10800) -> NodeState:
    return with_ports(cluster(at, frontend, *endpoints), affinity_seconds=seconds)


def test_a_client_stays_with_its_endpoint(at):
    """Even if the group would choose another bucket the next time."""
    net = Journeys(sticky(at, on_cluster_ip(at), here(at.pod_2), elsewhere(at.near_pod)))
    asked = [at.asks(POD_1, at.service, 80, source_port=port) for port in (40000, 40001, 40002)]
    seen = [net.converse(POD_1, one, bucket) for bucket, one in enumerate(asked)]
    assert len({found.endpoint for found in seen}) == 1


def test_two_clients_can_have_different_endpoints(at):
    net = Journeys(sticky(at, on_cluster_ip(at), here(at.pod_2), elsewhere(at.near_pod)))
    one = net.converse(POD_1, at.asks(POD_1, at.service, 80), bucket=0)
    other = net.converse(HOST, at.asks(HOST, at.service, 80), bucket=1)
    assert one.endpoint != other.endpoint


def test_a_client_from_outside_stays_with_its_endpoint(at):
    """The endpoint sees the gateway as its source, as without session affinity (policy Cluster)."""
    net = Journeys(sticky(at, on_node_port(), here(at.pod_1), here(at.pod_2)))
    asked = [at.asks(WIRE, at.node, NODE_PORT, source_port=port) for port in (40000, 40001)]
    seen = [net.converse(WIRE, one, bucket) for bucket, one in enumerate(asked)]
    assert len({found.endpoint for found in seen}) == 1
    assert {found.client for found in seen} == {at.gateway}


def test_policy_local_chooses_among_the_endpoints_of_this_node(at):
    local_only = on_node_port(local_only=True)
    net = Journeys(sticky(at, local_only, elsewhere(at.near_pod), here(at.pod_2)))
    assert net.converse(WIRE, at.asks(WIRE, at.node, NODE_PORT)).place == POD_2


def by_two_ways(at: Known) -> tuple[NodeState, Ends, Ends]:
    """A Service with policy Local at one frontend and Cluster at the other, and a connection to each."""
    state = sticky(at, on_cluster_ip(at, local_only=True), elsewhere(at.near_pod), here(at.pod_2))
    (service,) = state.services.values()
    (port,) = service.ports
    both = structs.replace(port, frontends=(*port.frontends, on_node_port()))
    state = replace(state, services={service.key: structs.replace(service, ports=(both,))})
    return state, at.asks(POD_1, at.service, 80), at.asks(POD_1, at.node, NODE_PORT, source_port=40001)


def test_a_client_keeps_its_endpoint_across_both_policies(at):
    """As with kube-proxy, whose lists of clients belong to an endpoint: also when the policy changes."""
    state, local, anywhere = by_two_ways(at)
    for bucket in range(2):
        net = Journeys(state)
        assert net.converse(POD_1, local, bucket).endpoint == net.converse(POD_1, anywhere, bucket).endpoint


def test_an_endpoint_elsewhere_is_kept_although_policy_local_needs_another(at):
    state, local, anywhere = by_two_ways(at)
    net = Journeys(state)
    far = next(b for b in range(2) if Journeys(state).converse(POD_1, anywhere, b).endpoint[0] == at.near_pod)
    before = net.converse(POD_1, anywhere, far).endpoint
    assert net.converse(POD_1, local).place == POD_2
    again = anywhere._replace(source_port=40002)
    assert net.converse(POD_1, again, 1 - far).endpoint == before


def test_session_affinity_saves_one_pass_through_the_datapath(at):
    """The client's address chooses the endpoint: the hash of the datapath, which needs another pass, is not used."""
    net = Journeys(sticky(at, on_cluster_ip(at), here(at.pod_2), elsewhere(at.near_pod)))
    for port in (40000, 40001):
        (first,) = net.send(POD_1, at.asks(POD_1, at.service, 80, source_port=port)).trips
        assert (first.passes, first.tracked) == (3, 2)


@pytest.mark.parametrize(("seconds", "idle"), [(1, 1), (10800, 10800), (65535, 65535), (65536, 0), (86400, 0)])
def test_the_switch_or_the_agent_expires_affinity(at, seconds, idle):
    """The idle timeout of a flow is at most 65535 seconds. The cookie gives the agent a longer one."""
    (learn, *_) = learning_actions(sticky(at, on_cluster_ip(at), here(at.pod_2), seconds=seconds))
    assert (learn.idle_timeout, affinity.seconds_of(learn.cookie)) == (idle, seconds)


def test_learned_flows_are_deleted_with_their_endpoint(at):
    """Open vSwitch deletes learned flows when the last flow that learns with their cookie goes. The learning flows of
    an endpoint share a cookie: a change of policy removes one of them, and no client loses its endpoint.
    """
    learns = learning_actions(
        sticky(at, on_node_port(local_only=True), here(at.pod_2), here(at.pod_1), elsewhere(at.near_pod))
    )
    assert sorted(Counter(learn.cookie for learn in learns).values()) == [1, 2, 2]
    assert all(learn.delete_learned for learn in learns)


def test_another_timeout_has_another_cookie(at):
    one, other = (
        learning_actions(sticky(at, on_cluster_ip(at), here(at.pod_2), seconds=s))[0].cookie for s in (10, 20)
    )
    assert one != other


def test_a_client_stays_with_its_endpoint_among_several_groups(at):
    """The client's address also chooses the group."""
    many = tuple(elsewhere(pod_address(2, number, at.family)) for number in range(1, 201))
    many += tuple(elsewhere(address.address, 9000 + port) for port in range(4) for address in many)
    state = sticky(at, on_cluster_ip(at), *many)
    net = Journeys(state)
    seen = {net.send(POD_1, at.asks(POD_1, at.service, 80, source_port=40000 + n), bucket=n).endpoint for n in range(8)}
    assert len(seen) == 1
    offered = sum(len(group.buckets) for group in part(state, Owner(OwnerKind.SERVICE, "default/web")).groups)
    assert offered == len(many)


@given(node_states())
@settings(max_examples=60)
def test_every_endpoint_of_a_group_has_its_flow_in_endpoint_dnat(state):
    """So a packet passes EndpointDNAT, the only table that leads to itself, at most twice."""
    for owned in program(state).values():
        known = {
            tuple(term for term in flow.match if term.field is ENDPOINT.bits.field)
            for flow in owned.flows
            if flow.table == ENDPOINT_DNAT.number and any(isinstance(action, Learn) for action in flow.actions)
        }
        for group in owned.groups:
            for bucket in group.buckets:
                match bucket.actions:
                    case (Set(term), Resubmit(_)):
                        assert (term,) in known
        assert not any(flow.table == SESSION_AFFINITY.number for flow in owned.flows), "the switch itself writes those"


@given(st.lists(st.tuples(st.integers(1, 1 << 32), st.integers(1, 65535)), unique=True, min_size=2, max_size=50))
def test_an_endpoint_keeps_its_number(found):
    """So an endpoint that is added or removed takes no client from the others."""
    endpoints = [Endpoint.at(pod_address(2, 1, Family.IPV6) + host, port) for host, port in found]
    numbers = {endpoint: number for number, endpoint in affinity.numbered(endpoints).items()}
    assert len(numbers) == len(endpoints)
    assert 0 not in numbers.values()
    fewer = {endpoint: number for number, endpoint in affinity.numbered(endpoints[1:]).items()}
    assert fewer.items() <= numbers.items()


def learning_actions(state: NodeState) -> list[Learn]:
    flows = part(state, Owner(OwnerKind.SERVICE, "default/web")).flows
    return [action for flow in flows for action in flow.actions if isinstance(action, Learn)]
