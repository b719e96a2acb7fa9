"""Services as clients and endpoints see them, packet by packet (design notes 000, 001 and 002).

Which endpoint serves a client, which source address the endpoint sees, and that the reply comes from the address to
which the client connected: `converse` checks that for every connection. Other tests cover what is refused, what is
dropped, and what a connection costs.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest
from journeys import HOST, TUNNEL, WIRE, Journeys
from msgspec import structs
from node_states import service_port, small_cluster
from packets import SYN_ACK, Ends
from service_cases import (
    NODE_PORT,
    POD_1,
    POD_2,
    Known,
    answered_by_each,
    cluster,
    elsewhere,
    from_outside,
    here,
    journeys,
    on_balancer,
    on_cluster_ip,
    on_node_port,
)

from windlass.model.families import Family
from windlass.model.nodes import TrafficMode
from windlass.model.services import Protocol, Reach, ServedService
from windlass.pipeline.reserved import GATEWAY_SNAT_PORTS
from windlass.pipeline.snat_ports import RESERVED

# A ClusterIP -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", Protocol)
def test_pod_to_cluster_ip(at, protocol):
    """Every endpoint can be chosen, and sees the Pod's address."""
    state = cluster(at, on_cluster_ip(at), here(at.pod_2), elsewhere(at.near_pod, 8081), protocol=protocol)
    seen = answered_by_each(state, POD_1, at.asks(POD_1, at.service, 80, protocol))
    assert [(found.place, found.endpoint) for found in seen] == [
        (POD_2, (at.pod_2, 8080)),
        (TUNNEL, (at.near_pod, 8081)),
    ]
    assert {found.client for found in seen} == {at.pod_1}


def test_host_to_cluster_ip(at):
    """Design note 000: endpoints see the gateway, so that they reply to it."""
    state = cluster(at, on_cluster_ip(at), here(at.pod_2), elsewhere(at.near_pod))
    seen = answered_by_each(state, HOST, at.asks(HOST, at.service, 80))
    assert [found.place for found in seen] == [POD_2, TUNNEL]
    assert {found.client for found in seen} == {at.gateway}


@pytest.mark.parametrize("client", [POD_1, HOST])
@pytest.mark.parametrize(
    ("mode", "near", "far"),
    [
        (TrafficMode.ENCAP, TUNNEL, TUNNEL),
        (TrafficMode.NO_ENCAP, WIRE, WIRE),
        (TrafficMode.HYBRID, WIRE, TUNNEL),
    ],
)
def test_remote_endpoints_are_reached_according_to_the_traffic_mode(at, client, mode, near, far):
    state = cluster(at, on_cluster_ip(at), elsewhere(at.near_pod), elsewhere(at.far_pod), mode=mode)
    seen = answered_by_each(state, client, at.asks(client, at.service, 80))
    assert [found.place for found in seen] == [near, far]
    assert {found.client for found in seen} == {at.asks(client, at.service, 80).source}


@pytest.mark.parametrize("client", [POD_1, HOST])
def test_internal_policy_local(at, client):
    """Only endpoints on this Node serve; without one the packet is dropped."""
    asked = at.asks(client, at.service, 80)
    local_only = on_cluster_ip(at, local_only=True)
    seen = answered_by_each(cluster(at, local_only, elsewhere(at.near_pod), here(at.pod_2)), client, asked)
    assert [found.place for found in seen] == [POD_2]
    assert journeys(at, local_only, elsewhere(at.near_pod)).send(client, asked).dropped


def test_protocols_with_the_same_port_number_have_their_own_endpoints(at):
    """As for DNS: an endpoint of the TCP port does not serve the UDP port."""
    ports = tuple(
        structs.replace(
            service_port(number, (on_cluster_ip(at),), (here(address),), at.family, name=protocol.name),
            protocol=protocol,
        )
        for number, protocol, address in ((1, Protocol.TCP, at.pod_1), (2, Protocol.UDP, at.pod_2))
    )
    service = ServedService("default", "dns", ports, (at.service,))
    state = replace(small_cluster(TrafficMode.ENCAP, at.family), services={service.key: service})
    assert Journeys(state).converse(HOST, at.asks(HOST, at.service, 80, Protocol.TCP)).place == POD_1
    assert Journeys(state).converse(HOST, at.asks(HOST, at.service, 80, Protocol.UDP)).place == POD_2
    assert Journeys(state).send(HOST, at.asks(HOST, at.service, 80, Protocol.SCTP)).refused


# NodePorts and external addresses: policy Cluster ------------------------------------------------------------------


@pytest.mark.parametrize("protocol", Protocol)
def test_outside_to_service_with_policy_cluster(at, protocol):
    """Design note 002: any endpoint can be chosen, and sees the gateway, so that its reply returns by this Node."""
    for frontend, address, port in from_outside(at):
        state = cluster(at, frontend, here(at.pod_2), elsewhere(at.near_pod), protocol=protocol)
        seen = answered_by_each(state, WIRE, at.asks(WIRE, address, port, protocol))
        assert [found.place for found in seen] == [POD_2, TUNNEL]
        assert {found.client for found in seen} == {at.gateway}
        assert {found.ends.source_port in range(*GATEWAY_SNAT_PORTS) for found in seen} == {True}


@pytest.mark.parametrize("mode", [TrafficMode.NO_ENCAP, TrafficMode.HYBRID])
def test_outside_to_service_without_a_tunnel(at, mode):
    for frontend, address, port in from_outside(at):
        state = cluster(at, frontend, elsewhere(at.near_pod), mode=mode)
        (seen,) = answered_by_each(state, WIRE, at.asks(WIRE, address, port))
        assert (seen.place, seen.client) == (WIRE, at.gateway)


def test_pod_to_node_port_and_external_address(at):
    for frontend, address, port in from_outside(at):
        state = cluster(at, frontend, here(at.pod_2), elsewhere(at.near_pod))
        seen = answered_by_each(state, POD_1, at.asks(POD_1, address, port))
        assert [(found.place, found.client) for found in seen] == [(POD_2, at.gateway), (TUNNEL, at.gateway)]


def test_host_to_node_port_and_external_address(at):
    """Design note 001. For a NodePort the host translates its own address to the virtual NodePort address."""
    for frontend, address, port in (
        (on_node_port(), at.host_node_port, NODE_PORT),
        (on_balancer(at), at.balancer, 80),
    ):
        state = cluster(at, frontend, here(at.pod_2), elsewhere(at.near_pod))
        seen = answered_by_each(state, HOST, at.asks(HOST, address, port))
        assert [(found.place, found.client) for found in seen] == [(POD_2, at.gateway), (TUNNEL, at.gateway)]


def test_outside_to_node_port_by_a_nic_outside_of_the_bridge(at):
    """Design note 001, "other NodeIPs": the host translates the destination and forwards the packet."""
    way = journeys(at, on_node_port(), here(at.pod_2))
    asked = Ends(at.client, 40000, at.host_node_port, NODE_PORT)
    first = way.send(HOST, asked)
    assert (first.place, first.client) == (POD_2, at.gateway)
    answer = way.send(POD_2, first.ends.back, SYN_ACK)
    assert answer.ends == asked.back
    assert answer.trips[0].out[0][0] == way.node.ports.gateway, "the host must translate it back"


def test_pod_to_node_port_at_the_second_nic():
    at = Known(Family.IPV4)
    seen = journeys(at, on_node_port(), here(at.pod_2)).converse(
        POD_1, at.asks(POD_1, IPv4Address("10.176.27.11"), NODE_PORT)
    )
    assert (seen.place, seen.client) == (POD_2, at.gateway)


def test_node_ports_only_at_node_port_addresses():
    """If nodePortAddresses exclude the Node IP, the port there belongs to the host."""
    at = Known(Family.IPV4)
    state = cluster(at, on_node_port(), here(at.pod_2))
    narrow = replace(state, node=replace(state.node, node_port_networks=(IPv4Network("10.176.27.0/24"),)))
    for client in (WIRE, POD_1):
        asked = at.asks(client, at.node, NODE_PORT)
        found = Journeys(narrow).send(client, asked)
        assert (found.place, found.ends) == (HOST, asked)
    other = at.asks(POD_1, IPv4Address("10.176.27.11"), NODE_PORT)
    assert Journeys(narrow).converse(POD_1, other).place == POD_2


# NodePorts and external addresses: policy Local --------------------------------------------------------------------


def test_external_policy_local_keeps_the_client(at):
    """Design note 002: only endpoints on this Node serve, and they see the client's address."""
    for frontend, address, port in from_outside(at, local_only=True):
        state = cluster(at, frontend, elsewhere(at.near_pod), here(at.pod_1), here(at.pod_2))
        seen = answered_by_each(state, WIRE, at.asks(WIRE, address, port))
        assert [(found.place, found.client) for found in seen] == [(POD_1, at.client), (POD_2, at.client)]


def test_external_policy_local_without_an_endpoint_here(at):
    """Dropped, not refused: the load balancer sends its clients elsewhere."""
    for frontend, address, port in from_outside(at, local_only=True):
        found = journeys(at, frontend, elsewhere(at.near_pod)).send(WIRE, at.asks(WIRE, address, port))
        assert found.dropped


def test_external_policy_local_does_not_hold_for_pods_and_the_node(at):
    """A Pod and the Node itself use the endpoints of all Nodes."""
    for frontend, address, port in from_outside(at, local_only=True):
        by_host = at.host_node_port if frontend.reach is Reach.NODE_PORT else address
        state = cluster(at, frontend, elsewhere(at.near_pod), here(at.pod_2))
        by_node_port = frontend.reach is Reach.NODE_PORT
        as_node = at.node if by_node_port else at.gateway
        for client, where, seen_as in (
            (POD_1, address, (at.pod_1, at.pod_1)),
            (HOST, by_host, (as_node, at.gateway)),
        ):
            seen = answered_by_each(state, client, at.asks(client, where, port))
            assert [(found.place, found.client) for found in seen] == [(TUNNEL, seen_as[0]), (POD_2, seen_as[1])]


# loadBalancerSourceRanges ------------------------------------------------------------------------------------------

CLIENTS = {Family.IPV4: "198.51.100.0/24", Family.IPV6: "2001:db8:198::/64"}
NODES = {Family.IPV4: "10.176.25.0/24", Family.IPV6: "fd00:10:176:25::/64"}
PODS = {Family.IPV4: "172.16.0.0/16", Family.IPV6: "fd00:172:16::/48"}


@pytest.mark.parametrize("local_only", [False, True])
@pytest.mark.parametrize(
    ("ranges", "served"),
    [
        ((CLIENTS,), {WIRE}),
        ((NODES,), {HOST}),  # the Node itself: judged by its address, though its source is the gateway
        ((PODS,), {POD_1}),  # not the Node, though its source is an address of the PodCIDR
        ((CLIENTS, NODES), {WIRE, HOST}),
        ((), set()),  # ranges are given, but none of them is valid
    ],
)
def test_source_ranges(at, ranges, served, local_only):
    """Packets from sources outside of the ranges are dropped, those of Pods as well."""
    frontend = on_balancer(at, local_only=local_only, sources=tuple(by_family[at.family] for by_family in ranges))
    for client in (WIRE, HOST, POD_1):
        asked = at.asks(client, at.balancer, 80)
        if client in served:
            assert journeys(at, frontend, here(at.pod_2)).converse(client, asked).place == POD_2
        else:
            assert journeys(at, frontend, here(at.pod_2)).send(client, asked).dropped


@pytest.mark.parametrize("local_only", [False, True])
def test_source_ranges_with_pods(at, local_only):
    frontend = on_balancer(at, local_only=local_only, sources=(PODS[at.family],))
    state = cluster(at, frontend, elsewhere(at.near_pod), here(at.pod_2))
    seen = answered_by_each(state, POD_1, at.asks(POD_1, at.balancer, 80))
    assert [found.place for found in seen] == [TUNNEL, POD_2]


def test_source_ranges_of_a_service_without_endpoints(at):
    """Allowed sources are refused because there is no endpoint; packets of others are dropped as always."""
    frontend = on_balancer(at, sources=(CLIENTS[at.family], NODES[at.family]))
    assert journeys(at, frontend).send(WIRE, at.asks(WIRE, at.balancer, 80)).refused
    assert journeys(at, frontend).send(HOST, at.asks(HOST, at.balancer, 80)).refused
    assert journeys(at, frontend).send(POD_1, at.asks(POD_1, at.balancer, 80)).dropped


# An endpoint that connects to its own Service -----------------------------------------------------------------------


def test_a_pod_that_is_its_own_endpoint_sees_the_gateway(at):
    """A Pod drops a packet from its own address; and its reply must come back to the switch."""
    for frontend, address, port in (
        (on_cluster_ip(at), at.service, 80),
        (on_cluster_ip(at, local_only=True), at.service, 80),
        *from_outside(at),
        *from_outside(at, local_only=True),
    ):
        seen = journeys(at, frontend, here(at.pod_1)).converse(POD_1, at.asks(POD_1, address, port))
        assert (seen.place, seen.client, seen.endpoint) == (POD_1, at.gateway, (at.pod_1, 8080))


def test_a_pod_to_its_own_address_gets_its_packet_back(at):
    """Usually such packets do not leave the Pod; if they do, they come back unchanged."""
    asked = Ends(at.pod_1, 40000, at.pod_1, 8080)
    found = journeys(at, on_cluster_ip(at), here(at.pod_1)).send(POD_1, asked)
    assert (found.place, found.ends) == (POD_1, asked)


# Endpoints outside of the Pod network: other Nodes (hostNetwork), and machines outside ------------------------------


@pytest.mark.parametrize("client", [POD_1, HOST])
def test_an_endpoint_outside_sees_the_node(at, client):
    """Design note 000, "Endpoint is hostnetwork mode": it could not reply to a Pod or to the gateway."""
    state = cluster(at, on_cluster_ip(at), elsewhere(at.other_node), elsewhere(at.outside))
    seen = answered_by_each(state, client, at.asks(client, at.service, 80))
    assert [(found.place, found.client, found.endpoint[0]) for found in seen] == [
        (WIRE, at.node, at.other_node),
        (WIRE, at.node, at.outside),
    ]
    assert {found.ends.source_port in range(*RESERVED.services) for found in seen} == {True}


def test_node_port_and_external_address_with_an_endpoint_outside(at):
    for frontend, address, port in from_outside(at):
        by_host = at.host_node_port if frontend.reach is Reach.NODE_PORT else address
        state = cluster(at, frontend, elsewhere(at.other_node), elsewhere(at.outside))
        for client, where in ((WIRE, address), (POD_1, address), (HOST, by_host)):
            seen = answered_by_each(state, client, at.asks(client, where, port))
            assert {(found.place, found.client) for found in seen} == {(WIRE, at.node)}


@pytest.mark.parametrize("mode", TrafficMode)
def test_masqueraded_pods_and_clients_of_services_use_different_ports(at, mode):
    """The server sees the Node IP for both; each gets its own replies."""
    way = journeys(at, on_cluster_ip(at), elsewhere(at.outside), mode=mode)
    by_service = way.converse(POD_1, at.asks(POD_1, at.service, 80))
    directly = way.converse(POD_2, at.asks(POD_2, at.outside, 8080))
    assert (by_service.client, directly.client) == (at.node, at.node)
    assert by_service.ends.source_port != directly.ends.source_port
