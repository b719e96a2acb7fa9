"""Reads policies, and the Pods, namespaces and Nodes that they refer to, from manifests.

Manifests of a change under review contain workloads instead of Pods, and often no Nodes: a workload counts as one Pod
with the labels and ports of its template.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TypeVar

import msgspec

from windlass.cluster.objects import Namespace, Node, field_sentence
from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.expansions import Document
from windlass.lab.scenarios.objects import LabPod
from windlass.lab.scenarios.scenario_files import ScenarioError
from windlass.model.families import IPAddress, IPNetwork
from windlass.policy.worlds import PolicyNode, PolicyPod, PolicyWorld

_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job")
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_WORKLOADS, ("template",)),
    "CronJob": ("jobTemplate", "spec", "template"),
}
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
_CLUSTER_SCOPED = frozenset({"Node", "Namespace", "ClusterNetworkPolicy"})
# Other groups have kinds of the same names, for example the policies of Calico and Antrea.
_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("Pod", "Node", "Namespace", "ReplicationController"), ""),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), "apps"),
    **dict.fromkeys(("Job", "CronJob"), "batch"),
    "NetworkPolicy": "networking.k8s.io",
    "ClusterNetworkPolicy": "policy.networking.k8s.io",
}
_UNSCHEDULED = ip_network("240.0.0.0/4")  # reserved: no block but 0.0.0.0/0 contains it
T = TypeVar("T")


def world_at(path: Path) -> PolicyWorld:
    """The world of a file or a folder; of a scenario: after its last step."""
    problems: list[str] = []
    documents: list[Document] = []
    seen: set[Path] = set()
    for found in scenario_files.find(path):
        for file in found.files:
            if file not in seen:  # another variant of a Matrix has the same files
                documents += found.documents(file, problems)
        seen.update(found.files)
    if problems:
        raise ScenarioError("\n".join(problems))
    return world_of(documents)


def world_in(text: bytes, name: str) -> PolicyWorld:
    """The world of a YAML or JSON text, such as the output of `kubectl get -o yaml`."""
    problems: list[str] = []
    documents = [*scenario_files.documents_in(text, name, problems)]
    if problems:
        raise ScenarioError("\n".join(problems))
    return world_of(documents)


def world_of(documents: Iterable[Document]) -> PolicyWorld:
    """Raises ScenarioError, which names object and field."""
    objects = _applied(documents)
    nodes = [*_decoded(objects, "Node", Node)]
    policy_nodes = tuple(map(_policy_node, nodes))
    pods = [*_decoded(objects, "Pod", LabPod), *_templates(objects)]
    spaces = [*_decoded(objects, "Namespace", Namespace)]
    labels = {one.metadata.name: {NAMESPACE_LABEL: one.metadata.name, **(one.metadata.labels or {})} for one in spaces}
    for pod in pods:
        name = pod.metadata.namespace or "default"
        labels.setdefault(name, {NAMESPACE_LABEL: name})
    return PolicyWorld(
        tuple(_with_addresses(pods, {node.metadata.name: node for node in nodes})),
        labels,
        policy_nodes,
        tuple(_decoded(objects, "NetworkPolicy", NetworkPolicy)),
        tuple(_decoded(objects, "ClusterNetworkPolicy", ClusterNetworkPolicy)),
    )


@dataclass(frozen=True, slots=True)
class _Named:
    kind: str
    key: str
    document: Document

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


def _applied(documents: Iterable[Document]) -> dict[tuple[str, str], _Named]:
    objects: dict[tuple[str, str], _Named] = {}
    for document in documents:
        kind, metadata = str(document.get("kind")), document.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        if kind == "Delete":
            spec = document.get("spec")
            gone = spec if isinstance(spec, dict) else {}
            objects.pop((str(gone.get("kind")), str(gone.get("name"))), None)
            continue
        if "apiVersion" in document and str(document["apiVersion"]).rpartition("/")[0] != _GROUPS.get(kind):
            continue
        name = str(metadata.get("name", ""))
        key = name if kind in _CLUSTER_SCOPED else f"{metadata.get('namespace') or 'default'}/{name}"
        objects[kind, key] = _Named(kind, key, document)
    return objects


def _decoded(objects: Mapping[tuple[str, str], _Named], kind: str, shape: type[T]) -> Iterator[T]:
    return (_converted(one, one.document, shape) for one in objects.values() if one.kind == kind)


def _converted(named: _Named, document: object, shape: type[T]) -> T:
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{named}, {field_sentence(str(error))}") from None


def _templates(objects: Mapping[tuple[str, str], _Named]) -> Iterator[LabPod]:
    for one in objects.values():
        if one.kind in _TEMPLATES:
            found: object = one.document.get("spec")
            for step in _TEMPLATES[one.kind]:
                found = found.get(step) if isinstance(found, dict) else None
            template = found if isinstance(found, dict) else {}
            namespace, _, name = one.key.partition("/")
            metadata = template.get("metadata") or {}
            if isinstance(metadata, dict):
                metadata = {**metadata, "namespace": namespace, "name": name}
            yield _converted(one, {**template, "metadata": metadata}, LabPod)


def _policy_node(node: Node) -> PolicyNode:
    """The Node with its gateways, which are addresses of its host as well."""
    try:
        found = [ip_address(one.address) for one in node.status.addresses if one.type in {"InternalIP", "ExternalIP"}]
        gateways = [ip_network(cidr).network_address + 1 for cidr in node.pod_cidrs]
    except ValueError as error:
        raise ScenarioError(f"Node {node.metadata.name}, {error}") from None
    return PolicyNode(node.metadata.name, tuple(dict.fromkeys((*found, *gateways))), node.metadata.labels or {})


def _with_addresses(pods: Iterable[LabPod], nodes: Mapping[str, Node]) -> Iterator[PolicyPod]:
    """A Pod without an address gets the next free one of its Node, or one that stands for any."""
    own = [pod for pod in pods if not pod.spec.host_network and pod.status.phase not in {"Succeeded", "Failed"}]
    taken = {address for pod in own for address in pod.fixed_addresses}
    for pod in own:
        node = nodes.get(pod.spec.node_name)
        networks = [ip_network(cidr) for cidr in node.pod_cidrs] if node else []
        addresses = pod.fixed_addresses or tuple(_next_free(one, taken) for one in networks or [_UNSCHEDULED])
        taken |= {*addresses}
        yield policy_pod(pod, addresses)


def policy_pod(pod: LabPod, addresses: tuple[IPAddress, ...]) -> PolicyPod:
    return PolicyPod(
        pod.metadata.namespace or "default",
        pod.metadata.name,
        pod.spec.node_name,
        addresses,
        pod.metadata.labels,
        tuple((port.name, port.protocol.value, port.container_port) for port in pod.ports if port.name),
    )


def _next_free(network: IPNetwork, taken: set[IPAddress]) -> IPAddress:
    address = network.network_address + 2  # the first one is the gateway's
    while address in taken:
        address += 1
    return address
