"""The policies of a cluster as the oracle sees them: the judge of `windlass.policy.oracle`, fed with documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.lab.fuzz.object_views import MetadataView, NodeView
from windlass.lab.scenarios.objects import LabPod
from windlass.model.families import Family, IPAddress
from windlass.policy.oracle import PolicyNode, PolicyPacket, PolicyPod, PolicyWorld, judge_egress, judge_ingress

NAMESPACE_NAME = "kubernetes.io/metadata.name"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PolicyView:
    world: PolicyWorld

    def __bool__(self) -> bool:
        return bool(self.world.network_policies or self.world.cluster_network_policies)

    def allows_egress(self, source: IPAddress, destination: IPAddress, protocol: str, port: int) -> bool:
        return judge_egress(self.world, _packet(source, destination, protocol, port)).allowed

    def allows_ingress(self, source: IPAddress, destination: IPAddress, protocol: str, port: int) -> bool:
        return judge_ingress(self.world, _packet(source, destination, protocol, port)).allowed


def read(
    documents: Iterable[Mapping[str, object]], pods: Mapping[str, LabPod], nodes: Mapping[str, NodeView]
) -> PolicyView:
    written = [*documents]
    spaces = [msgspec.convert(one["metadata"], MetadataView) for one in written if one["kind"] == "Namespace"]
    return PolicyView(
        PolicyWorld(
            pods=[_pod(pod) for pod in pods.values() if not pod.spec.host_network],
            namespaces={space.name: {NAMESPACE_NAME: space.name, **space.labels} for space in spaces},
            nodes=[_node(node) for node in nodes.values()],
            network_policies=[*_of("NetworkPolicy", NetworkPolicy, written)],
            cluster_network_policies=[*_of("ClusterNetworkPolicy", ClusterNetworkPolicy, written)],
        )
    )


def _packet(source: IPAddress, destination: IPAddress, protocol: str, port: int) -> PolicyPacket:
    return PolicyPacket(source, destination, protocol, port or None)


def _pod(pod: LabPod) -> PolicyPod:
    return PolicyPod(
        pod.metadata.namespace or "default",
        pod.metadata.name,
        pod.spec.node_name,
        pod.fixed_addresses,
        pod.metadata.labels,
        tuple((port.name, port.protocol.value, port.container_port) for port in pod.ports if port.name),
    )


def _node(node: NodeView) -> PolicyNode:
    """With its gateways, which are addresses of its host as well."""
    gateways = (node.gateway(family) for family in Family)
    return PolicyNode(node.name, (*node.addresses, *(one for one in gateways if one)), node.metadata.labels)


def _of(kind: str, shape: type[_T], documents: Iterable[Mapping[str, object]]) -> Iterator[_T]:
    return (msgspec.convert(one, shape) for one in documents if one["kind"] == kind)
