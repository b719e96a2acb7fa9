"""Session affinity, packet by packet: who keeps its endpoint, who gets another, and what the switch remembers."""

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
from windlass.pipeline.layout import ENDPOINT, ENDPOINT_DNAT, SESSION_AFFINITY
from windlass.program import Kind, Owner, part, program


def sticky(at: Known, frontend: Frontend, *endpoints: Endpoint, seconds: int = 10800) -> NodeState:
    return with_ports(cluster(at, frontend, *endpoints), affinity_seconds=seconds)


def test_a_client_stays_with_its_endpoint(at):
    """Whatever the group would choose the next time (here: another bucket)."""
    net = Journeys(sticky(at, on_cluster_ip(at), here(at.pod_2), elsewhere(at.near_pod)))
    asked = [at.asks(POD_1, at.service, 80, source_port=port) for port in (40000, 40001, 40002)]
    seen = [net.converse(POD_1, one, bucket) for bucket, one in enumerate(asked)]
    assert len({found.endpoint for found in seen}) == 1


def test_clients_are_told_apart(at):
    net = Journeys(sticky(at, on_cluster_ip(at), here(at.pod_2), elsewhere(at.near_pod)))
    one = net.converse(POD_1, at.asks(POD_1, at.service, 80), bucket=0)
    other = net.converse(HOST, at.asks(HOST, at.service, 80), bucket=1)
    assert one.endpoint != other.endpoint


def test_a_client_from_outside_stays_too(at):
    """And the endpoint sees it as it would without affinity: as the gateway, by policy Cluster."""
    net = Journeys(sticky(at, on_node_port(), here(at.pod_1), here(at.pod_2)))
    asked = [at.asks(WIRE, at.node, NODE_PORT, source_port=port) for port in (40000, 40001)]
    seen = [net.converse(WIRE, one, bucket) for bucket, one in enumerate(asked)]
    assert len({found.endpoint for found in seen}) == 1
    assert {found.client for found in seen} == {at.gateway}


def test_policy_local_keeps_among_the_endpoints_here(at):
    local_only = on_node_port(local_only=True)
    net = Journeys(sticky(at, local_only, elsewhere(at.near_pod), here(at.pod_2)))
    assert net.converse(WIRE, at.asks(WIRE, at.node, NODE_PORT)).place == POD_2


def by_two_ways(at: Known) -> tuple[NodeState, Ends, Ends]:
    """A Service that serves by local endpoints at one way in, by all at the other; and how to ask it there."""
    state = sticky(at, on_cluster_ip(at, local_only=True), elsewhere(at.near_pod), here(at.pod_2))
    (service,) = state.services.values()
    (port,) = service.ports
    both = structs.replace(port, frontends=(*port.frontends, on_node_port()))
    state = replace(state, services={service.key: structs.replace(service, ports=(both,))})
    return state, at.asks(POD_1, at.service, 80), at.asks(POD_1, at.node, NODE_PORT, source_port=40001)


def test_what_a_client_keeps_by_one_policy_it_keeps_by_the_other(at):
    """As with kube-proxy, whose lists of clients are an endpoint's: also when the Service's policy changes."""
    state, local, anywhere = by_two_ways(at)
    for bucket in range(2):
        net = Journeys(state)
        assert net.converse(POD_1, local, bucket).endpoint == net.converse(POD_1, anywhere, bucket).endpoint


def test_where_that_one_may_not_serve_another_does_and_nobody_forgets(at):
    state, local, anywhere = by_two_ways(at)
    net = Journeys(state)
    far = next(b for b in range(2) if Journeys(state).converse(POD_1, anywhere, b).endpoint[0] == at.near_pod)
    before = net.converse(POD_1, anywhere, far).endpoint
    assert net.converse(POD_1, local).place == POD_2
    again = anywhere._replace(source_port=40002)
    assert net.converse(POD_1, again, 1 - far).endpoint == before


def test_it_costs_a_pass_less_not_more(at):
    """The client's address chooses: no hash that only the datapath has, and so no second look for it."""
    net = Journeys(sticky(at, on_cluster_ip(at), here(at.pod_2), elsewhere(at.near_pod)))
    for port in (40000, 40001):
        (first,) = net.send(POD_1, at.asks(POD_1, at.service, 80, source_port=port)).trips
        assert (first.passes, first.tracked) == (3, 2)


@pytest.mark.parametrize(("seconds", "idle"), [(1, 1), (10800, 10800), (65535, 65535), (65536, 0), (86400, 0)])
def test_it_is_forgotten_by_the_switch_or_by_the_agent(at, seconds, idle):
    """A flow's own timeout ends at 65535 seconds. The cookie tells the agent how long a longer one may be idle."""
    (lesson, *_) = lessons(sticky(at, on_cluster_ip(at), here(at.pod_2), seconds=seconds))
    assert (lesson.idle_timeout, affinity.seconds_of(lesson.cookie)) == (idle, seconds)


def test_what_an_endpoint_taught_goes_with_it(at):
    """Open vSwitch deletes what was taught with a cookie when the last flow that teaches with it goes. Those of an
    endpoint have one in common: a policy that changes takes one of its flows, and nothing from its clients.
    """
    taught = lessons(sticky(at, on_node_port(local_only=True), here(at.pod_2), here(at.pod_1), elsewhere(at.near_pod)))
    assert sorted(Counter(lesson.cookie for lesson in taught).values()) == [1, 2, 2]
    assert all(lesson.delete_learned for lesson in taught)


def test_another_timeout_begins_anew(at):
    one, other = (lessons(sticky(at, on_cluster_ip(at), here(at.pod_2), seconds=s))[0].cookie for s in (10, 20))
    assert one != other


def test_more_endpoints_than_a_group_can_have(at):
    """A client is always with the same of several groups: its address chooses there as well."""
    many = tuple(elsewhere(pod_address(2, number, at.family)) for number in range(1, 201))
    many += tuple(elsewhere(address.address, 9000 + port) for port in range(4) for address in many)
    state = sticky(at, on_cluster_ip(at), *many)
    net = Journeys(state)
    seen = {net.send(POD_1, at.asks(POD_1, at.service, 80, source_port=40000 + n), bucket=n).endpoint for n in range(8)}
    assert len(seen) == 1
    offered = sum(len(group.buckets) for group in part(state, Owner(Kind.SERVICE, "default/web")).groups)
    assert offered == len(many)


@given(node_states())
@settings(max_examples=60)
def test_whom_a_group_names_endpoint_dnat_knows(state):
    """So a packet meets EndpointDNAT twice at most: the only table that leads to itself."""
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
        assert not any(flow.table == SESSION_AFFINITY.number for flow in owned.flows), "those are the switch's own"


@given(st.lists(st.tuples(st.integers(1, 1 << 32), st.integers(1, 65535)), unique=True, min_size=2, max_size=50))
def test_an_endpoint_keeps_its_number(found):
    """So that one that comes or goes takes no client from the others."""
    endpoints = [Endpoint.at(pod_address(2, 1, Family.IPV6) + host, port) for host, port in found]
    numbers = {endpoint: number for number, endpoint in affinity.numbered(endpoints).items()}
    assert len(numbers) == len(endpoints)
    assert 0 not in numbers.values()
    fewer = {endpoint: number for number, endpoint in affinity.numbered(endpoints[1:]).items()}
    assert fewer.items() <= numbers.items()


def lessons(state: NodeState) -> list[Learn]:
    flows = part(state, Owner(Kind.SERVICE, "default/web")).flows
    return [action for flow in flows for action in flow.actions if isinstance(action, Learn)]
