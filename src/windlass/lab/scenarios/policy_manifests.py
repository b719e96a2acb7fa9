"""Reads policies, and the Pods, namespaces and Nodes that they refer to, from manifests.

Manifests of a change under review contain workloads instead of Pods, and often neither Nodes nor namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from itertools import chain
from pathlib import Path

from windlass.cluster.objects import Namespace, Node
from windlass.cluster.policy_objects import ClusterNetworkPolicy, LabelSelector, NetworkPolicy
from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.documents import documents_in
from windlass.lab.scenarios.expansions import Document
from windlass.lab.scenarios.manifest_objects import ManifestObject, ManifestObjects, SourcedDocument
from windlass.lab.scenarios.policy_pods import WrittenPods, named_with_kind
from windlass.lab.scenarios.scenario_files import ScenarioError
from windlass.policy.directories import NAME_LABEL, namespace_labels
from windlass.policy.worlds import PolicyNode, PolicyWorld

_NAMED = 3  # namespaces or Pods that a sentence names
_ALL_ADDRESSES = frozenset({"0.0.0.0/0", "::/0"})


@dataclass(frozen=True, slots=True)
class PolicyManifests:
    world: PolicyWorld
    on_host_network: Mapping[str, str]  # Pods without an address of their own, and their Nodes
    ended: Mapping[str, str]  # Pods that have ended, and their phases
    warnings: tuple[str, ...]  # about objects that are left out or missing
    mistakes: tuple[str, ...]  # what the author of the manifests may have meant otherwise


def states(*sides: ManifestObjects) -> list[PolicyManifests]:
    """One for each side; the same workload has the same name on all sides. Raises ScenarioError."""
    with_kind = named_with_kind(*sides)
    return [_state(objects, WrittenPods(objects, with_kind)) for objects in sides]


def objects_at(path: Path) -> ManifestObjects:
    """The manifests of a file or a folder; of a scenario: after its last step. Raises ScenarioError."""
    problems: list[str] = []
    documents: list[SourcedDocument] = []
    seen: set[Path] = set()
    for found in scenario_files.find(path):
        for file in found.files:
            if file not in seen:  # another variant of a Matrix has the same files
                documents += [SourcedDocument(file.name, one) for one in found.documents(file, problems)]
        seen.update(found.files)
    return _objects(documents, problems)


def objects_in(text: bytes, name: str) -> ManifestObjects:
    """The manifests of a YAML or JSON text, such as the output of `kubectl get -o yaml`. Raises ScenarioError."""
    problems: list[str] = []
    documents = [SourcedDocument(name, one) for one in documents_in(text, name, problems)]
    return _objects(documents, problems)


def read_path(path: Path) -> PolicyManifests:
    return states(objects_at(path))[0]


def read_documents(documents: Iterable[Document], name: str = "the manifests") -> PolicyManifests:
    return states(ManifestObjects(SourcedDocument(name, one) for one in documents))[0]


def _objects(documents: Iterable[SourcedDocument], problems: list[str]) -> ManifestObjects:
    if problems:
        raise ScenarioError("\n".join(problems))
    return ManifestObjects(documents)


def _state(objects: ManifestObjects, pods: WrittenPods) -> PolicyManifests:
    nodes = {one.key: one.decoded(Node) for one in objects.of("Node")}
    policy_nodes = tuple(_policy_node(one, nodes[one.key]) for one in objects.of("Node"))
    written = {one.metadata.name: one.metadata.labels for one in objects.decoded("Namespace", Namespace)}
    world = PolicyWorld(
        tuple(pods.with_addresses(nodes)),
        {name: namespace_labels(name, written.get(name)) for name in dict.fromkeys((*written, *pods.namespaces))},
        policy_nodes,
        tuple(objects.decoded("NetworkPolicy", NetworkPolicy)),
        tuple(objects.decoded("ClusterNetworkPolicy", ClusterNetworkPolicy)),
    )
    warnings = (*objects.not_enforced, *_missing_namespaces(world, written.keys()), *_missing_addresses(world))
    return PolicyManifests(world, pods.on_host_network, pods.ended, warnings, tuple(objects.mistakes))


def _policy_node(one: ManifestObject, node: Node) -> PolicyNode:
    """The Node with its gateways, which are addresses of its host as well."""
    try:
        found = [ip_address(one.address) for one in node.status.addresses if one.type in {"InternalIP", "ExternalIP"}]
        gateways = [ip_network(cidr).network_address + 1 for cidr in node.pod_cidrs]
    except ValueError as error:
        raise one.error(str(error)) from None
    return PolicyNode(node.metadata.name, tuple(dict.fromkeys((*found, *gateways))), node.metadata.labels or {})


def _missing_namespaces(world: PolicyWorld, written: Iterable[str]) -> Iterator[str]:
    """A sentence if a policy selects namespaces by labels, and the labels of some are not known."""
    missing = sorted({*world.namespaces} - {*written})
    if not missing or not any(_labels_in(selector) - {NAME_LABEL} for selector in _namespace_selectors(world)):
        return
    yield f"no Namespace object for {few(missing)}: a namespaceSelector finds only the label {NAME_LABEL} there"


def _missing_addresses(world: PolicyWorld) -> Iterator[str]:
    """A sentence if rules have networks, and the addresses of some Pods are not known."""
    missing = sorted(f"{pod.namespace}/{pod.name}" for pod in world.pods if not pod.has_known_addresses)
    if missing and {*_networks(world)} - _ALL_ADDRESSES:
        yield f"no address is known for {few(missing)}: rules with networks may decide otherwise about their traffic"


def few(names: Sequence[str]) -> str:
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return " and ".join([", ".join(names[:_NAMED]), *more])


def _networks(world: PolicyWorld) -> Iterator[str]:
    """Of rules, with those that they except."""
    for policy in world.network_policies:
        rules = [rule.peers for rule in policy.spec.ingress or ()], [rule.peers for rule in policy.spec.egress or ()]
        for block in [peer.ip_block for peer in chain.from_iterable(chain(*rules)) if peer.ip_block]:
            yield from (block.cidr, *(block.except_ or ()))
    for cluster_policy in world.cluster_network_policies:
        for rule in cluster_policy.spec.egress or ():
            yield from (network for peer in rule.peers for network in peer.networks or ())


def _labels_in(selector: LabelSelector) -> set[str]:
    return {*(selector.match_labels or {}), *(one.key for one in selector.match_expressions or ())}


def _namespace_selectors(world: PolicyWorld) -> Iterator[LabelSelector]:
    for policy in world.network_policies:
        rules = [rule.peers for rule in policy.spec.ingress or ()], [rule.peers for rule in policy.spec.egress or ()]
        for peer in chain.from_iterable(chain(*rules)):
            yield from filter(None, [peer.namespace_selector])
    for cluster_policy in world.cluster_network_policies:
        spec = cluster_policy.spec
        selected = [(spec.subject.namespaces, spec.subject.pods)]
        listed = [rule.peers for rule in spec.ingress or ()], [rule.peers for rule in spec.egress or ()]
        selected += [(peer.namespaces, peer.pods) for peer in chain.from_iterable(chain(*listed))]
        for namespaces, pods in selected:
            yield from filter(None, [namespaces, pods.namespace_selector if pods else None])
