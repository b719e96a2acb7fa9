"""The cluster as the oracle sees it: the documents of a scenario, read by the lab's own types.

The oracle judges the product, so it shares no decisions with it: EndpointSlices and policies are read by the product's
plain data types, all other objects as in any scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import TypeVar

import msgspec
import yaml

from windlass.cluster.objects import EndpointSlice
from windlass.cluster.policy_objects import ClusterNetworkPolicy, NetworkPolicy
from windlass.lab.fuzz.documents import Documents, WrittenDocument
from windlass.lab.scenarios.directives import ExternalHost
from windlass.lab.scenarios.objects import LabMetadata, LabNode, LabPod, LabService
from windlass.lab.scenarios.policy_pods import policy_pod
from windlass.model.families import Family, IPNetwork
from windlass.model.nodes import TrafficMode
from windlass.policy.directories import NAME_LABEL
from windlass.policy.worlds import PolicyNode, PolicyWorld

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClusterView:
    nodes: Mapping[str, LabNode]
    hosts: Mapping[str, ExternalHost]
    pods: Mapping[str, LabPod]
    services: Mapping[str, LabService]
    slices: tuple[EndpointSlice, ...]
    node_port_networks: tuple[IPNetwork, ...]  # empty: NodePorts are open on all addresses
    policies: PolicyWorld
    routes_pods: bool  # whether the underlay has routes to the Pods

    @property
    def has_policies(self) -> bool:
        return bool(self.policies.network_policies or self.policies.cluster_network_policies)


def read(documents: Documents) -> ClusterView:
    """Leaves out malformed objects: the product must report and ignore them."""
    found = list(documents.values())
    nodes = {node.name: node for node in _of("Node", LabNode, found)}
    pods = {pod.key: pod for pod in _of("Pod", LabPod, found) if pod.runs}
    settings = _settings(documents)
    spaces = [msgspec.convert(one["metadata"], LabMetadata) for one in found if one["kind"] == "Namespace"]
    return ClusterView(
        nodes,
        {host.name: host for host in _of("ExternalHost", ExternalHost, found)},
        pods,
        {service.key: service for service in _of("Service", LabService, found)},
        tuple(_of("EndpointSlice", EndpointSlice, found)),
        tuple(map(ip_network, msgspec.convert(settings.get("nodePortAddresses") or [], list[str]))),
        PolicyWorld(
            pods=[policy_pod(pod, pod.fixed_addresses) for pod in pods.values() if not pod.spec.host_network],
            namespaces={space.name: {NAME_LABEL: space.name, **space.labels} for space in spaces},
            nodes=[_policy_node(node) for node in nodes.values()],
            network_policies=_policies("NetworkPolicy", NetworkPolicy, found),
            cluster_network_policies=_policies("ClusterNetworkPolicy", ClusterNetworkPolicy, found),
        ),
        settings.get("trafficMode") == TrafficMode.NO_ENCAP.value,
    )


def _of(kind: str, view: type[_T], documents: Iterable[WrittenDocument]) -> Iterator[_T]:
    for document in documents:
        if document["kind"] == kind:
            try:
                yield msgspec.convert(document, view)
            except msgspec.ValidationError:
                continue


def _policies(kind: str, shape: type[_T], documents: Iterable[WrittenDocument]) -> list[_T]:
    """The product denies traffic if it cannot read a policy, so none may be malformed here."""
    return [msgspec.convert(document, shape) for document in documents if document["kind"] == kind]


def _settings(documents: Documents) -> dict[str, object]:
    """The configuration of the agents."""
    config = documents.get(("ConfigMap", "kube-system/windlass-config"))
    if config is None:
        return {}
    text = msgspec.convert(config["data"], dict[str, str])["windlass.yaml"]
    return msgspec.convert(yaml.safe_load(text) or {}, dict[str, object])


def _policy_node(node: LabNode) -> PolicyNode:
    """The Node with its gateways, which are addresses of its host as well."""
    gateways = (node.gateway(family) for family in Family)
    return PolicyNode(node.name, (*node.all_addresses, *(one for one in gateways if one)), node.metadata.labels)
