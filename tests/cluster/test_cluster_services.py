"""What a Node serves of a Service: one test for each rule of a Service proxy."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from api_objects import HTTP, NODE, endpoint, service, slice_of
from served_services import BALANCED, NODE_PORT, frontend_names, frontends, served, served_with_problems

from windlass.cluster.clusters import decode
from windlass.cluster.services import serve
from windlass.model.families import Family
from windlass.model.services import Frontend, Protocol, Reach

IPV4_ONLY = replace(NODE, families=(Family.IPV4,))
DUAL = {"clusterIPs": ["10.96.0.10", "fd00:96::10"]}


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
    assert frontend_names(served(service(clusterIPs=None, clusterIP="10.96.0.10"))) == ["10.96.0.10:80"]


def test_both_families_by_cluster_ips():
    one = served(service(**DUAL))
    assert one.cluster_ips == (ip_address("10.96.0.10"), ip_address("fd00:96::10"))
    assert [(port.family, len(port.frontends)) for port in one.ports] == [(Family.IPV4, 1), (Family.IPV6, 1)]


def test_a_family_that_the_node_lacks_is_left_out():
    assert frontend_names(served(service(**DUAL, externalIPs=["2001:db8::1"]), node=IPV4_ONLY)) == ["10.96.0.10:80"]


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
    assert frontend_names(one) == ["10.96.0.10:53", "node:30053"] * 3


# Frontends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
def test_a_node_port_in_each_family(kind):
    one = served(service(type=kind, ports=[NODE_PORT], **DUAL))
    assert [frontends(one, number)[1] for number in (0, 1)] == [Frontend(Reach.NODE_PORT, None, 30080)] * 2


def test_a_node_port_of_a_cluster_ip_service_is_ignored():
    assert frontend_names(served(service(ports=[NODE_PORT]))) == ["10.96.0.10:80"]


@pytest.mark.parametrize("none", [0, None])
def test_a_load_balancer_may_have_no_node_port(none):
    one = service(type="LoadBalancer", ports=[HTTP | {"nodePort": none}], ingress=[{"ip": "192.0.2.1"}])
    assert frontend_names(served(one)) == ["10.96.0.10:80", "192.0.2.1:80"]


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
    assert frontend_names(served(service(**BALANCED, ingress=[ingress]))) == ["10.96.0.10:80", "node:30080", *expected]


def test_a_load_balancer_address_of_another_type_is_ignored():
    assert frontend_names(served(service(type="NodePort", ingress=[{"ip": "192.0.2.1"}]))) == ["10.96.0.10:80"]


def test_external_ips_of_any_type():
    one = served(service(externalIPs=["192.0.2.7", "2001:db8::7"], **DUAL))
    assert frontends(one, 0)[1] == Frontend(Reach.EXTERNAL, ip_address("192.0.2.7"), 80)
    assert frontends(one, 1)[1] == Frontend(Reach.EXTERNAL, ip_address("2001:db8::7"), 80)


def test_an_address_that_is_given_twice_is_one_frontend():
    one = service(**BALANCED, externalIPs=["192.0.2.1", "192.0.2.1", "10.96.0.10"], ingress=[{"ip": "192.0.2.1"}] * 2)
    assert frontend_names(served(one)) == ["10.96.0.10:80", "node:30080", "192.0.2.1:80"]


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
