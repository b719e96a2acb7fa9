"""Unreadable parts of a policy fail closed, are reported, and do not affect the other parts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, in_words
from windlass.policy.readings import read_cluster_network_policy, read_network_policy
from windlass.policy.rules import BlockPeers, PodPeers, PolicyRule, RuleAction

KINDS = "namespaces, pods, nodes, networks, domainNames"


def network_policy(spec: dict[str, Any]) -> NetworkPolicy:
    document = {"kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "x"}, "spec": spec}
    return msgspec.convert(document, NetworkPolicy)


def cluster_network_policy(rule: dict[str, Any], **spec: Any) -> ClusterNetworkPolicy:
    whole = {"tier": "Admin", "priority": 10, "subject": {"namespaces": {}}, "egress": [rule], **spec}
    document = {"kind": "ClusterNetworkPolicy", "metadata": {"name": "p"}, "spec": whole}
    return msgspec.convert(document, ClusterNetworkPolicy)


def allow_rule(rule: dict[str, Any]) -> tuple[PolicyRule, list[str]]:
    policy, problems = read_network_policy(network_policy({"podSelector": {}, "ingress": [rule]}))
    assert policy.ingress is not None
    return policy.ingress[0], problems


@pytest.mark.parametrize(
    ("peer", "sentence"),
    [
        ({}, "ingress[0], peer 0: it has neither a selector nor an ipBlock; this peer is allowed nothing"),
        (
            {"ipBlock": {"cidr": "10.0.0.0/33"}},
            "ingress[0], peer 0: 10.0.0.0/33 is not a CIDR; this peer is allowed nothing",
        ),
        (
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["::ffff:10.0.0.0/104"]}},
            "ingress[0], peer 0: ::ffff:10.0.0.0/104 is not a CIDR; this peer is allowed nothing",
        ),
        (
            {"ipBlock": {"cidr": "10.0.0.1"}},
            "ingress[0], peer 0: 10.0.0.1 is not a CIDR; this peer is allowed nothing",
        ),
        (
            {"ipBlock": {"cidr": "10.0.0.0/0.0.0.255"}},
            "ingress[0], peer 0: 10.0.0.0/0.0.0.255 is not a CIDR; this peer is allowed nothing",
        ),
        (
            {"ipBlock": {"cidr": "fe80::%eth0/64"}},
            "ingress[0], peer 0: fe80::%eth0/64 is not a CIDR; this peer is allowed nothing",
        ),
        (
            {"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}},
            "ingress[0], peer 0: it has both an ipBlock and a selector; this peer is allowed nothing",
        ),
        (
            {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["w*"]}]}},
            "ingress[0], peer 0: podSelector: unknown operator Like; this peer is allowed nothing",
        ),
    ],
)
def test_an_unreadable_peer_is_allowed_nothing_and_the_others_are_used(peer: dict[str, Any], sentence: str):
    rule, problems = allow_rule({"from": [peer, {"podSelector": {}}]})
    assert problems == [sentence]
    assert rule.peers == (PodPeers(namespace="x"),)


def test_a_rule_whose_only_peer_is_unreadable_does_not_match_all_peers():
    rule, _ = allow_rule({"from": [{}]})
    assert rule.peers == ()


@pytest.mark.parametrize(
    ("port", "sentence"),
    [
        ({"port": 90, "endPort": 80}, "ingress[0], port 0: 90 to 80 is not a range of ports; this port is not allowed"),
        ({"endPort": 80}, "ingress[0], port 0: endPort without port; this port is not allowed"),
        (
            {"port": "web", "endPort": 80},
            "ingress[0], port 0: endPort with the named port web; this port is not allowed",
        ),
        (
            {"protocol": "ICMP"},
            "ingress[0], port 0: protocol: ICMP is none of TCP, UDP, SCTP; this port is not allowed",
        ),
        ({"port": 70000}, "ingress[0], port 0: 70000 is not a port; this port is not allowed"),
    ],
)
def test_an_unreadable_port_is_not_allowed_and_the_others_are_used(port: dict[str, Any], sentence: str):
    rule, problems = allow_rule({"ports": [port, {"port": 443}]})
    assert problems == [sentence]
    assert in_words(rule.ports) == "TCP 443"


def test_a_rule_whose_only_port_is_unreadable_does_not_allow_all_ports():
    rule, _ = allow_rule({"ports": [{"port": 70000}]})
    assert rule.ports == NO_PORTS


def test_an_unreadable_subject_selects_more_pods_and_not_fewer():
    selector = {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Like"}]}
    policy, problems = read_network_policy(network_policy({"podSelector": selector, "ingress": [{}]}))
    assert str(policy.subject.pods) == "app=web"
    assert [rule.peers for rule in policy.ingress or ()] == [()], "other Pods must not be open to what it allows"
    (problem,) = problems
    assert problem.startswith("podSelector: unknown operator Like; the requirement is ignored: ")
    assert problem.endswith("the policy may select more Pods, and only denies")


def test_an_unreadable_policy_type_isolates_for_both_directions():
    spec = {"podSelector": {}, "policyTypes": ["Ingres"], "ingress": [{}]}
    policy, problems = read_network_policy(network_policy(spec))
    assert (len(policy.ingress or ()), policy.egress) == (1, ())
    assert problems == ["policyTypes: Ingres is neither Ingress nor Egress; the policy affects both"]


@pytest.mark.parametrize(
    ("peer", "what"),
    [
        ({}, f"peer 0: exactly one of {KINDS} is expected"),
        ({"namespaces": {}, "nodes": {}}, f"peer 0: exactly one of {KINDS} is expected, not namespaces and nodes"),
        ({"pods": {"namespaceSelector": {}}}, "peer 0: pods.podSelector is missing"),
        ({"domainNames": ["example.org"]}, "peer 0: domainNames are not supported"),
        ({"networks": ["10.0.0.0/8", "ten"]}, "peer 0: ten is not a CIDR"),
        ({"networks": []}, "peer 0: networks: at least one is expected"),
    ],
)
def test_an_unreadable_cluster_rule_accepts_less_or_denies_everything(peer: dict[str, Any], what: str):
    for action in ("Accept", "Deny", "Pass"):
        policy, problems = read_cluster_network_policy(cluster_network_policy({"action": action, "to": [peer]}))
        assert policy.egress is not None
        if action == "Accept":
            assert policy.egress[0].peers == ()
            assert problems == [f"egress[0], {what}; the rule accepts nothing"]
        else:
            assert policy.egress[0] == PolicyRule("ClusterNetworkPolicy p egress[0]", RuleAction.DENY, None, ALL_PORTS)
            assert problems == [f"egress[0], {what}; the rule denies everything instead"]


def test_the_peers_of_a_cluster_rule_are_those_of_its_direction():
    """An API server drops the other field, which the API does not have."""
    pods, networks = {"namespaces": {}}, {"networks": ["10.0.0.0/8"]}
    policy, problems = read_cluster_network_policy(
        cluster_network_policy(
            {"action": "Deny", "from": [pods], "to": [networks]}, ingress=[{"action": "Accept", "to": [pods]}]
        )
    )
    assert [rule.peers for rule in policy.egress or ()] == [(BlockPeers("10.0.0.0/8"),)]
    assert [rule.peers for rule in policy.ingress or ()] == [()]
    assert problems == ["ingress[0], no peers; the rule accepts nothing"]


def test_the_rules_of_an_unknown_tier_deny_everything():
    policy, problems = read_cluster_network_policy(cluster_network_policy({"action": "Accept"}, tier="Middle"))
    assert policy.egress == (PolicyRule("ClusterNetworkPolicy p egress", RuleAction.DENY),)
    assert policy.ingress is None
    assert problems == ["tier: Middle is neither Admin nor Baseline; its rules deny everything"]


@pytest.mark.parametrize("priority", [-1, 1001])
def test_the_rules_of_an_unknown_priority_deny_everything_before_all_others(priority: int):
    policy, problems = read_cluster_network_policy(cluster_network_policy({"action": "Accept"}, priority=priority))
    assert policy.egress == (PolicyRule("ClusterNetworkPolicy p egress", RuleAction.DENY),)
    assert problems == [f"priority: {priority} is outside 0-1000; its rules deny everything"]
    others = (read_cluster_network_policy(cluster_network_policy({}, priority=one))[0] for one in (0, 1000))
    assert all(policy.order < other.order for other in others)
