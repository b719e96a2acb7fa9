"""A policy whose document cannot be decoded denies everything to the Pods that it selects; it is not left out."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import Raw

from windlass.cluster.clusters import Cluster, objects_of
from windlass.cluster.kinds import kinds_of
from windlass.cluster.kubernetes.stores import ObjectStore
from windlass.cluster.manifests import Manifests
from windlass.policy.oracle import PolicyPacket, judge
from windlass.policy.worlds import PolicyPod, PolicyWorld

CNP = "policy.networking.k8s.io/v1alpha2"
BAD_RULES = {"ingress": [{"ports": "all"}], "egress": "none"}
WEB = {"matchLabels": {"app": "web"}}


def network_policy(**spec: object) -> dict[str, object]:
    metadata = {"name": "p", "namespace": "shop"}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def cluster_policy(**spec: object) -> dict[str, object]:
    return {"apiVersion": CNP, "kind": "ClusterNetworkPolicy", "metadata": {"name": "p"}, "spec": spec}


def with_a_number_as_label(document: dict[str, Any]) -> dict[str, object]:
    """YAML reads `version: 1.0` as a number."""
    return {**document, "metadata": {**document["metadata"], "labels": {"version": 1.0}}}


CASES: list[tuple[str, dict[str, object], set[str]]] = [
    ("network_policies", network_policy(podSelector=WEB, **BAD_RULES), {"shop/web"}),
    ("network_policies", network_policy(podSelector="web"), {"shop/web", "shop/db"}),
    ("network_policies", with_a_number_as_label(network_policy(podSelector=WEB)), {"shop/web"}),
    (
        "cluster_network_policies",
        cluster_policy(subject={"pods": {"podSelector": WEB}}, tier="Admin", **BAD_RULES),
        {"shop/web", "data/web"},
    ),
    ("cluster_network_policies", cluster_policy(subject=7, tier="Admin"), {"shop/web", "shop/db", "data/web"}),
    (
        "cluster_network_policies",
        with_a_number_as_label(cluster_policy(subject={"pods": {"podSelector": WEB}}, tier="Admin")),
        {"shop/web", "data/web"},
    ),
]


def denied(policies: dict[str, Any]) -> set[str]:
    """The Pods that may receive nothing."""
    names = (("shop", "web"), ("shop", "db"), ("data", "web"))
    pods = tuple(
        PolicyPod(namespace, name, "node-2", (ip_address(f"10.1.0.{number}"),), {"app": name})
        for number, (namespace, name) in enumerate(names, start=1)
    )
    world = PolicyWorld(pods=pods, namespaces={"shop": {}, "data": {}}, **policies)
    outside = ip_address("203.0.113.9")
    return {
        f"{pod.namespace}/{pod.name}"
        for pod in pods
        if not judge(world, PolicyPacket(outside, pod.addresses[0], "TCP", 80)).allowed
    }


@pytest.mark.parametrize(("member", "document", "pods"), CASES)
def test_from_manifests(member: str, document: dict[str, object], pods: set[str], tmp_path: Path):
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(document))
    cluster = Manifests(tmp_path).read()
    assert denied({member: [*objects_of(cluster, member).values()]}) == pods
    (problem,) = cluster.problems
    assert str(problem).endswith("; it denies everything to the Pods that it selects")


@pytest.mark.parametrize(("member", "document", "pods"), CASES)
def test_from_an_api_server(member: str, document: dict[str, object], pods: set[str]):
    store = ObjectStore(kinds_of(Cluster)[member])
    for _ in range(2):  # a second time, it is the same
        store.put(Raw(msgspec.json.encode(document)))
        objects, changed = store.snapshot()
        assert denied({member: [*objects.values()]}) == pods
        (problem,) = store.problems.values()
        assert str(problem).endswith("; it denies everything to the Pods that it selects")
    assert not changed


@pytest.mark.parametrize(("member", "document", "pods"), CASES)
def test_an_earlier_version_that_allows_more_is_replaced(member: str, document: dict[str, object], pods: set[str]):
    store = ObjectStore(kinds_of(Cluster)[member])
    allowing = network_policy(podSelector=WEB, ingress=[{}]) if member == "network_policies" else cluster_policy()
    store.put(Raw(msgspec.json.encode(allowing)))
    store.put(Raw(msgspec.json.encode(document)))
    assert denied({member: [*store.objects.values()]}) == pods
    (problem,) = store.problems.values()
    assert str(problem).endswith("; it denies everything to the Pods that it selects")
