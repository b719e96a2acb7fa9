"""Services without an endpoint, laws that hold for any Service, and what a Service costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from journeys import HOST, WIRE, Arrival, Journeys, Place
from node_states import BOTH, modes, pod_address, services, small_cluster
from packets import ACK, SYN_ACK
from service_cases import (
    NODE_PORT,
    POD_1,
    POD_2,
    Known,
    elsewhere,
    from_outside,
    here,
    journeys,
    on_balancer,
    on_cluster_ip,
    on_node_port,
)

from windlass.model.families import IPAddress
from windlass.model.services import Frontend, Protocol, Reach
from windlass.openflow.fields import LOCAL_PORT

# Refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local_only", [False, True])
def test_no_endpoint_anywhere(at, local_only):
    """The connection is refused at once, for every client and every policy."""
    for frontend, address, port in from_outside(at, local_only=local_only):
        by_host = at.host_node_port if frontend.reach is Reach.NODE_PORT else address
        for client, where in ((WIRE, address), (POD_1, address), (HOST, by_host)):
            assert journeys(at, frontend).send(client, at.asks(client, where, port)).refused
    for client in (POD_1, HOST):
        frontend = on_cluster_ip(at, local_only=local_only)
        assert journeys(at, frontend).send(client, at.asks(client, at.service, 80)).refused


@pytest.mark.parametrize("client", [POD_1, HOST])
def test_a_port_that_the_service_does_not_have(at, client):
    """Other ports of a ClusterIP are refused, because the address belongs to the Service alone."""
    way = journeys(at, on_cluster_ip(at), here(at.pod_2))
    assert way.send(client, at.asks(client, at.service, 81)).refused
    assert way.send(client, at.asks(client, at.service, 80, Protocol.UDP)).refused


def test_other_ports_of_a_load_balancer_address_are_not_taken(at):
    """From a Pod they are routed to the outside, from the wire they go to the host."""
    way = journeys(at, on_balancer(at), here(at.pod_2))
    for client, port in ((POD_1, way.node.ports.gateway), (WIRE, LOCAL_PORT)):
        asked = at.asks(client, at.balancer, 81)
        assert way.send(client, asked).trips[0].out[0][0] == port


def test_other_ports_of_the_node_go_to_the_host(at):
    way = journeys(at, on_node_port(), here(at.pod_2))
    for client in (WIRE, POD_1):
        asked = at.asks(client, at.node, NODE_PORT + 1)
        found = way.send(client, asked)
        assert (found.place, found.ends) == (HOST, asked)


# Any Service --------------------------------------------------------------------------------------------------------


@given(mode=modes, service=services(7))
@settings(max_examples=40)
def test_a_served_client_gets_the_reply_from_the_address_it_connected_to(mode, service):
    """For every client and every endpoint; a client is served completely or not at all."""
    way = Journeys(replace(small_cluster(mode, *BOTH), services={service.key: service}))
    source_ports = count(40000)
    for port in service.ports:
        at = Known(port.family)
        for frontend in port.frontends:
            for client, address in clients_of(frontend, at):
                for bucket in range(len(port.endpoints)):
                    asked = at.asks(client, address, frontend.port, port.protocol, next(source_ports))
                    first = way.send(client, asked, bucket=bucket)
                    if first.place is not None:
                        way.converse(client, asked, bucket)


def clients_of(frontend: Frontend, at: Known) -> Iterator[tuple[Place, IPAddress]]:
    """The clients of this frontend and the address that each uses; the host never sends to an address of its own."""
    address = frontend.address or at.node
    yield POD_1, address
    if frontend.reach is not Reach.CLUSTER_IP:
        yield WIRE, address
    if frontend.reach is Reach.NODE_PORT:
        yield HOST, at.host_node_port
    elif address != at.node:
        yield HOST, address


# What it costs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "frontend", "endpoint", "first", "later"),
    [
        (POD_1, "ClusterIP", "Pod", (2, 4), (1, 2)),
        (HOST, "ClusterIP", "Pod", (2, 4), (1, 2)),
        (POD_1, "ClusterIP", "outside", (3, 5), (2, 3)),
        (WIRE, "NodePort", "Pod", (3, 5), (2, 3)),
        (WIRE, "NodePort Local", "Pod", (2, 4), (1, 2)),
        (WIRE, "NodePort", "outside", (3, 5), (2, 3)),
    ],
)
def test_what_a_connection_costs(at, client, frontend, endpoint, first, later):
    """In ct actions and passes through the datapath: the first packet of a connection, and each that follows."""
    asked, on = {
        "ClusterIP": (at.asks(client, at.service, 80), on_cluster_ip(at)),
        "NodePort": (at.asks(client, at.node, NODE_PORT), on_node_port()),
        "NodePort Local": (at.asks(client, at.node, NODE_PORT), on_node_port(local_only=True)),
    }[frontend]
    way = journeys(at, on, here(at.pod_2) if endpoint == "Pod" else elsewhere(at.outside))
    begun = way.send(client, asked)
    assert cost(begun) == first
    assert begun.place is not None
    answered = way.send(begun.place, begun.ends.back, SYN_ACK)
    assert answered.place == client
    assert cost(answered) == later
    assert cost(way.send(client, asked, ACK)) == later


def cost(arrival: Arrival) -> tuple[int, int]:
    """Of the first trip through the switch: a packet that the host forwards passes a second time, untranslated."""
    assert {trip.passes for trip in arrival.trips[1:]} <= {1}
    return arrival.trips[0].tracked, arrival.trips[0].passes


@pytest.mark.parametrize(("endpoints", "groups"), [(500, 1), (501, 2), (1201, 4)])
def test_many_endpoints_are_spread_over_several_groups(at, endpoints, groups):
    """A group has a limited size. The client's port chooses the group, so that all endpoints are reached."""
    many = [elsewhere(pod_address(2, 1, at.family), 1000 + number) for number in range(endpoints)]
    way = journeys(at, on_cluster_ip(at), *many)
    reached = []
    for share in range(groups):
        buckets = way.send(POD_1, at.asks(POD_1, at.service, 80, source_port=20000 + share)).trips[0].buckets
        assert buckets <= 500
        for bucket in range(buckets):
            source_port = 24000 + groups * bucket + share
            asked = at.asks(POD_1, at.service, 80, source_port=source_port)
            reached.append(way.send(POD_1, asked, bucket=bucket).endpoint)
    assert sorted(reached) == sorted((endpoint.address, endpoint.port) for endpoint in many)


def test_many_endpoints_by_policy_local(at):
    """The few endpoints on this Node need no second group, however many are elsewhere."""
    many = [elsewhere(at.near_pod, 1000 + number) for number in range(501)]
    way = journeys(at, on_node_port(local_only=True), *many, here(at.pod_2))
    for source_port in (40000, 40001):
        asked = at.asks(WIRE, at.node, NODE_PORT, source_port=source_port)
        assert way.converse(WIRE, asked).place == POD_2
