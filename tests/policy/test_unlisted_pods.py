"""An API server may list Pods of other Nodes late. Until then, a rule that may deny an unknown address denies it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_unknown_namespaces import NAME, PEER, SERVER, TRAFFIC, allows, cluster_network_policy, network_policy

from counted_lines import lines_run
from policy_worlds import (
    NAMESPACES,
    OWN_NODE,
    as_node,
    as_pod,
    cnp_egress_peers,
    cnp_ingress_peers,
    cnp_rules,
    comings_and_goings,
    fields,
    histories,
    pod_key,
    policies_of,
    read,
    tell,
    with_a_remote_pod,
    worlds,
)
from windlass.cluster.policy_objects import ClusterNetworkPolicy
from windlass.cluster.sources import Namespaces
from windlass.model.families import IPAddress
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, PortSet
from windlass.model.prefixes import prefix_of
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.oracle import PolicyPacket, judge_egress, judge_ingress
from windlass.policy.rules import ReadPolicy
from windlass.policy.worlds import PolicyNode, PolicyWorld

UNKNOWN = ip_address("10.1.1.9")
RED = {"matchLabels": {"team": "red"}}
OTHER_NODE = PolicyNode("node-2", (ip_address("192.168.0.2"), ip_address("10.1.1.1")))


class Node:
    """A server on this Node. The Pods of other Nodes in the namespace y, which is red, are not listed yet."""

    def __init__(self, *policies: ReadPolicy, listed: Namespaces = frozenset("x")) -> None:
        self.compiler = PolicyCompiler(OWN_NODE)
        self.compiler.set_namespace("x", {NAME: "x"})
        self.compiler.set_namespace("y", {NAME: "y", "team": "red"})
        networks = (prefix_of(ip_network("10.1.1.0/24")),)
        for node in (PolicyNode(OWN_NODE, (ip_address("192.168.0.1"),)), OTHER_NODE):
            known = as_node(node)
            assert known is not None
            own = (prefix_of(ip_network("10.1.0.0/24")),)
            known = msgspec.structs.replace(known, pod_networks=networks if node is OTHER_NODE else own)
            self.compiler.set_node(node.name, known)
        self.compiler.set_pod(pod_key(SERVER), as_pod(SERVER), local=True)
        for number, policy in enumerate(policies):
            self.compiler.set_policy(str(number), policy)
        self.compiler.set_listed(listed)

    def admits(self, peer: str | IPAddress = UNKNOWN) -> PortSet:
        self.compiler.settle()
        return self.compiler.ingress.allowed(pod_key(SERVER), ip_address(peer))

    def reaches(self, peer: str | IPAddress = UNKNOWN) -> PortSet:
        self.compiler.settle()
        return self.compiler.egress.allowed(pod_key(SERVER), ip_address(peer))


def egress_denial(**rule: object) -> ReadPolicy:
    spec = {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "egress": [{"action": "Deny", **rule}]}
    policy = {"kind": "ClusterNetworkPolicy", "metadata": {"name": "e"}, "spec": spec}
    return read(msgspec.convert(policy, ClusterNetworkPolicy))


def test_a_denial_holds_for_unknown_pods_until_all_are_listed():
    node = Node(cluster_network_policy(("Deny", RED)))
    assert node.admits() == NO_PORTS
    node.compiler.set_listed(None)
    assert node.admits() == ALL_PORTS
    assert not node.compiler.ingress.entries


def test_addresses_that_no_such_pod_can_have_are_not_denied():
    node = Node(cluster_network_policy(("Deny", RED)))
    for outside in ("10.1.2.9", "203.0.113.9", "192.168.0.2", "10.1.1.1", "10.1.0.7", "fd00::9"):
        assert node.admits(outside) == ALL_PORTS, outside


def test_a_pod_that_is_listed_is_judged_by_its_labels():
    node = Node(cluster_network_policy(("Deny", {"matchLabels": {"team": "blue"}})), listed=frozenset())
    node.compiler.set_namespace("z", {NAME: "z", "team": "blue"})
    assert node.admits(PEER.addresses[0]) == NO_PORTS
    node.compiler.set_pod(pod_key(PEER), as_pod(PEER), local=False)
    assert node.admits(PEER.addresses[0]) == ALL_PORTS
    assert node.admits() == NO_PORTS


def test_rules_about_listed_namespaces_do_not_concern_unknown_pods():
    of_x = cluster_network_policy(("Deny", {"matchLabels": {NAME: "x"}}))
    assert Node(of_x).admits() == ALL_PORTS
    assert Node(of_x, listed=frozenset("y")).admits() == NO_PORTS


def test_what_a_rule_before_accepts_is_not_denied():
    """But no selector accepts a Pod that is not known."""
    assert Node(cluster_network_policy(("Accept", {}), ("Deny", {}))).admits() == NO_PORTS
    assert Node(network_policy(podSelector={})).admits() == NO_PORTS


def test_a_rule_that_denies_a_named_port_denies_all_ports_of_unknown_pods():
    named = [{"destinationNamedPort": "http"}]
    assert Node(egress_denial(to=[{"namespaces": RED}], protocols=named)).reaches() == NO_PORTS
    assert Node(egress_denial(to=[{"networks": ["10.0.0.0/8"]}], protocols=named)).reaches() == NO_PORTS
    assert Node(egress_denial(to=[{"networks": ["10.0.0.0/8"]}], protocols=named)).reaches("10.1.2.9") == ALL_PORTS


def test_a_rule_that_denies_a_named_port_in_a_block_denies_no_unknown_pods_outside_of_it():
    named = [{"destinationNamedPort": "http"}]
    rule = egress_denial(to=[{"networks": ["203.0.113.0/24", "10.1.1.128/25"]}], protocols=named)
    assert Node(rule).reaches() == ALL_PORTS
    assert Node(rule).reaches("10.1.1.200") == NO_PORTS


def denials_of_ports(count: int) -> ReadPolicy:
    return cluster_network_policy(*(("Deny", {"matchLabels": {"team": f"team-{number}"}}) for number in range(count)))


@pytest.mark.parametrize("listed", [frozenset("x"), frozenset("xy")])
def test_a_pod_takes_the_same_work_beside_ten_times_the_denials(listed: Namespaces):
    def work(count: int) -> int:
        node = Node(denials_of_ports(count), listed=listed)
        node.compiler.settle()
        node.compiler.set_pod(
            "x/other", msgspec.structs.replace(as_pod(PEER), namespace="x", name="other"), local=False
        )
        return lines_run(node.compiler.settle)

    assert work(200) < work(20) + 50


def test_the_denial_says_why():
    node = Node(cluster_network_policy(("Deny", RED)))
    node.compiler.settle()
    denying = [one.rule.name for one in node.compiler.ingress.explain(pod_key(SERVER), UNKNOWN) if one.rule]
    assert denying == ["ClusterNetworkPolicy c ingress[0] (the other Pod is not known yet)"]


# --- laws -------------------------------------------------------------------------------------------------------------

# The Pod of the other Node has an address in the networks of its Pods: 10.1.0.4 and fd00:1::4.
NETWORKS = tuple(prefix_of(ip_network(text)) for text in ("10.1.0.4/30", "fd00:1::4/126"))
listings = st.none() | st.frozensets(st.sampled_from(NAMESPACES))


def tell_listed(compiler: PolicyCompiler, world: PolicyWorld, listed: Namespaces) -> None:
    compiler.set_listed(listed)
    for node in world.nodes:
        known = as_node(node)
        assert known is not None
        networks = NETWORKS if node.name != OWN_NODE else ()
        compiler.set_node(node.name, msgspec.structs.replace(known, pod_networks=networks))


# All rules deny, so that each of them matters.
denials = fields(
    spec=fields(
        tier=st.just("Admin"),
        subject=st.just({"namespaces": {}}),
        ingress=st.lists(cnp_rules("from_", cnp_ingress_peers, ["Deny", "Pass"]), min_size=1, max_size=2),
        egress=st.lists(cnp_rules("to", cnp_egress_peers, ["Deny", "Pass"]), min_size=1, max_size=2),
    )
)
worlds_that_deny = st.builds(
    lambda world, policies: replace(world, cluster_network_policies=policies),
    worlds,
    policies_of(ClusterNetworkPolicy, denials, 1),
)


@given((worlds | worlds_that_deny).map(with_a_remote_pod))
@settings(max_examples=300)
def test_what_is_allowed_before_a_pod_is_listed_is_allowed_when_it_is(world: PolicyWorld):
    hidden = next(pod for pod in world.pods if pod.node != OWN_NODE)
    # Namespaces are listed before Pods.
    world = replace(world, namespaces={hidden.namespace: {NAME: hidden.namespace}, **world.namespaces})
    others = replace(world, pods=tuple(pod for pod in world.pods if pod is not hidden))
    compiler = PolicyCompiler(OWN_NODE)
    tell(compiler, PolicyWorld(), others)
    tell_listed(compiler, world, frozenset(NAMESPACES) - {hidden.namespace})
    compiler.settle()
    for pod in others.pods:
        for own, peer in zip(pod.addresses, hidden.addresses, strict=True):
            for protocol, port in TRAFFIC:
                if allows(compiler.egress, pod, peer, protocol, port):
                    packet = PolicyPacket(own, peer, protocol, port)
                    assert judge_egress(world, packet).allowed, packet
                if allows(compiler.ingress, pod, peer, protocol, port):
                    packet = PolicyPacket(peer, own, protocol, port)
                    assert judge_ingress(world, packet).allowed, packet


@given(histories(4) | comings_and_goings(8), st.lists(listings, min_size=9, max_size=9), st.booleans())
@settings(max_examples=200)
def test_incremental_changes_give_the_same_tables_as_a_fresh_start(
    history: list[PolicyWorld], listed: list[Namespaces], counts_rules: bool
):
    compiler = PolicyCompiler(OWN_NODE, counts_rules=counts_rules)
    before = PolicyWorld()
    for after, now in zip(history, listed, strict=False):
        tell(compiler, before, after)
        tell_listed(compiler, after, now)
        compiler.settle()
        before = after
    fresh = PolicyCompiler(OWN_NODE, counts_rules=counts_rules)
    tell(fresh, PolicyWorld(), before)
    tell_listed(fresh, before, now)
    fresh.settle()
    for kept, anew in ((compiler.egress, fresh.egress), (compiler.ingress, fresh.ingress)):
        assert kept.pods == anew.pods
        assert kept.verdicts == anew.verdicts
        assert kept.entries == anew.entries
