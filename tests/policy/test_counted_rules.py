"""Which rules a counter of packets is about."""

from __future__ import annotations

import msgspec

from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.model.policies import NO_CLASS, Direction, PolicySubject
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.counters import Decision, PacketCount, PolicyCounter, counter_of, peers_by_class
from windlass.policy.directories import SelectablePod
from windlass.policy.node_policies import CompiledPolicies
from windlass.policy.readings import read_cluster_network_policy, read_network_policy

WEB, CLIENT = {"matchLabels": {"app": "web"}}, {"matchLabels": {"app": "client"}}
DEFAULT = "no ingress rule of NetworkPolicy shop/web allows it"


def counters(ingress: list[object], admin: list[object], *, counts_rules: bool = False) -> dict[int, PolicyCounter]:
    """Of the Pod web, by class of peers."""
    compiler = PolicyCompiler("node-1", counts_rules=counts_rules)
    for number, name in enumerate(("web", "client")):
        compiler.set_pod(f"shop/{name}", SelectablePod("shop", name, (("app", name),), ((4, number, 32),)), local=True)
    allow = {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"podSelector": WEB, "ingress": ingress}}
    compiler.set_policy(
        "np", read_network_policy(msgspec.convert({"kind": "NetworkPolicy", **allow}, NetworkPolicy))[0]
    )
    if admin:
        spec = {"tier": "Admin", "priority": 1, "subject": {"pods": {"podSelector": WEB}}, "ingress": admin}
        document = {"kind": "ClusterNetworkPolicy", "metadata": {"name": "admin"}, "spec": spec}
        compiler.set_policy("cnp", read_cluster_network_policy(msgspec.convert(document, ClusterNetworkPolicy))[0])
    compiled = CompiledPolicies(compiler)
    compiled.settle()
    (subject,) = [one for one in compiled.policies.subjects.values() if one.direction is Direction.INGRESS]
    peers = peers_by_class(compiler, Direction.INGRESS)
    return {
        number: counter_of(compiler, subject, ["shop/web"], peers.get(number, ()), count_of(subject, number))
        for number in (NO_CLASS, *subject.verdicts)
    }


def count_of(subject: PolicySubject, peer_class: int) -> PacketCount:
    """As if each rule had one packet more than the one before."""
    return PacketCount(peer_class, 1, range(1, len(subject.by_rule.get(peer_class, ())) + 1))


def test_a_rule_that_allows_everything_leaves_nothing_to_the_default() -> None:
    found = counters([{"from": [{"podSelector": CLIENT}]}], [])
    (of_client,) = (one for number, one in found.items() if number != NO_CLASS)
    assert of_client.peers == ("shop/client",)
    assert of_client.decisions == (Decision("all traffic", True, "NetworkPolicy shop/web ingress[0]"),)
    assert found[NO_CLASS].peers == ()
    assert found[NO_CLASS].decisions == (Decision("all traffic", False, DEFAULT),)


def test_a_denial_that_equals_the_default_is_counted_with_it() -> None:
    deny = {"name": "no-client", "action": "Deny", "from": [{"pods": {"podSelector": CLIENT}}]}
    (only,) = counters([], [deny]).values()
    rule = "ClusterNetworkPolicy admin ingress[0] (no-client)"
    assert Decision("all traffic", False, rule) in only.decisions
    assert only.decisions[-1].rule == DEFAULT


def test_each_rule_has_its_own_packets_if_rules_are_counted() -> None:
    rules = [
        {"from": [{"podSelector": CLIENT}], "ports": [{"port": 80}]},
        {"from": [{"podSelector": CLIENT}], "ports": [{"port": 80, "endPort": 81}]},
    ]
    found = counters(rules, [], counts_rules=True)
    (of_client,) = (one for number, one in found.items() if number != NO_CLASS)
    assert of_client.decisions[:2] == (
        Decision("TCP 80", True, "NetworkPolicy shop/web ingress[0]", 1),
        Decision("TCP 81", True, "NetworkPolicy shop/web ingress[1]", 2),
    )
    assert of_client.decisions[2:] == (Decision("everything else", False, DEFAULT, 3),)
    assert found[NO_CLASS].decisions == (Decision("all traffic", False, DEFAULT, 1),)


def test_a_denial_that_equals_the_default_has_its_own_packets_if_rules_are_counted() -> None:
    deny = {"name": "no-client", "action": "Deny", "from": [{"pods": {"podSelector": CLIENT}}]}
    found = counters([], [deny], counts_rules=True)
    (of_client,) = (one for number, one in found.items() if number != NO_CLASS)
    rule = "ClusterNetworkPolicy admin ingress[0] (no-client)"
    assert of_client.decisions == (Decision("all traffic", False, rule, 1),)
    assert found[NO_CLASS].decisions == (Decision("all traffic", False, DEFAULT, 1),)
