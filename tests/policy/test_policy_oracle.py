"""The oracle by example: cases of the Kubernetes documentation and of the ClusterNetworkPolicy API."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import msgspec
import pytest

from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.policy.oracle import PolicyPacket, judge
from windlass.policy.worlds import PolicyNode, PolicyPod, PolicyWorld

ADDRESSES = {
    "web": "10.1.0.1", "client": "10.1.0.2", "db": "10.2.0.1", "monitor": "10.2.0.2",
    "node-1": "192.168.0.1", "node-2": "192.168.0.2", "outside": "203.0.113.9", "near": "203.0.113.1",
}  # fmt: skip


def pod(name: str, namespace: str, node: str, *named_ports: tuple[str, str, int], **labels: str) -> PolicyPod:
    return PolicyPod(namespace, name, node, (ip_address(ADDRESSES[name]),), {"app": name, **labels}, named_ports)


WORLD = PolicyWorld(
    pods=(
        pod("web", "shop", "node-1", ("http", "TCP", 8080), ("dns", "UDP", 53), tier="front"),
        pod("client", "shop", "node-2"),
        pod("db", "data", "node-1", ("http", "TCP", 80)),
        pod("monitor", "data", "node-2"),
    ),
    namespaces={"shop": {"team": "a"}, "data": {"team": "b"}},
    nodes=(
        PolicyNode("node-1", (ip_address(ADDRESSES["node-1"]),), {"zone": "one"}),
        PolicyNode("node-2", (ip_address(ADDRESSES["node-2"]),), {"zone": "two"}),
    ),
)


def allowed(world: PolicyWorld, source: str, destination: str, protocol: str = "TCP", port: int | None = 80) -> bool:
    packet = PolicyPacket(ip_address(ADDRESSES[source]), ip_address(ADDRESSES[destination]), protocol, port)
    return judge(world, packet).allowed


def with_network_policies(*specs: dict[str, Any], namespace: str = "shop") -> PolicyWorld:
    policies = [
        msgspec.convert(
            {"kind": "NetworkPolicy", "metadata": {"name": f"p{i}", "namespace": namespace}, "spec": spec},
            NetworkPolicy,
        )
        for i, spec in enumerate(specs)
    ]
    return _replaced(network_policies=policies)


def _replaced(**policies: Any) -> PolicyWorld:
    return PolicyWorld(WORLD.pods, WORLD.namespaces, WORLD.nodes, **policies)


def cluster_policy(name: str, tier: str, priority: int, **spec: Any) -> ClusterNetworkPolicy:
    whole = {"tier": tier, "priority": priority, "subject": {"namespaces": {}}, **spec}
    return msgspec.convert(
        {"kind": "ClusterNetworkPolicy", "metadata": {"name": name}, "spec": whole}, ClusterNetworkPolicy
    )


def test_without_policies_everything_is_allowed():
    assert allowed(WORLD, "client", "web")
    assert allowed(WORLD, "outside", "web", "ICMP", None)


def test_a_pod_that_a_policy_selects_accepts_only_what_is_allowed():
    world = with_network_policies({"podSelector": {"matchLabels": {"app": "web"}}})
    assert not allowed(world, "client", "web")
    assert allowed(world, "client", "db")
    assert allowed(world, "web", "client"), "the policy is about ingress only"


def test_the_rules_of_several_policies_are_combined():
    world = with_network_policies(
        {"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]},
        {"podSelector": {}, "ingress": [{"ports": [{"port": 443}]}]},
    )
    assert allowed(world, "client", "web", port=80)
    assert allowed(world, "monitor", "web", port=443)
    assert not allowed(world, "monitor", "web", port=80)


def test_a_pod_selector_alone_matches_in_the_namespace_of_the_policy():
    world = with_network_policies({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]})
    assert allowed(world, "client", "web")
    assert not allowed(world, "db", "web")


def test_a_namespace_selector_and_a_pod_selector_in_one_peer_must_both_match():
    peer = {"namespaceSelector": {"matchLabels": {"team": "b"}}, "podSelector": {"matchLabels": {"app": "monitor"}}}
    world = with_network_policies({"podSelector": {}, "ingress": [{"from": [peer]}]})
    assert allowed(world, "monitor", "web")
    assert not allowed(world, "db", "web")
    assert not allowed(world, "client", "web")


def test_a_block_matches_addresses_but_not_its_exceptions():
    block = {"cidr": "203.0.113.0/24", "except": ["203.0.113.8/29"]}
    world = with_network_policies({"podSelector": {}, "ingress": [{"from": [{"ipBlock": block}]}]})
    assert allowed(world, "near", "web")
    assert not allowed(world, "outside", "web")


@pytest.mark.parametrize(("port", "reached"), [(31, False), (32, True), (40, True), (41, False)])
def test_a_range_of_ports_includes_its_ends(port: int, reached: bool):
    world = with_network_policies({"podSelector": {}, "ingress": [{"ports": [{"port": 32, "endPort": 40}]}]})
    assert allowed(world, "client", "web", port=port) is reached
    assert not allowed(world, "client", "web", "UDP", port)


def test_a_named_port_is_a_port_of_the_destination():
    policy = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": "http"}]}]}
    world = with_network_policies(policy)
    assert allowed(world, "client", "db", port=80)
    assert not allowed(world, "client", "web", port=80)
    assert allowed(world, "client", "web", port=8080)


def test_a_rule_with_ports_does_not_allow_icmp_and_one_without_does():
    with_ports = with_network_policies({"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]})
    without = with_network_policies({"podSelector": {}, "ingress": [{}]})
    assert not allowed(with_ports, "client", "web", "ICMP", None)
    assert allowed(without, "client", "web", "ICMP", None)


def test_traffic_with_the_own_node_and_to_itself_is_always_allowed_by_network_policies():
    world = with_network_policies({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
    assert allowed(world, "node-1", "web")
    assert not allowed(world, "node-2", "web")
    assert allowed(world, "web", "node-1")
    assert not allowed(world, "web", "node-2")
    assert allowed(world, "web", "web")


def test_the_admin_tier_precedes_network_policies_and_the_baseline_tier_follows_them():
    everyone = [{"namespaces": {}}]
    isolated = with_network_policies({"podSelector": {}}).network_policies
    accept = cluster_policy("accept", "Admin", 5, ingress=[{"action": "Accept", "from": everyone}])
    deny = cluster_policy("deny", "Baseline", 0, ingress=[{"action": "Deny", "from": everyone}])
    assert allowed(_replaced(network_policies=isolated, cluster_network_policies=[accept]), "client", "web")
    assert not allowed(_replaced(cluster_network_policies=[deny]), "client", "web")
    open_policy = with_network_policies({"podSelector": {}, "ingress": [{}]}).network_policies
    assert allowed(_replaced(network_policies=open_policy, cluster_network_policies=[deny]), "client", "web")


def test_lower_priorities_and_earlier_rules_win_and_pass_continues_with_the_next_tier():
    everyone = [{"namespaces": {}}]
    first = cluster_policy(
        "z-first", "Admin", 1,
        ingress=[
            {"action": "Pass", "from": everyone, "protocols": [{"tcp": {"destinationPort": {"number": 80}}}]},
            {"action": "Accept", "from": everyone, "protocols": [{"tcp": {"destinationPort": {"number": 443}}}]},
        ],
    )  # fmt: skip
    second = cluster_policy("a-second", "Admin", 2, ingress=[{"action": "Deny", "from": everyone}])
    world = _replaced(cluster_network_policies=[second, first])
    assert allowed(world, "client", "web", port=80), "passed to the next tiers, where nothing denies it"
    assert allowed(world, "client", "web", port=443)
    assert not allowed(world, "client", "web", port=22)


def test_node_and_network_peers_of_egress_rules():
    nodes = cluster_policy("nodes", "Admin", 1, egress=[{"action": "Deny", "to": [{"nodes": {}}]}])
    world = _replaced(cluster_network_policies=[nodes])
    assert not allowed(world, "web", "node-1"), "its own Node as well: a ClusterNetworkPolicy is about all Nodes"
    assert not allowed(world, "web", "node-2")
    networks = cluster_policy("networks", "Admin", 1, egress=[{"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]}])
    world = _replaced(cluster_network_policies=[networks])
    assert not allowed(world, "web", "outside")
    assert not allowed(world, "web", "client"), "networks mean Pods, too"


def test_a_cluster_network_policy_can_deny_a_pod_access_to_itself():
    deny = cluster_policy("deny", "Admin", 1, ingress=[{"action": "Deny", "from": [{"namespaces": {}}]}])
    assert not allowed(_replaced(cluster_network_policies=[deny]), "web", "web")


def test_the_judgement_names_the_rules():
    everyone = [{"namespaces": {}}]
    deny = cluster_policy("no-db", "Admin", 1, ingress=[{"action": "Deny", "name": "keep out", "from": everyone}])
    packet = PolicyPacket(ip_address(ADDRESSES["client"]), ip_address(ADDRESSES["db"]), "TCP", 80)
    judgement = judge(_replaced(cluster_network_policies=[deny]), packet)
    assert judgement.ingress.rules == ("ClusterNetworkPolicy no-db ingress[0] (keep out)",)
    assert judgement.egress.rules == ("no policy decides",)
