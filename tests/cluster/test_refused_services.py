"""What a Node does not serve of a Service, the sentence about it, and what it still serves."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from api_objects import HTTP, NODE, endpoint, service, slice_of
from hypothesis import given, settings
from hypothesis import strategies as st
from served_services import BALANCED, NODE_PORT, frontend_names, served, served_with_problems

from windlass.cluster.objects import Malformed, Metadata, ServiceCIDR, ServiceCIDRSpec, ServiceSpec
from windlass.cluster.services import serve, service_networks
from windlass.model.families import Family
from windlass.model.nodes import OperatingSystem
from windlass.model.services import Reach

WINDOWS = replace(NODE, families=(Family.IPV4,), os=OperatingSystem.WINDOWS)
REST = "the rest of the Service is served"


@pytest.mark.parametrize(
    ("spec", "sentence", "left"),
    [
        ({"ports": [{"port": 0}, HTTP]}, "spec.ports[0].port: 0 is outside 1-65535", ["10.96.0.10:80"]),
        (
            {"ports": [HTTP, {"name": "b", "port": 65536}]},
            "spec.ports[1].port: 65536 is outside 1-65535",
            ["10.96.0.10:80"],
        ),
        (
            {"ports": [HTTP, {"name": "b", "port": 80}]},
            "spec.ports[1].port: 80/TCP is listed twice, the first is used",
            ["10.96.0.10:80"],
        ),
        (
            {"ports": [HTTP, {"name": "http", "port": 81}]},
            "spec.ports[1].name: 'http' is listed twice for TCP, the first is used",
            ["10.96.0.10:80"],
        ),
        (
            {"ports": [HTTP, {"name": "b", "port": 81, "protocol": "QUIC"}]},
            "spec.ports[1].protocol: 'QUIC' is not one of TCP, UDP, SCTP",
            ["10.96.0.10:80"],
        ),
        (
            {"type": "NodePort", "ports": [HTTP | {"nodePort": 80}]},
            "spec.ports[0].nodePort: 80 is outside 30000-32767",
            ["10.96.0.10:80"],
        ),
        (
            {"type": "NodePort", "ports": [NODE_PORT, {"name": "b", "port": 81, "nodePort": 30080}]},
            "spec.ports[1].nodePort: 30080/TCP is listed twice, the first is used",
            ["10.96.0.10:80", "node:30080", "10.96.0.10:81"],
        ),
        (
            {"clusterIPs": ["10.96.0.300"], "type": "NodePort", "ports": [NODE_PORT]},
            "spec.clusterIPs[0]: '10.96.0.300' is not an IP address",
            ["node:30080"],
        ),
        (
            {"clusterIPs": ["172.16.1.9"], "externalIPs": ["192.0.2.7"]},
            "spec.clusterIPs[0]: 172.16.1.9 is inside 172.16.1.0/24, the PodCIDR of this Node",
            ["192.0.2.7:80"],
        ),
        (
            {"clusterIPs": ["fd00:96::10"], "ipFamilies": ["IPv4"], "externalIPs": ["192.0.2.7"]},
            "spec.clusterIPs[0]: fd00:96::10 is not IPv4, but spec.ipFamilies[0] is",
            ["192.0.2.7:80"],
        ),
        (
            {"clusterIPs": ["10.96.0.10", "10.96.0.11"]},
            "spec.clusterIPs[1]: 10.96.0.11 is the second IPv4 address, one is used",
            ["10.96.0.10:80"],
        ),
        (
            {"externalIPs": ["172.16.1.9", "192.0.2.7"]},
            "spec.externalIPs[0]: 172.16.1.9 is inside 172.16.1.0/24, the PodCIDR of this Node",
            ["10.96.0.10:80", "192.0.2.7:80"],
        ),
        ({"externalIPs": ["here"]}, "spec.externalIPs[0]: 'here' is not an IP address", ["10.96.0.10:80"]),
        ({"externalIPs": ["127.0.0.1"]}, "spec.externalIPs[0]: 127.0.0.1 is a loopback address", ["10.96.0.10:80"]),
        (
            {"externalIPs": ["2001:db8::7"]},
            "spec.externalIPs[0]: 2001:db8::7 is not of a family of the Service",
            ["10.96.0.10:80"],
        ),
    ],
)
def test_the_rest_of_a_service_with_a_mistake_is_served(spec, sentence, left):
    found, sentences = served_with_problems(service(**spec))
    assert sentences == [f"{sentence}; {REST}"]
    assert frontend_names(found) == left
    assert found.cluster_ips == tuple({ip_address(door.rpartition(":")[0]) for door in left if door.startswith("10.")})


def test_a_load_balancer_address_in_the_pod_cidr():
    found, sentences = served_with_problems(service(**BALANCED, ingress=[{"ip": "172.16.1.9"}]))
    assert frontend_names(found) == ["10.96.0.10:80", "node:30080"]
    assert sentences[0].startswith("status.loadBalancer.ingress[0].ip: 172.16.1.9 is inside")


def test_an_unknown_type_is_served_as_cluster_ip():
    found, sentences = served_with_problems(service(type="Magic", ports=[NODE_PORT]))
    assert frontend_names(found) == ["10.96.0.10:80"]
    assert sentences == [
        "spec.type: 'Magic' is not one of ClusterIP, NodePort, LoadBalancer; it is served as ClusterIP"
    ]


@pytest.mark.parametrize(
    ("port", "sentence"),
    [(80, "80 is outside 30000-32767"), (30080, "30080 is a NodePort of the Service itself")],
)
def test_an_unusable_health_check_port(port, sentence):
    found, sentences = served_with_problems(
        service(**BALANCED, externalTrafficPolicy="Local", healthCheckNodePort=port)
    )
    assert found.health_check_port == 0
    assert sentences == [f"spec.healthCheckNodePort: {sentence}; its health checks get no answer"]


def test_the_range_of_node_ports_is_configured():
    assert frontend_names(
        served_with_problems(service(**BALANCED), node=replace(NODE, node_ports=range(40000, 40100)))[0]
    ) == ["10.96.0.10:80"]
    wide = service(type="NodePort", ports=[HTTP | {"nodePort": 8443}])
    assert "node:8443" in frontend_names(served(wide, node=replace(NODE, node_ports=range(1, 65536))))


def test_sctp_on_a_windows_node_is_a_problem_and_the_rest_is_served():
    ports = [HTTP, {"name": "sctp", "port": 80, "protocol": "SCTP"}]
    found, sentences = served_with_problems(service(ports=ports), node=WINDOWS)
    assert [port.name for port in found.ports] == ["http"]
    assert sentences == [f"spec.ports[1].protocol: the datapath of a Windows Node drops SCTP; {REST}"]
    assert [port.name for port in served(service(ports=ports)).ports] == ["http", "sctp"]


def test_a_service_without_ports_still_owns_its_cluster_ip():
    one = served(service(ports=None))
    assert (one.ports, one.cluster_ips) == ((), (ip_address("10.96.0.10"),))


def test_null_is_absent_everywhere():
    spec = {field: None for field in ServiceSpec.__struct_encode_fields__ if field != "clusterIPs"}
    assert served(service(**spec)) == served(service(ports=None))


# ServiceCIDRs -----------------------------------------------------------------------------------------------------


def test_service_networks_are_those_of_all_service_cidrs():
    cidrs = {
        "kubernetes": ServiceCIDR(Metadata("kubernetes"), ServiceCIDRSpec(("10.96.0.0/16", "fd00:96::/108"))),
        "more": ServiceCIDR(Metadata("more"), ServiceCIDRSpec(("10.97.0.0/16", "10.96.0.0/16", "many"))),
        "empty": ServiceCIDR(Metadata("empty")),
    }
    networks, problems = service_networks(cidrs)
    assert networks == tuple(map(ip_network, ("10.96.0.0/16", "fd00:96::/108", "10.97.0.0/16")))
    assert [str(problem) for problem in problems] == [
        "ServiceCIDR more: spec.cidrs[2]: 'many' is not a CIDR; the others are used"
    ]


# Properties -------------------------------------------------------------------------------------------------------

texts = st.sampled_from(
    ["", "None", "10.96.0.10", "10.96.0.300", "fd00::1", "172.16.1.9", "127.0.0.1", "192.0.2.1", "10.0.0.0/8", "x"]
)
numbers = st.sampled_from([None, -1, 0, 1, 80, 30080, 32767, 32768, 65535, 65536, 2**70])
lists = st.none() | st.lists(texts, max_size=3)
names = st.sampled_from(
    [None, "", "http", "ClusterIP", "NodePort", "LoadBalancer", "Local", "Cluster", "ClientIP", "x"]
)
protocols = st.sampled_from([None, "TCP", "UDP", "SCTP", "tcp"])
service_ports = st.fixed_dictionaries({"port": numbers, "name": names, "protocol": protocols, "nodePort": numbers})
specs = st.fixed_dictionaries(
    {},
    optional={
        "type": names,
        "clusterIPs": lists,
        "clusterIP": texts,
        "ipFamilies": st.none() | st.lists(st.sampled_from(["IPv4", "IPv6", "IPv5"]), max_size=2),
        "ports": st.none() | st.lists(service_ports, max_size=3),
        "externalIPs": lists,
        "externalTrafficPolicy": names,
        "internalTrafficPolicy": names,
        "sessionAffinity": names,
        "sessionAffinityConfig": st.none() | st.fixed_dictionaries({"clientIP": st.just({"timeoutSeconds": -3})}),
        "loadBalancerSourceRanges": lists,
        "healthCheckNodePort": numbers,
    },
)


@given(specs, st.lists(st.fixed_dictionaries({"ip": texts, "ipMode": names}), max_size=3))
@settings(deadline=None, max_examples=200)
def test_every_service_is_served_or_reported(spec, ingress):
    try:
        one = service(**spec, ingress=ingress)
    except Malformed:
        return
    found, problems = serve(one, [slice_of(endpoint("172.16.2.5"))], NODE)
    assert all(str(problem).startswith("Service default/web: ") and "; " in str(problem) for problem in problems)
    if found is None:
        return
    claims = []
    for port in found.ports:
        for door in port.frontends:
            assert 1 <= door.port <= 65535
            assert (door.address is None) == (door.reach is Reach.NODE_PORT)
            assert door.address is None or door.address.version == port.family.value
            assert door.address is None or door.address not in NODE.pod_cidrs[port.family]
            assert door.sources is None or door.reach is Reach.EXTERNAL
            claims.append((port.family, port.protocol, door.address, door.port))
    assert len(claims) == len(set(claims))
    assert all(port.affinity_seconds in range(86401) for port in found.ports)
