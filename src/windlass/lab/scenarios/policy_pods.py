"""The Pods of manifests as policies see them: with a name, labels, named ports and addresses.

A workload counts as one Pod with the labels and ports of its template. It stands for all of its replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from ipaddress import ip_network

from windlass.cluster.objects import Node
from windlass.lab.scenarios.manifest_objects import ManifestObject, ManifestObjects
from windlass.lab.scenarios.objects import LabPod
from windlass.model.families import IPAddress, IPNetwork
from windlass.policy.worlds import PolicyPod

_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"), ("template",)
    ),
    "CronJob": ("jobTemplate", "spec", "template"),
}
_KINDS = ("Pod", *_TEMPLATES)
# Reserved: no block but that of all addresses contains them.
_PLACEHOLDERS = (ip_network("240.0.0.0/4"), ip_network("f000::/5"))
_ENDED = frozenset({"Succeeded", "Failed"})
ObjectName = tuple[str, str]  # kind and key


def named_with_kind(*sides: ManifestObjects) -> frozenset[ObjectName]:
    """The objects whose name another one has, on one of the sides: the first kind keeps the plain name, on all sides.

    If a single workload changes its kind, it keeps its name.
    """
    found: set[ObjectName] = set()
    kinds_of_sides = [_kinds_by_key(side) for side in sides]
    for key in {key for kinds in kinds_of_sides for key in kinds}:
        used = [kinds[key] for kinds in kinds_of_sides if key in kinds]
        if max(map(len, used)) > 1:
            _, *others = sorted({kind for kinds in used for kind in kinds}, key=_KINDS.index)
            found |= {(kind, key) for kind in others}
    return frozenset(found)


def _kinds_by_key(objects: ManifestObjects) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in objects.of(*_KINDS):
        status = one.document.get("status")
        if not (one.kind == "Pod" and isinstance(status, dict) and str(status.get("phase")) in _ENDED):
            found.setdefault(one.key, []).append(one.kind)
    return found


class WrittenPods:
    """The Pods and workloads of manifests."""

    def __init__(self, objects: ManifestObjects, with_kind: Collection[ObjectName]) -> None:
        """`with_kind`: the workloads that are named with their kind."""
        found = {pod.key: pod for pod in objects.decoded("Pod", LabPod)}
        self.ended = {key: pod.status.phase for key, pod in found.items() if pod.status.phase in _ENDED}
        self._pods = {key: pod for key, pod in found.items() if key not in self.ended}
        workloads = (_of_template(one, (one.kind, one.key) in with_kind) for one in objects.of(*_TEMPLATES))
        self._workloads = {pod.key: pod for pod in workloads}

    @property
    def namespaces(self) -> list[str]:
        return [pod.metadata.namespace or "default" for pod in (*self._pods.values(), *self._workloads.values())]

    @property
    def on_host_network(self) -> dict[str, str]:
        """The Node of each Pod without an address of its own; empty if it is not known."""
        return {
            key: pod.spec.node_name
            for key, pod in (*self._pods.items(), *self._workloads.items())
            if pod.spec.host_network
        }

    def with_addresses(self, nodes: Mapping[str, Node]) -> Iterator[PolicyPod]:
        """A Pod without an address gets the next free one of its Node, or placeholders if its Node is not known."""
        own, workloads = (
            [pod for pod in pods.values() if not pod.spec.host_network] for pods in (self._pods, self._workloads)
        )
        free = _FreeAddresses(address for pod in own for address in pod.fixed_addresses)
        for pods, is_workload in ((own, False), (workloads, True)):
            for pod in pods:
                node = nodes.get(pod.spec.node_name)
                networks = [ip_network(cidr) for cidr in node.pod_cidrs] if node else []
                known = pod.fixed_addresses or free.in_each(networks)
                addresses = known or free.in_each(_PLACEHOLDERS)
                yield policy_pod(pod, addresses, has_known_addresses=bool(known), is_workload=is_workload)


def _of_template(one: ManifestObject, is_named_with_kind: bool) -> LabPod:
    """With the name of the workload, and its kind if something else has the same name."""
    found: object = one.document.get("spec")
    for step in _TEMPLATES[one.kind]:
        found = found.get(step) if isinstance(found, dict) else None
    template = found if isinstance(found, dict) else {}
    namespace, _, name = one.key.partition("/")
    metadata = template.get("metadata") or {}
    if isinstance(metadata, dict):
        name = f"{name} ({one.kind})" if is_named_with_kind else name
        metadata = {**metadata, "namespace": namespace, "name": name}
    return one.decoded(LabPod, {**template, "metadata": metadata})


def policy_pod(
    pod: LabPod, addresses: tuple[IPAddress, ...], *, has_known_addresses: bool = True, is_workload: bool = False
) -> PolicyPod:
    return PolicyPod(
        pod.metadata.namespace or "default",
        pod.metadata.name,
        pod.spec.node_name,
        addresses,
        pod.metadata.labels,
        tuple((port.name, port.protocol.value, port.container_port) for port in pod.ports if port.name),
        has_known_addresses,
        is_workload,
    )


class _FreeAddresses:
    def __init__(self, taken: Iterable[IPAddress]) -> None:
        self._taken = {*taken}
        self._last: dict[IPNetwork, IPAddress] = {}

    def in_each(self, networks: Iterable[IPNetwork]) -> tuple[IPAddress, ...]:
        """The next free address of each network; none if one of them is full."""
        found = [(network, self._next(network)) for network in networks]
        return tuple(address for _, address in found) if all(address in network for network, address in found) else ()

    def _next(self, network: IPNetwork) -> IPAddress:
        address = self._last.get(network, network.network_address + 1) + 1  # the first one is the gateway's
        while address in self._taken:
            address += 1
        self._last[network] = address
        return address
