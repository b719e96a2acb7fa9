"""The oracle of `lab fuzz` follows Kubernetes' rules, and agrees with the Service scenarios of the repository."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
import yaml
from applied_documents import applied

from windlass.lab.fuzz import cluster_views, eligible_endpoints, oracle
from windlass.lab.fuzz.eligible_endpoints import EndpointLocation, OracleEndpoint, choice
from windlass.lab.fuzz.oracle import Client, Query
from windlass.lab.scenarios.objects import LabServicePort, ProbeOutcome
from windlass.model.families import Family

CLUSTER = """
{apiVersion: v1, kind: Node, metadata: {name: a, labels: {topology.kubernetes.io/zone: east}},
 spec: {podCIDRs: [172.16.1.0/24]},
 status: {addresses: [{type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: 10.9.0.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: b, labels: {topology.kubernetes.io/zone: west}},
 spec: {podCIDRs: [172.16.2.0/24]}, status: {addresses: [{type: InternalIP, address: 10.0.0.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-a, labels: {app: web}},
 spec: {nodeName: a, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]},
 status: {podIPs: [{ip: 172.16.1.10}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-b, labels: {app: web}},
 spec: {nodeName: b, containers: [{name: c, ports: [{name: http, containerPort: 8081}]}]},
 status: {podIPs: [{ip: 172.16.2.10}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: host-b, labels: {app: host}},
 spec: {nodeName: b, hostNetwork: true, containers: [{name: c, ports: [{name: http, containerPort: 9090}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: client-a}, spec: {nodeName: a}, status: {podIPs: [{ip: 172.16.1.20}]}}
---
{kind: ExternalHost, metadata: {name: out}, spec: {addresses: [10.3.0.3], ports: [{port: 8443}]}}
---
"""
POD, NODE, OUT = Client(pod="default/client-a"), Client(node="a"), Client(host="out")
BOTH = {"default/web-a", "default/web-b"}


def service(name="web", app="web", **spec):
    port = {"name": "http", "port": 80, "targetPort": "http", "nodePort": 30080}
    status = {"loadBalancer": {"ingress": spec.pop("ingress", [])}}
    made = {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "selector": {"app": app}, "ports": [port], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": made, "status": status}


def cluster(*more):
    documents = [*yaml.safe_load_all(CLUSTER), *more]
    return cluster_views.read(applied({}, [document for document in documents if document]))


def ask(found, client, address, port=80, protocol="TCP", via=""):
    return oracle.predict(found, Query(client, ip_address(address), port, protocol, via))


def slice_of(name, address, port):
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port}],
        "endpoints": [{"addresses": [address]}],
    }


@pytest.mark.parametrize(("address", "seen"), [("10.9.0.5", "10.9.0.1"), ("10.3.0.3", "10.0.0.1")])
@pytest.mark.parametrize("client", [POD, NODE, OUT])
def test_an_endpoint_outside_sees_the_nic_that_leads_to_it(client, address, seen):
    """Node a has 10.9.0.1 on its second NIC, in the network of one of the hosts."""
    near = {"kind": "ExternalHost", "metadata": {"name": "near"}, "spec": {"addresses": ["10.9.0.5"]}}
    near["spec"]["ports"] = [{"port": 8443}]
    found = cluster(near, service(), slice_of("web", address, 8443))
    assert ask(found, client, "10.0.0.1", 30080).seen == {seen}


# Endpoints -----------------------------------------------------------------------------------------------------

LOCAL = {"externalTrafficPolicy": "Local"}
VIP = {"ingress": [{"ip": "198.51.100.1"}], "externalIPs": ["203.0.113.1"]}
EXTERNAL = [
    ("10.0.0.1", 30080),
    ("198.51.100.1", 80),
    ("203.0.113.1", 80),
]  # a NodePort, a balancer's IP, an external IP


@pytest.mark.parametrize(
    ("client", "address", "port", "spec", "backends", "seen"),
    [
        # a ClusterIP: SNAT only when the source is not a local Pod, or on hairpin
        (POD, "10.96.0.1", 80, {}, BOTH, "Preserved"),
        (NODE, "10.96.0.1", 80, {}, BOTH, "172.16.1.1"),
        (POD, "10.96.0.1", 80, {"internalTrafficPolicy": "Local"}, {"default/web-a"}, "Preserved"),
        (NODE, "10.96.0.1", 80, {"internalTrafficPolicy": "Local"}, {"default/web-a"}, "172.16.1.1"),
        (
            Client(pod="default/web-a"),
            "10.96.0.1",
            80,
            {"internalTrafficPolicy": "Local"},
            {"default/web-a"},
            "172.16.1.1",
        ),
        # policy Cluster: all endpoints, with SNAT; the internal policy is for ClusterIPs only
        *(
            (client, *to, {"internalTrafficPolicy": "Local"}, BOTH, "172.16.1.1")
            for client in (POD, NODE)
            for to in EXTERNAL
        ),
        (OUT, "10.0.0.1", 30080, {}, BOTH, "172.16.1.1"),
        (OUT, "10.9.0.1", 30080, {}, BOTH, "172.16.1.1"),
        (OUT, "10.0.0.2", 30080, {}, BOTH, "172.16.2.1"),
        # policy Local, client from outside: local endpoints only, no SNAT
        (OUT, "10.0.0.1", 30080, LOCAL, {"default/web-a"}, "Preserved"),
        (OUT, "10.9.0.1", 30080, LOCAL, {"default/web-a"}, "Preserved"),
        # but all endpoints serve clients on the Node itself: a Pod without SNAT, the Node with it
        *((POD, *to, LOCAL, BOTH, "Preserved") for to in EXTERNAL),
        *((NODE, *to, LOCAL, BOTH, "172.16.1.1") for to in EXTERNAL[1:]),
        # another Node's NodePort is asked from outside, by the Node's address
        (POD, "10.0.0.2", 30080, LOCAL, {"default/web-b"}, "10.0.0.1"),
        (NODE, "10.0.0.2", 30080, LOCAL, {"default/web-b"}, "Preserved"),
        (POD, "10.0.0.2", 30080, {}, BOTH, "172.16.2.1"),
    ],
)
def test_which_backends_serve_and_which_client_address_they_see(client, address, port, spec, backends, seen):
    answer = ask(cluster(service(**VIP, **spec)), client, address, port)
    assert (answer.outcome, answer.backends, answer.seen) == (ProbeOutcome.CONNECTED, backends, {seen})


@pytest.mark.parametrize(
    ("client", "address", "port", "spec", "seen"),
    [
        (POD, "10.96.0.1", 80, {}, {"10.0.0.1"}),
        (NODE, "10.96.0.1", 80, {}, {"10.0.0.1"}),
        (OUT, "10.0.0.1", 30080, {}, {"10.0.0.1"}),
        (POD, "10.0.0.1", 30080, LOCAL, {"10.0.0.1"}),
        (OUT, "10.0.0.2", 30080, LOCAL, {"Preserved"}),
        (OUT, "10.0.0.2", 30080, {}, set()),  # masqueraded to the host itself: the source address is not specified
    ],
)
def test_an_endpoint_on_a_nodes_own_address_is_reached_as_the_node(client, address, port, spec, seen):
    answer = ask(cluster(service(app="host", **spec)), client, address, port)
    assert (answer.backends, answer.seen) == ({"default/host-b"}, seen)


@pytest.mark.parametrize(
    ("client", "address", "port", "outcome"),
    [
        (OUT, "10.0.0.1", 30080, ProbeOutcome.TIMEOUT),  # "Local policy with endpoints only elsewhere: DROP"
        (POD, "10.96.0.1", 80, ProbeOutcome.TIMEOUT),
        (POD, "10.96.0.1", 81, ProbeOutcome.REFUSED),  # "Unused ports of a live ClusterIP: reject"
        (OUT, "10.0.0.1", 30081, ProbeOutcome.REFUSED),  # not a NodePort: it stays on the host
        (POD, "10.0.0.1", 30080, ProbeOutcome.CONNECTED),
    ],
)
def test_without_a_local_endpoint(client, address, port, outcome):
    found = cluster(service(app="host", externalTrafficPolicy="Local", internalTrafficPolicy="Local"))
    assert ask(found, client, address, port).outcome is outcome


@pytest.mark.parametrize(("client", "address", "port"), [(POD, "10.96.0.1", 80), *((OUT, *to) for to in EXTERNAL[:1])])
def test_no_endpoint_anywhere_is_refused_whatever_the_policy(client, address, port):
    found = cluster(service(app="nobody", externalTrafficPolicy="Local", internalTrafficPolicy="Local"))
    assert ask(found, client, address, port).outcome is ProbeOutcome.REFUSED


@pytest.mark.parametrize(("client", "address"), [(OUT, "10.0.0.2"), (NODE, "10.0.0.1"), (NODE, "10.0.0.2")])
def test_a_node_may_miss_that_another_node_refuses_its_sctp(client, address):
    """The switch in user space of Open vSwitch 3.1 gives the ICMP error to the first Pod that left as this Node."""
    signals = service(app="nobody", ports=[{"port": 80, "protocol": "SCTP", "nodePort": 30080}])
    found = ask(cluster(signals), client, address, 30080, "SCTP")
    assert (found and found.outcome) is (None if (client, address) == (NODE, "10.0.0.2") else ProbeOutcome.REFUSED)


def test_source_ranges_are_for_load_balancer_ips_alone_and_for_pods_too():
    found = cluster(service(**VIP, loadBalancerSourceRanges=["172.16.1.20/32"]))
    assert ask(found, POD, "198.51.100.1").outcome is ProbeOutcome.CONNECTED
    assert ask(found, NODE, "198.51.100.1").outcome is ProbeOutcome.TIMEOUT
    assert ask(found, OUT, "198.51.100.1", via="a").outcome is ProbeOutcome.TIMEOUT
    assert ask(found, OUT, "203.0.113.1", via="a").outcome is ProbeOutcome.CONNECTED
    assert ask(found, OUT, "10.0.0.1", 30080).outcome is ProbeOutcome.CONNECTED


def test_source_ranges_of_the_other_family_are_ignored():
    found = cluster(service(**VIP, loadBalancerSourceRanges=["2001:db8::/64"]))
    assert ask(found, OUT, "198.51.100.1", via="a").outcome is ProbeOutcome.CONNECTED


def test_ip_mode_proxy_is_left_to_the_load_balancer():
    balancer = {
        "kind": "ExternalHost",
        "metadata": {"name": "lb"},
        "spec": {"addresses": ["198.51.100.1"], "ports": [{"port": 80}]},
    }
    found = cluster(service(ingress=[{"ip": "198.51.100.1", "ipMode": "Proxy"}]), balancer)
    assert ask(found, POD, "198.51.100.1").backends == {"externalHost/lb"}


@pytest.mark.parametrize(
    "spec",
    [{"type": "ExternalName"}, {"clusterIP": "None"}, {"labels": {"service.kubernetes.io/service-proxy-name": "x"}}],
)
def test_services_that_no_proxy_serves(spec):
    labels = spec.pop("labels", {})
    made = service(**spec, externalIPs=["10.3.0.3"])
    made["metadata"]["labels"] = labels
    found = cluster(made)
    assert ask(found, OUT, "10.0.0.1", 30080).outcome is ProbeOutcome.REFUSED
    assert ask(found, POD, "10.3.0.3", 8443).backends == {"externalHost/out"}


def config(text):
    metadata = {"name": "windlass-config", "namespace": "kube-system"}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"windlass.yaml": text}}


@pytest.mark.parametrize("mode", ["encap", "noEncap", "hybrid"])
def test_a_node_is_seen_by_its_own_address_at_its_own_node_port_by_policy_local(mode):
    found = cluster(service(**VIP, **LOCAL), config(f"trafficMode: {mode}"))
    assert ask(found, NODE, "10.0.0.1", 30080).seen == {"172.16.1.1", "10.0.0.1"}  # by web-a, which is there, and web-b
    assert ask(found, NODE, "127.0.0.1", 30080).seen == {"172.16.1.1", "10.0.0.1"}
    assert ask(found, NODE, "198.51.100.1").seen == {"172.16.1.1"}
    by_cluster = cluster(service(), config(f"trafficMode: {mode}"))
    assert ask(by_cluster, NODE, "10.0.0.1", 30080).seen == {"172.16.1.1"}


def test_node_ports_are_closed_at_other_addresses():
    found = cluster(service(), config("nodePortAddresses: [10.9.0.0/16]"))
    assert ask(found, OUT, "10.9.0.1", 30080).outcome is ProbeOutcome.CONNECTED
    assert {ask(found, NODE, ip, 30080).outcome for ip in ("10.0.0.1", "127.0.0.1")} == {ProbeOutcome.REFUSED}


# Which endpoints ------------------------------------------------------------------------------------------------

A = cluster().nodes["a"]


def at(name, **more):
    return OracleEndpoint(name, EndpointLocation.POD, more.pop("node", "b"), **more)


DRAINING = {"ready": False, "serving": True, "terminating": True}
ENDED = {"ready": False, "serving": False, "terminating": True}
SICK = {"ready": False, "serving": False}


@pytest.mark.parametrize(
    ("found", "cluster_wide", "local", "anything"),
    [
        ([at("x"), at("y", **SICK)], "x", "", True),
        ([at("x", node="a"), at("y")], "xy", "x", True),
        ([at("x", **DRAINING), at("y")], "y", "", True),  # ready ones come first
        ([at("x", node="a", **DRAINING), at("y")], "y", "x", True),  # both sets are judged separately
        ([at("x", **DRAINING), at("y", **ENDED)], "x", "", True),
        ([at("x", **ENDED), at("y", **SICK)], "", "", False),
        ([], "", "", False),
    ],
)
def test_ready_endpoints_or_else_terminating_endpoints_that_serve(found, cluster_wide, local, anything):
    chosen = choice(found, A)
    assert "".join(e.backend for e in chosen.cluster) == cluster_wide
    assert "".join(e.backend for e in chosen.local) == local
    assert chosen.any is anything


def hinted(name, nodes="", zones="", **more):
    return at(name, for_nodes=frozenset(nodes.split()), for_zones=frozenset(zones.split()), **more)


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([hinted("x", nodes="a"), hinted("y", nodes="b")], "x"),
        ([hinted("x", nodes="b"), hinted("y", nodes="b")], "xy"),  # none for this Node
        ([hinted("x", nodes="a"), hinted("y")], "xy"),  # one without
        ([hinted("x", zones="east west"), hinted("y", zones="west")], "x"),
        ([hinted("x", zones="west"), hinted("y", zones="north")], "xy"),
        ([hinted("x", "b", "east"), hinted("y", "b", "west")], "x"),  # no Node: then by zone
        ([hinted("x", zones="east"), hinted("y", **SICK)], "x"),  # only ready ones need a hint
        ([hinted("x", zones="east"), hinted("y", zones="west", node="a")], "x"),
    ],
)
def test_hints(found, chosen):
    assert "".join(e.backend for e in choice(found, A).cluster) == chosen


def test_policy_local_ignores_hints():
    found = [hinted("x", zones="east"), hinted("y", zones="west", node="a")]
    assert [e.backend for e in choice(found, A).local] == ["y"]


def slices(*written, ports=None, **more):
    return [
        {
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"s{n}",
                "labels": {eligible_endpoints.SERVICE_OF_SLICE: "web", **more.get("labels", {})},
            },
            "addressType": more.get("family", "IPv4"),
            "ports": ports or [{"name": "http", "port": 8080}],
            "endpoints": list(part),
        }
        for n, part in enumerate(written)
    ]


WEB_A = {"addresses": ["172.16.1.10", "172.16.2.10"], "nodeName": "a"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (slices([WEB_A], [{"addresses": ["172.16.1.10"]}]), [("default/web-a", "a")]),  # one, and local wins
        (slices([WEB_A], ports=[{"name": "http", "port": 0}]), []),
        (slices([WEB_A], ports=[{"name": "http"}]), []),
        (slices([WEB_A], ports=[{"name": "other", "port": 8080}]), []),
        (slices([WEB_A], ports=[{"name": "http", "port": 8080, "protocol": "UDP"}]), []),
        (slices([{"addresses": ["fd00::1"], "nodeName": "a"}]), []),
        (slices([WEB_A], family="FQDN"), []),
        (slices([WEB_A], labels={eligible_endpoints.HEADLESS_SLICE: ""}), []),
        (
            slices([{"addresses": ["10.0.0.2"], "nodeName": "b"}], ports=[{"name": "http", "port": 9090}]),
            [("default/host-b", "b")],
        ),
        (slices([{"addresses": ["10.3.0.3"]}], ports=[{"name": "http", "port": 8443}]), [("externalHost/out", "")]),
    ],
)
def test_slices_of_another_controller(written, expected):
    found = cluster(service(), *written)
    got = eligible_endpoints.endpoints(found, found.services["default/web"], LabServicePort(80, "http"), Family.IPV4)
    assert [(e.backend, e.node) for e in got] == expected


def test_named_ports_are_each_pods_own_and_conditions_follow_the_pod():
    found = cluster(service())
    got = eligible_endpoints.endpoints(
        found, found.services["default/web"], LabServicePort(80, "http", target_port="http"), Family.IPV4
    )
    assert [(e.backend, e.ready) for e in got] == [("default/web-a", True), ("default/web-b", True)]


# Policies ---------------------------------------------------------------------------------------------------------


def only_from(*peers, **spec):
    """A policy that selects the Pods `web`, and allows only these peers to reach them."""
    allowed = {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": [*peers]}], **spec}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "np"}, "spec": allowed}


def block(cidr):
    return {"ipBlock": {"cidr": cidr}}


@pytest.mark.parametrize(
    ("client", "address", "port", "peer", "outcome"),
    [
        (POD, "10.96.0.1", 80, block("172.16.1.20/32"), ProbeOutcome.CONNECTED),  # after the Service's translation
        (POD, "10.96.0.1", 80, block("10.0.0.0/8"), ProbeOutcome.TIMEOUT),
        (POD, "172.16.2.10", 8081, block("172.16.1.20/32"), ProbeOutcome.CONNECTED),
        (POD, "172.16.2.10", 8081, block("172.16.2.0/24"), ProbeOutcome.TIMEOUT),
        (NODE, "172.16.1.10", 8080, block("192.0.2.0/24"), ProbeOutcome.CONNECTED),  # a Node reaches its own Pods
        (NODE, "172.16.2.10", 8081, block("192.0.2.0/24"), ProbeOutcome.TIMEOUT),
        (NODE, "172.16.2.10", 8081, block("10.0.0.0/16"), None),  # by its Node IP or by its gateway?
        # At the entry Node policies see the client, at the other Node the gateway of the entry Node: it depends.
        (OUT, "10.0.0.1", 30080, block("10.3.0.3/32"), None),
        (OUT, "10.0.0.1", 30080, block("172.16.1.1/32"), None),
        (OUT, "10.0.0.1", 30080, block("0.0.0.0/0"), ProbeOutcome.CONNECTED),
        (OUT, "10.0.0.1", 30080, block("192.0.2.0/24"), ProbeOutcome.TIMEOUT),
        # A Pod is masqueraded as its Node on the way to another Node's NodePort, by which both endpoints can be chosen.
        (POD, "10.0.0.2", 30080, block("172.16.1.20/32"), ProbeOutcome.TIMEOUT),
    ],
)
def test_policies_are_judged_by_the_addresses_that_each_node_sees(client, address, port, peer, outcome):
    answer = ask(cluster(service(), only_from(peer)), client, address, port)
    assert (answer and answer.outcome) is outcome


def test_egress_is_judged_before_a_pod_is_masqueraded_and_the_own_node_is_exempt():
    def to(cidr):
        spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [block(cidr)]}]}
        return cluster(service(), {**only_from(), "spec": spec})

    assert ask(to("10.0.0.2/32"), POD, "10.0.0.2", 9090).outcome is ProbeOutcome.CONNECTED
    assert ask(to("192.0.2.0/24"), POD, "10.0.0.2", 9090).outcome is ProbeOutcome.TIMEOUT
    assert ask(to("192.0.2.0/24"), POD, "10.0.0.1", 9090).outcome is ProbeOutcome.REFUSED
    assert ask(to("172.16.0.0/16"), POD, "10.96.0.1").outcome is ProbeOutcome.CONNECTED
    assert ask(to("172.16.1.0/24"), POD, "10.96.0.1") is None, "one of the two endpoints is allowed"


def test_a_node_port_outside_of_the_range_is_not_served():
    low = service(ports=[{"name": "http", "port": 80, "targetPort": "http", "nodePort": 81}])
    assert ask(cluster(low), OUT, "10.0.0.1", 81).outcome is ProbeOutcome.REFUSED
