"""SCTP with a switch in user space, packet by packet: as if connection tracking knew its ports.

Each test is held twice: to a switch that knows SCTP by addresses alone (Open vSwitch before 3.2), where it would fail
without `pipeline.sctp`, and to one that knows its ports, where that must do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journeys import HOST, TUNNEL, WIRE, Journeys, Place
from msgspec import structs
from node_states import BOTH, modes, over_sctp, services, serving_cluster, small_cluster
from packets import Ends, Switch
from program_flows import flows_of
from service_cases import (
    NODE_PORT,
    POD_1,
    POD_2,
    Known,
    cluster,
    elsewhere,
    here,
    on_balancer,
    on_cluster_ip,
    on_node_port,
)

from windlass.model.families import IPAddress
from windlass.model.nodes import TrafficMode, mac_for
from windlass.model.policies import UNKNOWN_SUBJECT, NodePolicies, PodPolicies, PodPolicy
from windlass.model.services import Endpoint, Frontend, Reach
from windlass.openflow.fields import (
    ETH_DST,
    ETH_SRC,
    ICMP,
    ICMPV6,
    IN_PORT,
    IP_FRAG,
    IP_PROTO,
    LOCAL_PORT,
    SCTP,
    TCP_FLAGS,
    mac,
)
from windlass.pipeline.datapaths import datapath_of, longest_path, violations
from windlass.pipeline.exhaustion import POOLS
from windlass.pipeline.tracking import POD_ZONE
from windlass.program import program

LATER_FRAGMENT = 3
ANOTHER_PORT = 9090  # of an endpoint: 8080 is that of the first, 80 and 30080 are those of the Service
SWITCHES = {"by addresses": (SCTP,), "with ports": ()}


@pytest.fixture(params=SWITCHES)
def portless(request: pytest.FixtureRequest) -> Collection[int]:
    return SWITCHES[request.param]


@pytest.fixture
def net(at: Known, portless: Collection[int]) -> Callable[..., Journeys]:
    """A Node with one Service."""

    def made(frontend: Frontend, *endpoints: Endpoint, mode: TrafficMode = TrafficMode.ENCAP) -> Journeys:
        return Journeys(over_sctp(cluster(at, frontend, *endpoints, mode=mode)), portless)

    return made


def asks(at: Known, client: Place, to: IPAddress, port: int, source_port: int = 40000) -> Ends:
    return at.asks(client, to, port, SCTP, source_port)


# One connection ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", TrafficMode)
@pytest.mark.parametrize("client", [POD_1, HOST])
def test_a_cluster_ip(at, net, client, mode):
    """Whatever the endpoint's port, the client gets replies from the Service port (`converse` checks that)."""
    endpoints = (here(at.pod_2), elsewhere(at.far_pod, ANOTHER_PORT), elsewhere(at.other_node, ANOTHER_PORT))
    for bucket, endpoint in enumerate(endpoints):
        asked = asks(at, client, at.service, 80)
        seen = net(on_cluster_ip(at), *endpoints, mode=mode).converse(client, asked, bucket)
        assert seen.endpoint == (endpoint.address, endpoint.port)
        assert seen.client == (at.node if endpoint.address == at.other_node else asked.source)


def test_which_source_an_endpoint_sees(at, net):
    """The same as with other protocols."""
    cluster_ip, node_port, local_only = on_cluster_ip(at), on_node_port(), on_node_port(local_only=True)
    by_host = at.host_node_port
    for client, frontend, address, port, endpoint, place, seen_as in (
        (POD_1, cluster_ip, at.service, 80, here(at.pod_1), POD_1, at.gateway),
        (POD_1, cluster_ip, at.service, 80, here(at.node), HOST, at.pod_1),
        (HOST, cluster_ip, at.service, 80, here(at.node), HOST, at.virtual_client),
        (HOST, node_port, by_host, NODE_PORT, here(at.node), HOST, at.virtual_client),
        (HOST, node_port, by_host, NODE_PORT, here(at.pod_2), POD_2, at.gateway),
        (WIRE, node_port, at.node, NODE_PORT, here(at.pod_2), POD_2, at.gateway),
        (WIRE, node_port, at.node, NODE_PORT, elsewhere(at.near_pod), TUNNEL, at.gateway),
        (WIRE, node_port, at.node, NODE_PORT, here(at.node), HOST, at.virtual_client),
        (WIRE, node_port, at.node, NODE_PORT, elsewhere(at.other_node), WIRE, at.node),
        (WIRE, local_only, at.node, NODE_PORT, here(at.pod_2), POD_2, at.client),
        (WIRE, local_only, at.node, NODE_PORT, here(at.node), HOST, at.client),
        (WIRE, on_balancer(at), at.balancer, 80, here(at.pod_2), POD_2, at.gateway),
        (WIRE, on_balancer(at, local_only=True), at.balancer, 80, here(at.node), HOST, at.client),
        (POD_1, node_port, at.node, NODE_PORT, here(at.pod_2), POD_2, at.gateway),
        (POD_1, node_port, at.node, NODE_PORT, here(at.node), HOST, at.virtual_client),
    ):
        seen = net(frontend, endpoint).converse(client, asks(at, client, address, port))
        assert (seen.place, seen.client, seen.endpoint) == (place, seen_as, (endpoint.address, endpoint.port))


def test_a_service_without_endpoints(at, net):
    assert net(on_cluster_ip(at)).send(POD_1, asks(at, POD_1, at.service, 80)).refused
    assert net(on_cluster_ip(at), here(at.pod_2)).send(POD_1, asks(at, POD_1, at.service, 81)).refused
    assert net(on_node_port()).send(WIRE, asks(at, WIRE, at.node, NODE_PORT)).refused
    elsewhere_only = net(on_node_port(local_only=True), elsewhere(at.near_pod))
    assert elsewhere_only.send(WIRE, asks(at, WIRE, at.node, NODE_PORT)).dropped


@given(mode=modes, service=services(7), portless=st.sampled_from([(), (SCTP,)]))
@settings(max_examples=40)
def test_a_served_client_gets_the_reply_from_the_address_it_connected_to(mode, service, portless):
    """For any Service; each connection has its own client port."""
    state = over_sctp(replace(small_cluster(mode, *BOTH), services={service.key: service}))
    way = Journeys(state, portless)
    (served,) = state.services.values()
    source_port = 40000
    for port in served.ports:
        at = Known(port.family)
        for frontend in port.frontends:
            address = frontend.address or at.node
            for client in (POD_1, HOST if frontend.reach is Reach.CLUSTER_IP else WIRE):
                for bucket in range(len(port.endpoints)):
                    source_port += 1
                    asked = asks(at, client, address, frontend.port, source_port)
                    if way.send(client, asked, bucket=bucket).place is not None:
                        way.converse(client, asked, bucket)


# Several at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [POD_1, HOST])
def test_connections_of_one_client_stay_separate(at, net, client):
    """Each keeps the endpoint that was chosen for it, and continues beside the others."""
    way = net(on_cluster_ip(at), here(at.pod_2), elsewhere(at.near_pod, ANOTHER_PORT), elsewhere(at.other_node))
    all_asked = [asks(at, client, at.service, 80, source_port) for source_port in range(40000, 40006)]
    first = [way.converse(client, asked, bucket) for bucket, asked in enumerate(all_asked)]
    assert len({seen.endpoint for seen in first}) == 3
    again = [way.converse(client, asked) for asked in all_asked]
    assert [seen.ends for seen in again] == [seen.ends for seen in first]


def test_two_frontends_of_one_address_stay_separate(at, portless):
    """A connection stores the Service port."""
    state = cluster(at, on_cluster_ip(at), here(at.pod_2))
    (service,) = state.services.values()
    (port,) = service.ports
    frontends = (*port.frontends, structs.replace(port.frontends[0], port=81))
    service = structs.replace(service, ports=(structs.replace(port, frontends=frontends),))
    way = Journeys(over_sctp(replace(state, services={service.key: service})), portless)
    for source_port, asked_port in ((40000, 80), (40001, 81)):
        way.converse(POD_1, asks(at, POD_1, at.service, asked_port, source_port))


@pytest.mark.parametrize("mode", TrafficMode)
def test_pods_leave_as_their_node(at, net, mode):
    """Two Pods and a client of a Service connect to the same server outside: their ports distinguish them."""
    way = net(on_cluster_ip(at), elsewhere(at.outside), mode=mode)
    seen = [
        way.converse(POD_1, asks(at, POD_1, at.outside, 8080, 40000)),
        way.converse(POD_2, asks(at, POD_2, at.outside, 8080, 40001)),
        way.converse(POD_1, asks(at, POD_1, at.service, 80, 40002)),
    ]
    assert [(found.place, found.ends) for found in seen] == [
        (WIRE, Ends(at.node, source_port, at.outside, 8080, SCTP)) for source_port in (40000, 40001, 40002)
    ]


@pytest.mark.parametrize("mode", TrafficMode)
def test_a_server_that_connects_back_with_the_same_port(at, net, mode):
    """A Pod connects to a NodePort of another Node whose endpoint is the Pod's own Node: the port stays the same."""
    way = net(on_cluster_ip(at), mode=mode)
    asked = asks(at, POD_1, at.other_node, NODE_PORT)
    for _ in range(2):
        assert way.converse(POD_1, asked).ends == asked._replace(source=at.node)
        back = Ends(at.other_node, 40000, at.node, 7106, SCTP)
        found = way.send(WIRE, back)
        assert (found.place, found.ends) == (HOST, back)


def test_two_pods_that_are_clients_of_each_other(at, net):
    """Both listen on a port that they also use as clients: both directions have the same zone."""
    way = net(on_cluster_ip(at))
    for asked in (
        Ends(at.pod_1, 40000, at.pod_2, 3868, SCTP),
        Ends(at.pod_1, 3868, at.pod_2, 3868, SCTP),
    ):
        assert way.converse(POD_1, asked).ends == asked
    back = Ends(at.pod_2, 41000, at.pod_1, 3868, SCTP)
    assert way.converse(POD_2, back).ends == back


def test_a_client_port_equal_to_the_service_port(at, net):
    """A port number does not show to which end it belongs."""
    for frontend, client, address, port in (
        (on_cluster_ip(at), POD_1, at.service, 80),
        (on_node_port(), WIRE, at.node, NODE_PORT),
    ):
        way = net(frontend, here(at.pod_2), here(at.node))
        for source_port in (8080, 80, NODE_PORT):
            for bucket in (0, 1):
                way.converse(client, asks(at, client, address, port, source_port), bucket)


def test_a_client_stays_with_its_endpoint(at, portless):
    state = over_sctp(cluster(at, on_node_port(), here(at.pod_1), here(at.pod_2, ANOTHER_PORT)))
    (service,) = state.services.values()
    ports = tuple(structs.replace(port, affinity_seconds=10800) for port in service.ports)
    way = Journeys(replace(state, services={service.key: structs.replace(service, ports=ports)}), portless)
    all_asked = [asks(at, WIRE, at.node, NODE_PORT, source_port) for source_port in (40000, 40001, 40002)]
    seen = [way.converse(WIRE, asked, bucket) for bucket, asked in enumerate(all_asked)]
    assert len({found.endpoint for found in seen}) == 1
    assert {found.client for found in seen} == {at.gateway}


# Packets that find the entry of another connection ----------------------------------------------------------------


def rotated(port: int) -> int:
    """By one bit: the zone in which the source of that client is translated."""
    return (port << 1 | port >> 15) & 0xFFFF


@pytest.fixture
def guarded(at: Known, portless: Collection[int]) -> Journeys:
    """A policy allows nobody to connect to POD_2; POD_1 is the endpoint of a Service."""
    state = over_sctp(cluster(at, on_cluster_ip(at), here(at.pod_1)))
    nobody = PodPolicies(ingress=PodPolicy(UNKNOWN_SUBJECT))
    return Journeys(replace(state, policies=NodePolicies(pods={"default/web-2": nobody})), portless)


@pytest.mark.parametrize("by_service", [False, True])
def test_a_server_reaches_no_other_port_of_its_client(at, guarded, by_service):
    """Neither from the port of the client, as if it replied, nor at a port whose zone has other entries."""
    address, port = (at.service, 80) if by_service else (at.pod_1, 8080)
    asked = asks(at, POD_2, address, port)
    guarded.converse(POD_2, asked)
    for source_port, to in ((40000, 22), (8080, 22), (8080, POD_ZONE), (POD_ZONE, 22), (POD_ZONE, POD_ZONE)):
        assert guarded.send(POD_1, Ends(at.pod_1, source_port, at.pod_2, to, SCTP)).place is None, (source_port, to)
    guarded.converse(POD_2, asked)


def test_a_server_outside_reaches_no_other_port_of_its_client(at, guarded):
    """At the Node IP, where the client's source is translated."""
    asked = asks(at, POD_2, at.outside, 8080)
    guarded.converse(POD_2, asked)
    for source_port, to in ((8080, rotated(40000)), (40000, rotated(40000)), (40000, 22), (8080, POD_ZONE)):
        found = guarded.send(WIRE, Ends(at.outside, source_port, at.node, to, SCTP))
        assert found.place in (None, HOST), (source_port, to)
    guarded.converse(POD_2, asked)


# What it takes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "endpoint", "first", "later"),
    [(POD_1, "Pod", (3, 5), (2, 3)), (POD_1, "outside", (4, 6), (3, 4)), (WIRE, "Pod", (5, 7), (4, 5))],
)
def test_what_a_connection_costs(at, net, client, endpoint, first, later):
    """In ct actions and passes through the datapath: one more than for TCP, from the wire two more."""
    frontend, address, port = (
        (on_node_port(), at.node, NODE_PORT) if client == WIRE else (on_cluster_ip(at), at.service, 80)
    )
    way = net(frontend, here(at.pod_2) if endpoint == "Pod" else elsewhere(at.outside))
    asked = asks(at, client, address, port)
    (begun, *_) = way.send(client, asked).trips
    assert (begun.tracked, begun.passes) == first
    way.converse(client, asked)
    (known, *_) = way.send(client, asked).trips
    assert (known.tracked, known.passes) == later


@pytest.mark.parametrize("mode", TrafficMode)
def test_no_packet_recirculates_more_than_six_times(mode):
    state = over_sctp(serving_cluster(mode, *BOTH))
    whole = program(state)
    groups = [group for part in whole.values() for group in part.groups]
    flows = [flow for _, flow in flows_of(whole)]
    assert longest_path(flows, {group.identity: [bucket.actions for bucket in group.buckets] for group in groups}) == 6
    assert list(violations(datapath_of(state.node), flows, groups)) == []


# What is not ours --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", TrafficMode)
def test_packets_of_the_host_stay_with_the_host(at, net, mode):
    """Packets from the wire are looked up, because their ports tell nothing; what the host sends leaves unchanged."""
    way = net(on_node_port(), here(at.pod_2), mode=mode)
    served = Ends(at.client, 40000, at.node, 2905, SCTP)
    asked = Ends(at.node, 40000, at.client, 2905, SCTP)
    for _ in range(2):
        for arrives in (served, asked.back):
            found = way.send(WIRE, arrives)
            assert (found.place, found.ends, found.trips[0].out[0][0]) == (HOST, arrives, LOCAL_PORT)
        for leaves in (served.back, asked):
            found = way.send(HOST, leaves)
            assert (found.place, found.ends) == (WIRE, leaves)


def test_fragments_are_not_tracked(at, portless):
    """Later fragments have no ports. They pass between Pods and to the host; with a translated source they cannot."""
    switch = Switch(program(over_sctp(small_cluster(TrafficMode.ENCAP, at.family))), portless)
    for place, source, to, out in (
        (POD_1, at.pod_1, at.pod_2, [POD_2.port]),
        (WIRE, at.client, at.node, [LOCAL_PORT]),
        (POD_1, at.pod_1, at.outside, []),
    ):
        frame = {IN_PORT: place.port, ETH_SRC: mac(mac_for(source)), IP_FRAG: LATER_FRAGMENT}
        frame[ETH_DST] = mac("02:00:0a:b0:19:0b")
        trip = switch.send({**Ends(source, 0, to, 0, SCTP).fields, **frame})
        assert (trip.tracked, [port for port, _ in trip.out]) == (0, out)


@given(mode=modes)
def test_the_kernel_datapath_has_none_of_these_flows(mode):
    """In user space they match SCTP only. Other differences are ICMP errors (scenario services/path-mtu), and TCP
    connections after a restart (test_unknown_connections).
    """
    state = small_cluster(mode, *BOTH)
    kernel = {flow for _, flow in flows_of(program(state))}
    userspace = {flow for _, flow in flows_of(program(over_sctp(state)))}
    exhausted = {pool.flow() for pool in POOLS}  # the kernel drops those by itself
    errors = {IP_PROTO(ICMP), IP_PROTO(ICMPV6)}
    others = {*errors, TCP_FLAGS(0, 2)}
    different = {flow for flow in (kernel ^ userspace) - exhausted if not others & {*flow.match}}
    assert all(IP_PROTO(SCTP) in flow.match for flow in different)
    assert different
