"""Bad and excessive policies: a reason on that very object, its Pods fail closed, and other Pods do not notice."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest
from test_node_policies import NODE, Followed, attached, decoded, pod

from windlass.cluster.objects import APIObject
from windlass.model.nodes import NodeState
from windlass.model.port_sets import in_words
from windlass.program import program

CLIENT, OUTSIDE = "10.1.0.9", "203.0.113.9"
GOOD = {"podSelector": {"matchLabels": {"app": "good"}}, "ingress": [{"ports": [{"port": 443}]}]}


def network_policy(name: str, app: str, *ingress: object, **spec: object) -> APIObject:
    whole = {"podSelector": {"matchLabels": {"app": app}}, "ingress": ingress, **spec}
    return decoded("networking.k8s.io/v1", "NetworkPolicy", {"name": name, "namespace": "shop"}, spec=whole)


def cluster_policy(name: str, rule: dict[str, Any], subject: dict[str, Any] | None = None) -> APIObject:
    subject = subject or {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "bad"}}}}
    spec = {"tier": "Admin", "priority": 1, "subject": subject, "ingress": [rule]}
    return decoded("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", {"name": name}, spec=spec)


def node_with(*policies: APIObject) -> Followed:
    """With a Pod that the bad policy selects, one that only a good one selects, and one without policies."""
    node = Followed()
    pods = (
        pod("bad", "10.1.0.2", labels={"app": "bad"}),
        pod("good", "10.1.0.3", labels={"app": "good"}),
        pod("client", CLIENT, labels={"app": "client"}),
    )
    node.attach(attached("bad", "10.1.0.2"), attached("good", "10.1.0.3"), attached("client", CLIENT))
    node.tell(*pods, *policies, network_policy("good", "good", *GOOD["ingress"]))
    return node


def allowed(node: Followed, server: str, client: str) -> str:
    return in_words(node.followed.compiler.ingress.allowed(f"shop/{server}", ip_address(client)))


def others_do_not_notice(node: Followed) -> bool:
    return [allowed(node, name, CLIENT) for name in ("good", "client")] == ["TCP 443", "all traffic"]


@pytest.mark.parametrize(
    ("rule", "sentence", "admits"),
    [
        ({"from": [{"ipBlock": {"cidr": "10.1.0.0/33"}}]}, "10.1.0.0/33 is not a CIDR", "nothing"),
        ({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}]}, "x is not a CIDR", "nothing"),
        ({"ports": [{"port": 90, "endPort": 80}]}, "90 to 80 is not a range of ports", "nothing"),
        ({"ports": [{"port": "80"}]}, 'port: "80" is text, but no name of a port; a number has no quotes', "nothing"),
        ({"ports": [{"port": 90, "endPort": 80}, {"port": 81}]}, "90 to 80 is not a range of ports", "TCP 81"),
        (
            {"from": [{"podSelector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}}]},
            "podSelector: unknown operator Like",
            "nothing",
        ),
        ({"from": [{"workloads": {}}]}, "neither a selector nor an ipBlock", "nothing"),
        ({"from": [{"workloads": {}}, {"podSelector": {}}]}, "neither a selector nor an ipBlock", "all traffic"),
    ],
)
def test_a_bad_rule_of_a_network_policy(rule: dict[str, Any], sentence: str, admits: str):
    node = node_with(network_policy("bad", "bad", rule))
    (problem,) = node.followed.problems
    assert problem.regarding is not None
    assert (problem.regarding.kind, problem.regarding.name) == ("NetworkPolicy", "bad")
    assert sentence in problem.sentence
    assert allowed(node, "bad", CLIENT) == admits
    assert others_do_not_notice(node)


@pytest.mark.parametrize("action", ["Accept", "Deny", "Pass"])
@pytest.mark.parametrize(
    ("peer", "sentence"),
    [
        ({"domainNames": ["example.org"]}, "domainNames are not supported"),
        ({"workloads": {}}, "exactly one of namespaces, pods, nodes, networks, domainNames is expected"),
        ({"pods": {"namespaceSelector": {}}}, "pods.podSelector is missing"),
        ({"namespaces": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}, "unknown operator Like"),
        ({"namespaces": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "operator In without values"),
        (
            {"namespaces": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]}},
            "operator NotIn without values",
        ),
        (
            {"namespaces": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist", "values": ["b"]}]}},
            "operator DoesNotExist with values",
        ),
        ({"networks": ["10.0.0.0/8"]}, "networks are peers of egress rules only"),
    ],
)
def test_a_bad_rule_of_a_cluster_network_policy(action: str, peer: dict[str, Any], sentence: str):
    """The NetworkPolicy beside it would allow everything."""
    node = node_with(cluster_policy("bad", {"action": action, "from": [peer]}), network_policy("all", "bad", {}))
    (problem,) = node.followed.problems
    assert problem.regarding is not None
    assert (problem.regarding.kind, problem.regarding.name) == ("ClusterNetworkPolicy", "bad")
    assert sentence in problem.sentence
    assert allowed(node, "bad", CLIENT) == ("all traffic" if action == "Accept" else "nothing")
    assert others_do_not_notice(node)


@pytest.mark.parametrize("action", ["Accept", "Deny"])
@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ({}, "exactly one of tcp, udp, sctp and destinationNamedPort is expected"),
        ({"icmp": {}}, "exactly one of tcp, udp, sctp and destinationNamedPort is expected"),
        ({"destinationNamedPort": ""}, "exactly one of tcp, udp, sctp and destinationNamedPort is expected"),
        ({"tcp": {}}, "destinationPort is expected"),
        ({"udp": {"sourcePort": {"number": 80}}}, "destinationPort is expected"),
        ({"sctp": {"destinationPort": {}}}, "exactly one of number and range is expected"),
    ],
)
def test_a_bad_protocol_of_a_cluster_network_policy(action: str, protocol: dict[str, Any], sentence: str):
    """The API has no empty objects there: if one is empty, a later version of the API has a field that is not known."""
    rule = {"action": action, "from": [{"namespaces": {}}], "protocols": [protocol]}
    node = node_with(cluster_policy("bad", rule), network_policy("bad", "bad", {"ports": [{"port": 80}]}))
    (problem,) = node.followed.problems
    assert sentence in problem.sentence
    assert allowed(node, "bad", CLIENT) == ("TCP 80" if action == "Accept" else "nothing")
    assert others_do_not_notice(node)


@pytest.mark.parametrize(
    "subject",
    [
        {"workloads": {}},
        {"namespaces": {"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]}},
        {"namespaces": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        {"pods": {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["good"]}]}}},
        {"pods": {"namespaceSelector": {}, "podselector": {"matchLabels": {"app": "bad"}}}},
    ],
)
@pytest.mark.parametrize(("action", "admits"), [("Accept", "TCP 443"), ("Deny", "nothing"), ("Pass", "nothing")])
def test_an_unreadable_subject_allows_nothing_more_to_any_pod(subject: dict[str, Any], action: str, admits: str):
    """The policy may select too many Pods. An API server does not check selectors of custom resources."""
    node = node_with(cluster_policy("bad", {"action": action, "from": [{"namespaces": {}}]}, subject))
    (problem,) = node.followed.problems
    assert "and only denies" in problem.sentence
    assert allowed(node, "good", CLIENT) == admits


def test_a_rule_that_would_pass_does_not_leave_the_decision_to_a_later_accept():
    peers = {"from": [{"namespaces": {}}]}
    later = cluster_policy("later", {"action": "Accept", **peers}, {"namespaces": {}})
    node = node_with(cluster_policy("bad", {"action": "Pass", **peers}, {"workloads": {}}), later)
    assert allowed(node, "good", CLIENT) == "nothing"


def test_ten_thousand_blocks_in_one_rule():
    blocks = [{"ipBlock": {"cidr": f"{IPv4Address('20.0.0.0') + 256 * n}/24"}} for n in range(10_000)]
    node = node_with(network_policy("bad", "bad", {"from": blocks, "ports": [{"port": 80}]}))
    assert not node.followed.problems
    assert allowed(node, "bad", "20.0.5.1") == "TCP 80"
    assert allowed(node, "bad", OUTSIDE) == "nothing"
    assert others_do_not_notice(node)


def test_a_block_with_ten_thousand_exceptions():
    excepts = [f"{IPv4Address('20.0.0.0') + 256 * n}/24" for n in range(10_000)]
    block = {"ipBlock": {"cidr": "0.0.0.0/0", "except": excepts}}
    node = node_with(network_policy("bad", "bad", {"from": [block]}))
    assert not node.followed.problems
    assert allowed(node, "bad", "20.0.5.1") == "nothing"
    assert allowed(node, "bad", OUTSIDE) == "all traffic"
    peers = [one for one in node.policies.peers.values() if one.ingress is not None]
    assert len(peers) == 1 + len(excepts), "one entry each, and no differences of networks"
    assert others_do_not_notice(node)


def test_a_thousand_policies_on_one_pod_are_one_subject():
    rules = ({"from": [{"podSelector": {}}], "ports": [{"port": 8000 + n}]} for n in range(1_000))
    node = node_with(*(network_policy(f"p-{n}", "bad", rule) for n, rule in enumerate(rules)))
    assert not node.followed.problems
    assert allowed(node, "bad", CLIENT) == "TCP 8000-8999"
    assert allowed(node, "bad", OUTSIDE) == "nothing"
    assert others_do_not_notice(node)
    assert len(node.policies.subjects) == 2
    flows = {flow for part in program(NodeState(NODE, policies=node.policies)).values() for flow in part.flows}
    without = {flow for part in program(NodeState(NODE)).values() for flow in part.flows}
    assert len(flows - without) < 50


def test_selectors_that_match_everything():
    everyone = {"namespaceSelector": {}}
    node = node_with(network_policy("bad", "bad", {"from": [everyone], "ports": [{"port": 80}]}))
    assert not node.followed.problems
    assert allowed(node, "bad", CLIENT) == "TCP 80"
    assert allowed(node, "bad", OUTSIDE) == "nothing", "all Pods are not all addresses"
    assert node.followed.namespaces is None, "it needs to know all Pods"
    assert others_do_not_notice(node)


def test_a_policy_that_selects_everything_holds_for_all_pods_of_its_namespace_only():
    whole = decoded(
        "networking.k8s.io/v1", "NetworkPolicy", {"name": "all", "namespace": "other"}, spec={"podSelector": {}}
    )
    assert others_do_not_notice(node_with(whole))
