"""A Pod may be known before its namespace, whose labels may decide about it. Until they are known, no rule opens it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policy_worlds import (
    NAMESPACES,
    OWN_NODE,
    as_pod,
    comings_and_goings,
    compiled,
    histories,
    peers_of_namespaces,
    pod_key,
    policies_of,
    tell,
    worlds,
)
from windlass.cluster.clusters import decode
from windlass.cluster.policy_objects import ClusterNetworkPolicy
from windlass.model.families import IPAddress
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, PortSet, contains
from windlass.model.services import Protocol
from windlass.policy.compiler import DirectionCompiler, PolicyCompiler
from windlass.policy.oracle import PolicyPacket, judge_egress, judge_ingress
from windlass.policy.readings import read_cluster_network_policy, read_network_policy
from windlass.policy.worlds import PolicyPod, PolicyWorld

NAME = "kubernetes.io/metadata.name"
SERVER = PolicyPod("x", "server", OWN_NODE, (ip_address("10.1.0.2"),), {"app": "server"})
PEER = PolicyPod("y", "peer", "node-2", (ip_address("10.1.1.2"),), {"app": "peer"})
POSSIBLE_LABELS = ({}, {"app": "web"}, {"app": "db", "tier": "front"}, {"tier": "back"})


def network_policy(**peers: object):
    spec = {"podSelector": {}, "ingress": [{"from": [{"podSelector": {}, **peers}]}]}
    metadata = {"name": "p", "namespace": "x"}
    document = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
    return read_network_policy(decode(document))[0]


def cluster_network_policy(*rules: tuple[str, object], name: str = "c", tier: str = "Admin"):
    ingress = [{"action": action, "from": [{"namespaces": selector}]} for action, selector in rules]
    metadata = {"name": name}
    spec = {"tier": tier, "priority": 1, "subject": {"namespaces": {}}, "ingress": ingress}
    version, kind = "policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"
    policy = decode({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
    assert isinstance(policy, ClusterNetworkPolicy)
    return read_cluster_network_policy(policy)[0]


def not_in(value: str) -> dict[str, object]:
    return {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": [value]}]}


class Node:
    """A server on this Node, whose namespace is known, and a peer, whose namespace is not."""

    def __init__(self, *policies: object) -> None:
        self._compiler = PolicyCompiler(OWN_NODE, awaits_namespaces=True)
        self._compiler.set_namespace("x", {NAME: "x"})
        for pod in (SERVER, PEER):
            self._compiler.set_pod(pod_key(pod), as_pod(pod), local=pod is SERVER)
        for number, policy in enumerate(policies):
            self._compiler.set_policy(str(number), policy)

    def learns(self, **labels: str) -> None:
        self._compiler.set_namespace("y", {NAME: "y", **labels})

    def forgets(self) -> None:
        self._compiler.set_namespace("y", None)

    @property
    def admits(self) -> PortSet:
        self._compiler.settle()
        return self._compiler.ingress.allowed(pod_key(SERVER), PEER.addresses[0])

    @property
    def denying(self) -> list[str]:
        self._compiler.settle()
        found = self._compiler.ingress.explain(pod_key(SERVER), PEER.addresses[0])
        return [one.rule.name for one in found if one.rule is not None and not one.allows and one.ports]


def test_an_allowance_by_labels_that_a_namespace_must_not_have_waits_for_the_namespace():
    node = Node(network_policy(namespaceSelector=not_in("red")))
    assert node.admits == NO_PORTS
    node.learns(team="blue")
    assert node.admits == ALL_PORTS
    node.forgets()
    assert node.admits == NO_PORTS
    node.learns(team="red")
    assert node.admits == NO_PORTS


@pytest.mark.parametrize("selector", [{"matchLabels": {"team": "red"}}, not_in("blue")])
def test_a_denial_by_labels_holds_until_the_namespace_is_known(selector: object):
    node = Node(cluster_network_policy(("Deny", selector)))
    assert node.admits == NO_PORTS
    assert node.denying == ["ClusterNetworkPolicy c ingress[0] (the namespace of the other Pod is not known yet)"]
    node.learns(team="blue")
    assert node.admits == ALL_PORTS
    node.learns(team="red")
    assert node.admits == NO_PORTS


def test_a_rule_that_passes_denies_until_the_namespace_is_known():
    """Passed, a NetworkPolicy would deny; not passed, the next rule would accept."""
    node = Node(
        cluster_network_policy(("Pass", {"matchLabels": {"team": "red"}}), ("Accept", {})),
        network_policy(podSelector={"matchLabels": {"app": "absent"}}),
    )
    assert node.admits == NO_PORTS
    node.learns(team="blue")
    assert node.admits == ALL_PORTS


def test_what_other_rules_decide_before_does_not_wait():
    red = {"matchLabels": {"team": "red"}}
    assert Node(cluster_network_policy(("Accept", {}), ("Deny", red))).admits == ALL_PORTS
    assert Node(cluster_network_policy(("Deny", {"matchLabels": {NAME: "z", "team": "red"}}))).admits == ALL_PORTS


@pytest.mark.parametrize("selector", [{}, {"matchLabels": {NAME: "y"}}])
def test_selectors_that_need_no_labels_but_the_name_do_not_wait(selector: object):
    assert Node(network_policy(namespaceSelector=selector)).admits == ALL_PORTS


def test_policies_that_come_and_go_meanwhile_count():
    node = Node()
    assert node.admits == ALL_PORTS
    node._compiler.set_policy("c", cluster_network_policy(("Deny", not_in("red"))))
    assert node.admits == NO_PORTS
    node._compiler.set_policy("c", None)
    assert node.admits == ALL_PORTS


TRAFFIC = (("TCP", 80), ("TCP", 443), ("UDP", 81), ("ICMP", None))


worlds_with_namespaces = worlds | st.builds(
    lambda world, policies: replace(world, cluster_network_policies=policies),
    worlds,
    policies_of(ClusterNetworkPolicy, peers_of_namespaces, 2),
)


@given(worlds_with_namespaces, st.sampled_from(NAMESPACES))
@settings(max_examples=200)
def test_what_is_allowed_before_a_namespace_is_known_is_allowed_whatever_labels_it_has(world: PolicyWorld, name: str):
    known = {**{other: {NAME: other} for other in NAMESPACES}, **world.namespaces}
    without = {other: labels for other, labels in known.items() if other != name}
    assume(any(pod.namespace == name for pod in world.pods))
    compiler = PolicyCompiler(OWN_NODE, awaits_namespaces=True)
    tell(compiler, PolicyWorld(), replace(world, namespaces=without))
    compiler.settle()
    possible = [replace(world, namespaces={**without, name: {NAME: name, **labels}}) for labels in POSSIBLE_LABELS]
    for pod in (one for one in world.pods if one.namespace != name):
        for peer in (address for one in world.pods if one.namespace == name for address in one.addresses):
            own = next(address for address in pod.addresses if address.version == peer.version)
            for protocol, port in TRAFFIC:
                if allows(compiler.egress, pod, peer, protocol, port):
                    packet = PolicyPacket(own, peer, protocol, port)
                    assert all(judge_egress(one, packet).allowed for one in possible), packet
                if allows(compiler.ingress, pod, peer, protocol, port):
                    packet = PolicyPacket(peer, own, protocol, port)
                    assert all(judge_ingress(one, packet).allowed for one in possible), packet


def allows(direction: DirectionCompiler, pod: PolicyPod, peer: IPAddress, protocol: str, port: int | None) -> bool:
    number = Protocol[protocol] if port is not None else None
    return contains(direction.allowed(pod_key(pod), peer), number, port)


@given(histories(4) | comings_and_goings(12), st.booleans())
@settings(max_examples=200)
def test_incremental_changes_give_the_same_tables_as_a_fresh_start(history: list[PolicyWorld], counts_rules: bool):
    compiler = PolicyCompiler(OWN_NODE, counts_rules=counts_rules, awaits_namespaces=True)
    before = PolicyWorld()
    for after in history:
        tell(compiler, before, after)
        compiler.settle()
        before = after
    fresh = compiled(history[-1], counts_rules=counts_rules, awaits_namespaces=True)
    for kept, anew in ((compiler.egress, fresh.egress), (compiler.ingress, fresh.ingress)):
        assert kept.pods == anew.pods
        assert kept.verdicts == anew.verdicts
        assert kept.entries == anew.entries
