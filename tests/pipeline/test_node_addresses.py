"""Services and the addresses of this Node: endpoints on the host itself, and frontends at its own addresses."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from journeys import HOST, TUNNEL, WIRE, Journeys
from node_states import service_port, small_cluster
from packets import ACK, SYN_ACK, Ends
from service_cases import (
    NODE_PORT,
    POD_1,
    POD_2,
    Known,
    answered_by_each,
    at_node,
    cluster,
    elsewhere,
    from_outside,
    here,
    journeys,
    on_balancer,
    on_cluster_ip,
    on_node_port,
)

from windlass.model.families import Family, IPAddress
from windlass.model.nodes import NodeState, OperatingSystem, TrafficMode
from windlass.model.services import Frontend, Reach, ServedService
from windlass.openflow.fields import LOCAL_PORT
from windlass.pipeline.layout import CLASSIFIER
from windlass.pipeline.reserved import stand_in
from windlass.program import Owner, OwnerKind, part

# Endpoints on this Node itself (hostNetwork) -----------------------------------------------------------------------


def test_host_to_an_endpoint_on_itself(at):
    """The source is the virtual client: otherwise the host would reply to itself, bypassing the switch."""
    for frontend, address, port in (
        (on_cluster_ip(at), at.service, 80),
        (on_cluster_ip(at, local_only=True), at.service, 80),
        (on_node_port(), at.host_node_port, NODE_PORT),
        (on_node_port(local_only=True), at.host_node_port, NODE_PORT),
        (on_balancer(at), at.balancer, 80),
        (on_balancer(at, local_only=True), at.balancer, 80),
    ):
        seen = journeys(at, frontend, here(at.node)).converse(HOST, at.asks(HOST, address, port))
        assert (seen.place, seen.client, seen.endpoint) == (HOST, at.virtual_client, (at.node, 8080))


def test_pod_to_an_endpoint_on_its_node(at):
    """By a ClusterIP or with policy Local, the Pod keeps its address: the host replies to Pods by the gateway."""
    for frontend, address, port in (
        (on_cluster_ip(at), at.service, 80),
        (on_cluster_ip(at, local_only=True), at.service, 80),
        *from_outside(at, local_only=True),
    ):
        seen = journeys(at, frontend, here(at.node)).converse(POD_1, at.asks(POD_1, address, port))
        assert (seen.place, seen.client, seen.endpoint) == (HOST, at.pod_1, (at.node, 8080))


def test_pod_to_an_endpoint_on_its_node_with_policy_cluster(at):
    """The source is the virtual client, not the gateway: that is the host's own, so it would reply to itself."""
    for frontend, address, port in from_outside(at):
        seen = journeys(at, frontend, here(at.node)).converse(POD_1, at.asks(POD_1, address, port))
        assert (seen.place, seen.client) == (HOST, at.virtual_client)


def test_outside_to_an_endpoint_on_this_node(at):
    for frontend, address, port in from_outside(at):
        seen = journeys(at, frontend, here(at.node)).converse(WIRE, at.asks(WIRE, address, port))
        assert (seen.place, seen.client) == (HOST, at.virtual_client)


def test_outside_to_an_endpoint_on_this_node_with_policy_local(at):
    """The endpoint sees the client. The host replies by the switch, whatever its routes, and sends the result on."""
    for frontend, address, port in from_outside(at, local_only=True):
        way = journeys(at, frontend, here(at.node))
        asked = at.asks(WIRE, address, port)
        seen = way.converse(WIRE, asked)
        assert (seen.place, seen.client, seen.endpoint) == (HOST, at.client, (at.node, 8080))
        answer = way.send(HOST, seen.ends.back, ACK)
        assert answer.trips[0].out[0][0] == way.node.ports.gateway
        assert (answer.place, answer.ends) == (WIRE, asked.back)


@pytest.mark.parametrize("mode", TrafficMode)
def test_another_nic_to_an_endpoint_on_this_node(at, mode):
    """Design note 001, "other NodeIPs": the endpoint sees the client with policy Local, but not with policy Cluster."""
    for local_only, seen_as in ((True, at.client), (False, at.virtual_client)):
        for frontend, address, port in (
            (on_node_port(local_only=local_only), at.host_node_port, NODE_PORT),
            (at_node(at, local_only=local_only), stand_in(at.node), 80),
        ):
            way = journeys(at, frontend, here(at.node), mode=mode)
            asked = Ends(at.client, 40000, address, port)
            seen = way.send(HOST, asked)
            assert (seen.place, seen.client, seen.endpoint) == (HOST, seen_as, (at.node, 8080))
            answer = way.send(HOST, seen.ends.back, SYN_ACK)
            assert answer.ends == asked.back
            assert answer.trips[0].out[0][0] == way.node.ports.gateway, "the host translates it back"


def test_an_endpoint_at_another_address_of_this_node(at):
    """An endpoint at any address of this Node is on the host."""
    for client, frontend, address, port, seen_as in (
        (POD_1, on_cluster_ip(at), at.service, 80, at.pod_1),
        (HOST, on_cluster_ip(at), at.service, 80, at.virtual_client),
        (WIRE, on_node_port(), at.node, NODE_PORT, at.virtual_client),
        (WIRE, on_node_port(local_only=True), at.node, NODE_PORT, at.client),
        (POD_1, on_node_port(), at.node, NODE_PORT, at.virtual_client),
        (HOST, on_node_port(local_only=True), at.host_node_port, NODE_PORT, at.virtual_client),
    ):
        seen = journeys(at, frontend, here(at.other)).converse(client, at.asks(client, address, port))
        assert (seen.place, seen.client, seen.endpoint) == (HOST, seen_as, (at.other, 8080))


def check_direct_connections(at: Known, way: Journeys, mode: TrafficMode) -> None:
    clients = [at.client, at.other_node, *([at.near_pod, at.far_pod] if mode is TrafficMode.NO_ENCAP else [])]
    for client in clients:
        asked = Ends(client, 40000, at.node, 8080)
        first = way.send(WIRE, asked)
        assert (first.place, first.ends) == (HOST, asked)
        for flags in (SYN_ACK, ACK):
            answer = way.send(HOST, asked.back, flags)
            assert (answer.place, answer.ends, len(answer.trips)) == (WIRE, asked.back, 1)


@pytest.mark.parametrize("mode", TrafficMode)
def test_direct_connections_to_that_endpoint_are_not_translated(at, mode):
    """The host's replies pass the look-up and leave unchanged: to the outside, and to Pods of peers."""
    way = journeys(at, on_node_port(local_only=True), here(at.node), mode=mode)
    check_direct_connections(at, way, mode)


# A host that replies by its routes alone ----------------------------------------------------------------------------


def on_windows(state: NodeState) -> NodeState:
    return replace(state, node=replace(state.node, os=OperatingSystem.WINDOWS))


def test_a_windows_host_replies_by_the_wire():
    """The switch looks its replies up on their way to the wire, and translates them."""
    at = Known(Family.IPV4)
    for frontend, address, port in from_outside(at, local_only=True):
        way = Journeys(on_windows(cluster(at, frontend, here(at.node))))
        asked = at.asks(WIRE, address, port)
        seen = way.converse(WIRE, asked)
        assert (seen.place, seen.client, seen.endpoint) == (HOST, at.client, (at.node, 8080))
        assert seen.trips[-1].out[0][0] == LOCAL_PORT
        answer = way.send(HOST, seen.ends.back, ACK)
        assert (answer.place, answer.ends, len(answer.trips)) == (WIRE, asked.back, 1)


@pytest.mark.parametrize("mode", TrafficMode)
def test_direct_connections_to_a_windows_host_are_not_translated(mode):
    """The host's replies pass the look-up and leave unchanged: to the outside, and to Pods of peers."""
    at = Known(Family.IPV4)
    way = Journeys(on_windows(cluster(at, on_node_port(local_only=True), here(at.node), mode=mode)))
    check_direct_connections(at, way, mode)


def test_ports_of_a_service_may_share_an_endpoint_on_a_windows_host():
    """One flow looks up its replies; each client gets the reply from the port to which it connected."""
    at = Known(Family.IPV4)
    ports = tuple(
        service_port(
            number, (Frontend(Reach.NODE_PORT, None, node_port, local_only=True),), (here(at.node),), at.family
        )
        for number, node_port in ((1, NODE_PORT), (2, NODE_PORT + 1))
    )
    service = ServedService("default", "web", ports, (at.service,))
    state = on_windows(replace(small_cluster(TrafficMode.ENCAP, at.family), services={service.key: service}))
    flows = part(state, Owner(OwnerKind.SERVICE, service.key)).flows
    assert len([flow for flow in flows if flow.table == CLASSIFIER.number]) == 1
    way = Journeys(state)
    for node_port in (NODE_PORT, NODE_PORT + 1):
        assert way.converse(WIRE, at.asks(WIRE, at.node, node_port, source_port=node_port)).place == HOST


# External addresses that are addresses of the host ------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2])
def test_an_external_address_that_is_the_hosts_own(at, number):
    """The host itself connects to the stand-in: no route leads its own address to the switch."""
    own = (at.node, at.other)[number - 1]
    for local_only, seen_as in ((False, at.gateway), (True, at.pod_1)):
        state = cluster(at, at_node(at, own, local_only=local_only), here(at.pod_2), elsewhere(at.near_pod))
        for client, address, seen_by in (
            (POD_1, own, seen_as),
            (HOST, stand_in(own), at.gateway),
        ):
            seen = answered_by_each(state, client, at.asks(client, address, 80))
            assert [(found.place, found.client) for found in seen] == [(POD_2, seen_by), (TUNNEL, seen_by)]


def test_outside_to_an_external_address_that_is_the_hosts_own(at):
    for own in (at.node, at.other):
        state = cluster(at, at_node(at, own), here(at.pod_2), elsewhere(at.near_pod))
        seen = answered_by_each(state, WIRE, at.asks(WIRE, own, 80))
        assert [(found.place, found.client) for found in seen] == [(POD_2, at.gateway), (TUNNEL, at.gateway)]
        found = journeys(at, at_node(at, own, local_only=True), here(at.pod_2)).converse(WIRE, at.asks(WIRE, own, 80))
        assert (found.place, found.client) == (POD_2, at.client)


def test_source_ranges_at_an_address_of_the_hosts_own(at):
    """The host is allowed if this address or its Node IP is in a range; it needs only one of them."""
    for own, ranges, served in (
        (at.other, (f"{at.other}",), True),
        (at.other, (f"{at.node}",), True),
        (at.node, (f"{at.other}",), False),
        (at.other, (f"{at.gateway}",), False),
    ):
        frontend = Frontend(Reach.EXTERNAL, own, 80, sources=tuple(map(ip_network, ranges)))
        found = journeys(at, frontend, here(at.pod_2)).send(HOST, at.asks(HOST, stand_in(own), 80))
        assert found.place == (POD_2 if served else None)


def test_one_port_at_two_addresses_of_the_host(at):
    """Two Services may use the same port: the stand-ins distinguish the addresses."""
    ports = [
        service_port(number, (at_node(at, own),), (here(pod),), at.family)
        for number, own, pod in ((1, at.node, at.pod_1), (2, at.other, at.pod_2))
    ]
    found = [ServedService("default", f"web-{port.group}", (port,), ()) for port in ports]
    state = replace(small_cluster(TrafficMode.ENCAP, at.family), services={service.key: service for service in found})
    way = Journeys(state)
    assert way.converse(HOST, at.asks(HOST, stand_in(at.node), 80)).place == POD_1
    assert way.converse(HOST, at.asks(HOST, stand_in(at.other), 80)).place == POD_2


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (IPv4Address("10.176.25.11"), IPv4Address("250.176.25.11")),
        (IPv4Address("192.168.0.1"), IPv4Address("240.168.0.1")),
        (IPv6Address("2001:db8::5"), IPv6Address("4001:db8::5")),
        (IPv6Address("fd00:10:176:25::11"), IPv6Address("5d00:10:176:25::11")),
    ],
)
def test_a_stand_in_differs_only_in_the_first_bits(address: IPAddress, expected: IPAddress):
    assert stand_in(address) == expected
