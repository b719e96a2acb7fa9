"""The work and the memory of a change grow with the policies and the Pods, not with the square of the policies."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import msgspec
import pytest

from counted_lines import lines_run
from policy_worlds import OWN_NODE, compiled, tell
from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.model.services import Protocol
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.directories import SelectablePod
from windlass.policy.oracle import PolicyPod, PolicyWorld
from windlass.policy.subject_rules import MOST_KNOWN

FEW_PODS = tuple(PolicyPod("x", f"pod-{i}", OWN_NODE, (IPv4Address("10.1.0.2") + i,)) for i in range(3))


def pods_not_named(number: int) -> dict[str, object]:
    return {"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [f"app-{number}"]}]}}


def world_with(policies: int) -> PolicyWorld:
    documents = [
        {
            "kind": "NetworkPolicy",
            "metadata": {"name": f"policy-{number}", "namespace": "x"},
            "spec": {"podSelector": {}, "ingress": [{"from": [pods_not_named(number)]}]},
        }
        for number in range(policies)
    ]
    return PolicyWorld(FEW_PODS, network_policies=msgspec.convert(documents, tuple[NetworkPolicy, ...]))


@pytest.mark.parametrize("is_removed", [False, True])
def test_twice_the_policies_are_about_twice_the_work(is_removed: bool):
    def work(policies: int) -> int:
        compiler = PolicyCompiler(OWN_NODE)
        empty, full = PolicyWorld(FEW_PODS), world_with(policies)
        tell(compiler, PolicyWorld(), full if is_removed else empty)
        compiler.settle()
        tell(compiler, *((full, empty) if is_removed else (empty, full)))
        return lines_run(compiler.settle)

    assert work(200) < 2.5 * work(100)


def test_peers_that_came_and_went_are_forgotten():
    """Whoever may create Pods could give each of them another number for a named port."""
    compiler = PolicyCompiler(OWN_NODE)
    rule = {"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}
    document = {"kind": "NetworkPolicy", "metadata": {"name": "named", "namespace": "x"}}
    policy = msgspec.convert({**document, "spec": {"podSelector": {}, "egress": [rule]}}, NetworkPolicy)
    tell(compiler, PolicyWorld(), PolicyWorld(FEW_PODS, network_policies=(policy,)))
    for number in range(1, MOST_KNOWN + 100):
        named = ("http", Protocol.TCP, number)
        compiler.set_pod("x/peer", SelectablePod("x", "peer", (), ((4, 1, 32),), (named,)), local=False)
        compiler.settle()
    (rules,) = compiler.egress._subjects.values()
    assert len(rules._known) <= MOST_KNOWN


def test_a_pod_of_another_node_is_the_same_work_whatever_the_number_of_rules_of_a_cluster_network_policy():
    def work(rules: int) -> int:
        document = {
            "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "ports"},
            "spec": {
                "tier": "Admin",
                "subject": {"namespaces": {}},
                "ingress": [
                    {
                        "action": "Deny",
                        "from": [{"namespaces": {}}],
                        "protocols": [{"tcp": {"destinationPort": {"number": 80 + 2 * number}}}],
                    }
                    for number in range(rules)
                ],
            },
        }
        policy = msgspec.convert(document, ClusterNetworkPolicy)
        before = PolicyWorld(FEW_PODS, cluster_network_policies=(policy,))
        compiler = compiled(before)
        remote = PolicyPod("x", "remote", "node-2", (IPv4Address("10.2.0.2"),))
        tell(compiler, before, replace(before, pods=(*FEW_PODS, remote)))
        return lines_run(compiler.settle)

    assert work(25) < 1.5 * work(5)
