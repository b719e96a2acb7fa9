"""Fragmented datagrams: a flow sees no port of their fragments.

Connection tracking of the kernel reassembles them, that of the userspace datapath passes fragments on. How it handles
fragments itself is tested with real packets (`tests/lab/test_long_datagrams.py`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from journeys import HOST, TUNNEL, WIRE, Journeys
from msgspec import structs
from node_states import pod_address, service_port, with_ports
from service_cases import (
    NODE_PORT,
    POD_1,
    POD_2,
    answered_by_each,
    cluster,
    elsewhere,
    here,
    on_balancer,
    on_cluster_ip,
    on_node_port,
)

from windlass.model.nodes import NodeState
from windlass.model.services import Protocol
from windlass.program import OwnerKind, program

UDP = Protocol.UDP


@pytest.fixture(params=[True, False], ids=["userspace", "kernel"])
def userspace(request: pytest.FixtureRequest) -> bool:
    return request.param


def on(userspace: bool, state: NodeState, **changes: int) -> NodeState:
    """The state with a switch of this kind, and with these changes to the ports of its Services."""
    return replace(with_ports(state, **changes), node=replace(state.node, userspace=userspace))


@pytest.mark.parametrize("client", [POD_1, HOST])
def test_a_cluster_ip(at, userspace, client):
    endpoints = (here(at.pod_2), elsewhere(at.near_pod), elsewhere(at.other_node))
    state = on(userspace, cluster(at, on_cluster_ip(at), *endpoints, protocol=UDP))
    seen = answered_by_each(state, client, at.asks(client, at.service, 80, UDP), fragments=True)
    assert [found.place for found in seen] == [POD_2, TUNNEL, WIRE]


def test_internal_policy_local(at, userspace):
    asked, local_only = at.asks(POD_1, at.service, 80, UDP), on_cluster_ip(at, local_only=True)
    state = on(userspace, cluster(at, local_only, elsewhere(at.near_pod), here(at.pod_2), protocol=UDP))
    assert [found.place for found in answered_by_each(state, POD_1, asked, fragments=True)] == [POD_2]
    nobody = on(userspace, cluster(at, local_only, elsewhere(at.near_pod), protocol=UDP))
    assert Journeys(nobody, fragments=True).send(POD_1, asked).place is None


def test_another_port_of_the_address(at, userspace):
    """In user space the port is not visible, so it is served; the kernel datapath refuses it as any unknown port."""
    state = on(userspace, cluster(at, on_cluster_ip(at), here(at.pod_2), protocol=UDP))
    found = Journeys(state, fragments=True).send(POD_1, at.asks(POD_1, at.service, 81, UDP))
    assert found.place == POD_2 if userspace else found.refused


def test_no_endpoint_anywhere(at, userspace):
    state = on(userspace, cluster(at, on_cluster_ip(at), protocol=UDP))
    assert Journeys(state, fragments=True).send(POD_1, at.asks(POD_1, at.service, 80, UDP)).refused


def test_an_address_with_two_udp_ports(at, userspace):
    """In user space the port of a fragment is not visible: neither port can be served."""
    state = cluster(at, on_cluster_ip(at), here(at.pod_2), protocol=UDP)
    (service,) = state.services.values()
    second = service_port(
        2, (structs.replace(on_cluster_ip(at), port=81),), (here(at.pod_2),), at.family, name="second"
    )
    both = structs.replace(service, ports=(*service.ports, structs.replace(second, protocol=UDP)))
    found = Journeys(on(userspace, replace(state, services={service.key: both})), fragments=True).send(
        POD_1, at.asks(POD_1, at.service, 80, UDP)
    )
    assert found.refused if userspace else found.place == POD_2


def test_a_node_port_from_outside(at, userspace):
    """In user space they go to the host, which reassembles and refuses them."""
    state = on(userspace, cluster(at, on_node_port(), here(at.pod_2), protocol=UDP))
    found = Journeys(state, fragments=True).send(WIRE, at.asks(WIRE, at.node, NODE_PORT, UDP))
    assert found.place == (HOST if userspace else POD_2)


def test_fragments_to_the_host_arrive(at, userspace):
    state = on(userspace, cluster(at, on_node_port(), here(at.pod_1), protocol=UDP))
    asked = at.asks(WIRE, at.node, 111, UDP)
    found = Journeys(state, fragments=True).send(WIRE, asked)
    assert (found.place, found.ends) == (HOST, asked)


def test_session_affinity(at, userspace):
    state = on(
        userspace,
        cluster(at, on_cluster_ip(at), here(at.pod_2), elsewhere(at.near_pod), protocol=UDP),
        affinity_seconds=10800,
    )
    way = Journeys(state, fragments=True)
    first = way.converse(POD_1, at.asks(POD_1, at.service, 80, UDP))
    later = way.converse(POD_1, at.asks(POD_1, at.service, 80, UDP, source_port=40001), bucket=1)
    assert later.endpoint == first.endpoint


@pytest.mark.parametrize("seconds", [0, 10800])
def test_more_endpoints_than_a_group_holds(at, userspace, seconds):
    endpoints = tuple(elsewhere(pod_address(2, number % 200, at.family), 8000 + number) for number in range(501))
    state = on(userspace, cluster(at, on_cluster_ip(at), *endpoints, protocol=UDP), affinity_seconds=seconds)
    for port in (40000, 40001):
        asked = at.asks(POD_1, at.service, 80, UDP, source_port=port)
        assert Journeys(state, fragments=True).converse(POD_1, asked).place == TUNNEL


def test_the_cost(at):
    """In user space one more flow for a ClusterIP with UDP, and none for other frontends."""
    for frontend, protocol in product((on_cluster_ip(at), on_node_port(), on_balancer(at)), (Protocol.TCP, UDP)):
        state = cluster(at, frontend, here(at.pod_2), elsewhere(at.near_pod), protocol=protocol)
        mine, kernels = (
            {
                flow
                for owner, part in program(on(userspace, state)).items()
                if owner.kind is OwnerKind.SERVICE
                for flow in part.flows
            }
            for userspace in (True, False)
        )
        if (frontend, protocol) == (on_cluster_ip(at), UDP):
            assert len(mine) == len(kernels) + 1
        else:
            assert mine == kernels
