"""The work and the memory of a change grow with the policies and the Pods, not with the product of the two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address

import msgspec
import pytest

from counted_lines import lines_run
from policy_worlds import OWN_NODE, as_pod, compiled, pod_key, read, tell
from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.model.services import Protocol
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.directories import SelectablePod
from windlass.policy.oracle import PolicyPod, PolicyWorld
from windlass.policy.subject_rules import MOST_KNOWN

FEW_PODS = tuple(PolicyPod("x", f"pod-{i}", OWN_NODE, (IPv4Address("10.1.0.2") + i,)) for i in range(3))
FIRST_OTHER = IPv4Address("10.2.0.0")


def compiler_with(local: PolicyPod, others: Iterable[PolicyPod], *, counts_rules: bool = False) -> PolicyCompiler:
    compiler = PolicyCompiler(OWN_NODE, counts_rules=counts_rules)
    compiler.set_pod(pod_key(local), as_pod(local), local=True)
    for pod in others:
        compiler.set_pod(pod_key(pod), as_pod(pod), local=False)
    compiler.settle()
    return compiler


def work_of(compiler: PolicyCompiler, key: str, spec: dict[str, object] | None) -> int:
    """The lines that are run when a policy comes, or goes."""
    document = {"kind": "NetworkPolicy", "metadata": {"name": key, "namespace": "x"}, "spec": spec}
    compiler.set_policy(key, read(msgspec.convert(document, NetworkPolicy)) if spec else None)
    return lines_run(compiler.settle)


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


def test_the_name_of_a_port_is_not_looked_for_in_all_pods():
    """Anyone who may write a policy can list thousands of names in one rule."""

    def work(pods: int) -> int:
        others = [
            PolicyPod("y", f"pod-{i}", "node-2", (FIRST_OTHER + i,), named_ports=(("http", "TCP", 80),))
            for i in range(pods)
        ]
        compiler = compiler_with(FEW_PODS[0], others)
        came = work_of(compiler, "names", {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": names}]})
        return came + work_of(compiler, "names", None)

    names = [{"port": f"port-{number}"} for number in range(50)]
    assert work(400) < 1.1 * work(100)


@pytest.mark.parametrize("is_removed", [False, True])
def test_twice_the_pods_with_labels_of_their_own_and_twice_the_selectors_are_about_twice_the_work(is_removed: bool):
    """A StatefulSet, for example, labels each Pod with its name."""

    def work(number: int) -> int:
        others = [
            PolicyPod("x", f"other-{i}", "node-2", (FIRST_OTHER + i,), {"app": f"app-{i}", "pod-name": f"other-{i}"})
            for i in range(number)
        ]
        compiler = compiler_with(FEW_PODS[0], others)
        peers = [{"podSelector": {"matchLabels": {"app": f"app-{i}"}}} for i in range(number)]
        came = work_of(compiler, "many", {"podSelector": {}, "ingress": [{"from": peers}]})
        return work_of(compiler, "many", None) if is_removed else came

    assert work(200) < 2.5 * work(100)


class PrefixWithCountedHash(tuple):
    """Python runs a line whenever such an address is looked up."""

    __slots__ = ()

    def __hash__(self) -> int:
        return super().__hash__()


@pytest.mark.parametrize("is_removed", [False, True])
def test_twice_the_pods_in_twice_the_blocks_are_about_twice_the_work(is_removed: bool):
    """Many policies allow everything outside, which is one block with the exceptions of each policy."""

    def work(number: int) -> int:
        compiler = compiler_with(FEW_PODS[0], ())
        for i in range(20 * number):
            pod = as_pod(PolicyPod("y", f"pod-{i}", "node-2", (FIRST_OTHER + i,)))
            addresses = tuple(map(PrefixWithCountedHash, pod.addresses))
            compiler.set_pod(pod.key, msgspec.structs.replace(pod, addresses=addresses), local=False)
        compiler.settle()
        peers = [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [f"192.168.{i}.0/24"]}} for i in range(number)]
        came = work_of(compiler, "outside", {"podSelector": {}, "ingress": [{"from": peers}]})
        return work_of(compiler, "outside", None) if is_removed else came

    assert work(40) < 2.5 * work(20)


def test_four_times_the_pods_with_the_same_policies_are_much_less_than_four_times_the_work():
    def work(pods: int) -> int:
        compiler = compiler_with(FEW_PODS[0], ())
        for i in range(pods):
            pod = as_pod(PolicyPod("x", f"pod-{i}", OWN_NODE, (FIRST_OTHER + i,)))
            compiler.set_pod(pod.key, pod, local=True)
        rules = [{"ports": [{"port": number}]} for number in range(80, 90)]
        for number in range(20):
            work_of(compiler, f"policy-{number}", {"podSelector": {}, "ingress": rules})
        return work_of(compiler, "one-more", {"podSelector": {}, "ingress": rules})

    assert work(40) < 2 * work(10)


def test_twice_the_rules_with_ports_of_their_own_are_about_twice_the_work_to_count():
    def work(rules: int) -> int:
        compiler = compiler_with(FEW_PODS[0], (), counts_rules=True)
        ingress = [{"ports": [{"port": 2 * number}]} for number in range(1, rules + 1)]
        return work_of(compiler, "counted", {"podSelector": {}, "ingress": ingress})

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
