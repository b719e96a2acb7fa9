"""What a Node serves of a Service: one test for each rule of a Service proxy."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from api_objects import HTTP, NODE, endpoint, service, slice_of
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.cluster import objects
from windlass.cluster.clusters import decode
from windlass.cluster.objects import Malformed, Metadata, ServiceCIDR, ServiceCIDRSpec, ServiceSpec
from windlass.cluster.services import serve, service_networks
from windlass.model.families import Family
from windlass.model.nodes import OperatingSystem
from windlass.model.services import Frontend, Protocol, Reach, ServedService

IPV4_ONLY = replace(NODE, families=(Family.IPV4,))
WINDOWS = replace(IPV4_ONLY, os=OperatingSystem.WINDOWS)
NODE_PORT = HTTP | {"nodePort": 30080}
BALANCED = {"type": "LoadBalancer", "ports": [NODE_PORT]}
DUAL = {"clusterIPs": ["10.96.0.10", "fd00:96::10"]}


def served(one: objects.Service, *slices: objects.EndpointSlice, node=NODE) -> ServedService:
    """The Service as it is served, which must have no problems."""
    found, problems = serve(one, slices, node)
    assert problems == []
    assert found is not None
    return found


def served_with_problems(one: objects.Service, *, node=NODE) -> tuple[ServedService, list[str]]:
    found, problems = serve(one, [], node)
    assert found is not None
    assert {problem.where for problem in problems} <= {"Service default/web"}
    return found, [problem.sentence for problem in problems]


def frontends(one: ServedService, number: int = 0) -> list[Frontend]:
    return list(one.ports[number].frontends)


def doors(one: ServedService) -> list[str]:
    return [f"{door.address or 'node'}:{door.port}" for port in one.ports for door in port.frontends]


# What is served ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"type": "ExternalName", "clusterIPs": None, "externalName": "example.org"},
        {"type": "ExternalName"},
        {"clusterIPs": ["None"]},
        {"clusterIP": "None", "clusterIPs": None},
        {"labels": {"service.kubernetes.io/service-proxy-name": "other"}},
        {"labels": {"service.kubernetes.io/service-proxy-name": ""}},
        {"labels": {"service.kubernetes.io/headless": ""}},  # even with a ClusterIP, as in kube-proxy
    ],
)
def test_external_name_headless_and_those_of_another_proxy_are_ignored(other):
    assert serve(service(**other), [slice_of(endpoint("172.16.2.5"))], NODE) == (None, [])


def test_a_cluster_ip():
    one = served(service(), slice_of(endpoint("172.16.2.5")))
    assert (one.key, one.cluster_ips) == ("default/web", (ip_address("10.96.0.10"),))
    assert frontends(one) == [Frontend(Reach.CLUSTER_IP, ip_address("10.96.0.10"), 80)]
    assert (one.ports[0].name, one.ports[0].protocol, one.ports[0].family) == ("http", Protocol.TCP, Family.IPV4)


def test_an_object_without_namespace_is_in_default():
    assert decode({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}).key == "default/web"


def test_the_old_cluster_ip_field_is_understood():
    assert doors(served(service(clusterIPs=None, clusterIP="10.96.0.10"))) == ["10.96.0.10:80"]


def test_both_families_by_cluster_ips():
    one = served(service(**DUAL))
    assert one.cluster_ips == (ip_address("10.96.0.10"), ip_address("fd00:96::10"))
    assert [(port.family, len(port.frontends)) for port in one.ports] == [(Family.IPV4, 1), (Family.IPV6, 1)]


def test_a_family_that_the_node_lacks_is_left_out():
    assert doors(served(service(**DUAL, externalIPs=["2001:db8::1"]), node=IPV4_ONLY)) == ["10.96.0.10:80"]


def test_a_service_without_a_family_of_the_node_is_a_problem():
    found, problems = serve(service(clusterIPs=["fd00:96::10"]), [], IPV4_ONLY)
    assert found is None
    assert [str(problem) for problem in problems] == [
        "Service default/web: spec.clusterIPs: fd00:96::10: this Node has IPv4 only; it is not served here"
    ]


def test_a_service_without_cluster_ip_is_a_problem():
    found, problems = serve(service(clusterIPs=None), [], NODE)
    assert found is None
    assert "gives each Service one; it is not served until then" in str(problems[0])


def test_tcp_udp_and_sctp_may_share_a_number():
    ports = [{"name": kind, "port": 53, "protocol": kind, "nodePort": 30053} for kind in ("TCP", "UDP", "SCTP")]
    one = served(service(type="NodePort", ports=ports))
    assert [port.protocol for port in one.ports] == [Protocol.TCP, Protocol.UDP, Protocol.SCTP]
    assert doors(one) == ["10.96.0.10:53", "node:30053"] * 3


# Frontends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
def test_a_node_port_in_each_family(kind):
    one = served(service(type=kind, ports=[NODE_PORT], **DUAL))
    assert [frontends(one, number)[1] for number in (0, 1)] == [Frontend(Reach.NODE_PORT, None, 30080)] * 2


def test_a_node_port_of_a_cluster_ip_service_is_ignored():
    assert doors(served(service(ports=[NODE_PORT]))) == ["10.96.0.10:80"]


@pytest.mark.parametrize("none", [0, None])
def test_a_load_balancer_may_have_no_node_port(none):
    one = service(type="LoadBalancer", ports=[HTTP | {"nodePort": none}], ingress=[{"ip": "192.0.2.1"}])
    assert doors(served(one)) == ["10.96.0.10:80", "192.0.2.1:80"]


@pytest.mark.parametrize(
    ("ingress", "expected"),
    [
        ({"ip": "192.0.2.1"}, ["192.0.2.1:80"]),
        ({"ip": "192.0.2.1", "ipMode": None}, ["192.0.2.1:80"]),
        ({"ip": "192.0.2.1", "ipMode": "VIP"}, ["192.0.2.1:80"]),
        ({"ip": "192.0.2.1", "ipMode": "Proxy"}, []),
        ({"hostname": "lb.example.org"}, []),
        ({"ip": "2001:db8::1"}, []),  # the load balancer translates to another family
    ],
)
def test_a_load_balancer_address_is_served_only_if_packets_keep_it(ingress, expected):
    assert doors(served(service(**BALANCED, ingress=[ingress]))) == ["10.96.0.10:80", "node:30080", *expected]


def test_a_load_balancer_address_of_another_type_is_ignored():
    assert doors(served(service(type="NodePort", ingress=[{"ip": "192.0.2.1"}]))) == ["10.96.0.10:80"]


def test_external_ips_of_any_type():
    one = served(service(externalIPs=["192.0.2.7", "2001:db8::7"], **DUAL))
    assert frontends(one, 0)[1] == Frontend(Reach.EXTERNAL, ip_address("192.0.2.7"), 80)
    assert frontends(one, 1)[1] == Frontend(Reach.EXTERNAL, ip_address("2001:db8::7"), 80)


def test_an_address_that_is_given_twice_is_one_frontend():
    one = service(**BALANCED, externalIPs=["192.0.2.1", "192.0.2.1", "10.96.0.10"], ingress=[{"ip": "192.0.2.1"}] * 2)
    assert doors(served(one)) == ["10.96.0.10:80", "node:30080", "192.0.2.1:80"]


# Source ranges ----------------------------------------------------------------------------------------------------


def sources(*ranges: str, **spec: object) -> dict[str, object]:
    one = service(
        **BALANCED | {"externalIPs": ["192.0.2.7"], "loadBalancerSourceRanges": list(ranges)} | spec,
        ingress=[{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}],
    )
    return {str(door.address): door.sources for port in served_with_problems(one)[0].ports for door in port.frontends}


def test_source_ranges_are_for_load_balancer_addresses_only():
    assert sources("198.51.100.0/24", "203.0.113.7/32") == {
        "10.96.0.10": None,
        "None": None,
        "192.0.2.1": (ip_network("198.51.100.0/24"), ip_network("203.0.113.7/32")),
        "192.0.2.7": None,
    }


def test_an_external_ip_that_is_also_the_load_balancers_keeps_the_ranges():
    assert sources("198.51.100.0/24", externalIPs=["192.0.2.1"])["192.0.2.1"] == (ip_network("198.51.100.0/24"),)


def test_source_ranges_of_the_other_family_are_ignored():
    found = sources("198.51.100.0/24", "2001:db8:1::/48", **DUAL)
    assert found["192.0.2.1"] == (ip_network("198.51.100.0/24"),)
    assert found["2001:db8::1"] == (ip_network("2001:db8:1::/48"),)


def test_ranges_of_only_the_other_family_allow_all_clients():
    """As in kube-proxy, for which each family is a Service of its own."""
    assert sources("198.51.100.0/24", **DUAL)["2001:db8::1"] is None


def test_spaces_and_host_bits_are_ignored():
    assert sources(" 198.51.100.7/24 ")["192.0.2.1"] == (ip_network("198.51.100.0/24"),)


@pytest.mark.parametrize("text", ["198.51.100.0/33", "198.51.100.0", "everybody", "", "198.51.100.0/255.255.255.0"])
def test_a_malformed_range_admits_no_client(text):
    one = service(**BALANCED, loadBalancerSourceRanges=[text], ingress=[{"ip": "192.0.2.1"}])
    found, sentences = served_with_problems(one)
    assert frontends(found)[2].sources == ()
    assert sentences == [f"spec.loadBalancerSourceRanges[0]: {text!r} is not a CIDR; it admits no client"]
    assert sources(text, "198.51.100.0/24")["192.0.2.1"] == (ip_network("198.51.100.0/24"),)


def test_without_ranges_all_clients_are_allowed():
    assert sources()["192.0.2.1"] is None


# Policies, affinity, health ---------------------------------------------------------------------------------------


def local_only(**spec: object) -> dict[Reach, bool]:
    one = service(**BALANCED | spec, ingress=[{"ip": "192.0.2.1"}])
    return {door.reach: door.local_only for door in frontends(served(one))}


def test_external_traffic_policy_local():
    expected = {Reach.CLUSTER_IP: False, Reach.NODE_PORT: True, Reach.EXTERNAL: True}
    assert local_only(externalTrafficPolicy="Local") == expected


def test_internal_traffic_policy_local_is_for_the_cluster_ip_only():
    expected = {Reach.CLUSTER_IP: True, Reach.NODE_PORT: False, Reach.EXTERNAL: False}
    assert local_only(internalTrafficPolicy="Local", externalTrafficPolicy="Cluster") == expected


def test_external_traffic_policy_local_of_a_cluster_ip_service_with_external_ips():
    one = served(service(externalIPs=["192.0.2.7"], externalTrafficPolicy="Local"))
    assert [door.local_only for door in frontends(one)] == [False, True]


@pytest.mark.parametrize("field", ["externalTrafficPolicy", "internalTrafficPolicy"])
def test_an_unknown_policy_counts_as_cluster(field):
    found, sentences = served_with_problems(service(**{field: "Nearby"}))
    assert not frontends(found)[0].local_only
    assert sentences == [f"spec.{field}: 'Nearby' is neither Cluster nor Local; it counts as Cluster"]


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        (None, 10800),
        ({"clientIP": None}, 10800),
        ({"clientIP": {"timeoutSeconds": None}}, 10800),
        ({"clientIP": {"timeoutSeconds": 1}}, 1),
        ({"clientIP": {"timeoutSeconds": 86400}}, 86400),
    ],
)
def test_session_affinity_has_a_timeout(config, seconds):
    one = served(service(sessionAffinity="ClientIP", sessionAffinityConfig=config))
    assert one.ports[0].affinity_seconds == seconds
    assert served(service(sessionAffinity="None", sessionAffinityConfig=config)).ports[0].affinity_seconds == 0


@pytest.mark.parametrize(("given", "counts"), [(0, 1), (-5, 1), (86401, 86400)])
def test_an_affinity_timeout_out_of_range_counts_as_the_nearest_limit(given, counts):
    config = {"clientIP": {"timeoutSeconds": given}}
    found, [sentence] = served_with_problems(service(sessionAffinity="ClientIP", sessionAffinityConfig=config))
    assert found.ports[0].affinity_seconds == counts
    assert sentence == (
        f"spec.sessionAffinityConfig.clientIP.timeoutSeconds: {given} is outside 1-86400; it counts as {counts}"
    )


def test_an_unknown_affinity_is_none():
    found, sentences = served_with_problems(service(sessionAffinity="Cookie"))
    assert found.ports[0].affinity_seconds == 0
    assert sentences == ["spec.sessionAffinity: 'Cookie' is neither ClientIP nor None; it counts as None"]


@pytest.mark.parametrize(
    ("kind", "policy", "port"),
    [
        ("LoadBalancer", "Local", 32000),
        ("LoadBalancer", "Cluster", 0),
        ("NodePort", "Local", 0),
        ("ClusterIP", "Local", 0),
    ],
)
def test_a_health_check_port_only_for_a_load_balancer_with_policy_local(kind, policy, port):
    spec = {"type": kind, "externalTrafficPolicy": policy, "healthCheckNodePort": 32000}
    assert served(service(**spec)).health_check_port == port


def health(*endpoints: dict[str, object], **spec: object) -> int:
    balanced = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000} | spec
    slices = [
        slice_of(*[one for one in endpoints if (":" in one["addresses"][0]) == (family == "IPv6")], family=family)
        for family in ("IPv4", "IPv6")
    ]
    return served(service(**balanced), *slices).ready_local_endpoints


def test_the_health_check_counts_ready_local_endpoints_only():
    ending = {"ready": False, "serving": True, "terminating": True}
    assert health(endpoint("172.16.1.5", "node-1"), endpoint("172.16.1.6", "node-1"), endpoint("172.16.2.5")) == 2
    assert health(endpoint("172.16.1.5", "node-1"), endpoint("172.16.1.6", "node-1", **ending)) == 1
    assert health(endpoint("172.16.1.6", "node-1", **ending)) == 0


def test_the_health_check_counts_a_pod_once():
    pods = endpoint("172.16.1.5", "node-1"), endpoint("fd00:172:16:1::5", "node-1")
    assert health(*pods, **DUAL) == 1
    ports = [{"name": "http", "port": 80}, {"name": "http", "port": 443, "protocol": "UDP"}]
    assert health(endpoint("172.16.1.5", "node-1"), ports=ports) == 1


# What cannot be served, and what still is -------------------------------------------------------------------------

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
def test_what_cannot_be_served_costs_nothing_else(spec, sentence, left):
    found, sentences = served_with_problems(service(**spec))
    assert sentences == [f"{sentence}; {REST}"]
    assert doors(found) == left
    assert found.cluster_ips == tuple({ip_address(door.rpartition(":")[0]) for door in left if door.startswith("10.")})


def test_a_load_balancer_address_in_the_pod_cidr():
    found, sentences = served_with_problems(service(**BALANCED, ingress=[{"ip": "172.16.1.9"}]))
    assert doors(found) == ["10.96.0.10:80", "node:30080"]
    assert sentences[0].startswith("status.loadBalancer.ingress[0].ip: 172.16.1.9 is inside")


def test_an_unknown_type_is_served_as_cluster_ip():
    found, sentences = served_with_problems(service(type="Magic", ports=[NODE_PORT]))
    assert doors(found) == ["10.96.0.10:80"]
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
    assert sentences == [f"spec.healthCheckNodePort: {sentence}; health checks of it get no answer"]


def test_the_range_of_node_ports_is_configured():
    assert doors(served_with_problems(service(**BALANCED), node=replace(NODE, node_ports=range(40000, 40100)))[0]) == [
        "10.96.0.10:80"
    ]
    wide = service(type="NodePort", ports=[HTTP | {"nodePort": 8443}])
    assert "node:8443" in doors(served(wide, node=replace(NODE, node_ports=range(1, 65536))))


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


# Laws -------------------------------------------------------------------------------------------------------------

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
def test_any_service_is_served_or_a_problem(spec, ingress):
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
