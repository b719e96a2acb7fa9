"""The cluster as the oracle sees it: the documents of a scenario's steps, applied in order and read as views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import TypeVar

import msgspec
import yaml

from windlass.cluster.objects import EndpointSlice
from windlass.lab.fuzz import policy_views
from windlass.lab.fuzz.object_views import (
    MetadataView,
    NodeView,
    ServiceView,
)
from windlass.lab.fuzz.policy_views import PolicyView
from windlass.lab.scenarios.directives import ExternalHost
from windlass.lab.scenarios.objects import LabPod
from windlass.model.families import IPNetwork

Document = dict[str, object]
Documents = dict[tuple[str, str], Document]  # by kind and `namespace/name`, or the name alone

_CLUSTER_SCOPED = frozenset({"Node", "Namespace", "ClusterNetworkPolicy", "ExternalHost", "Probe", "Action", "Delete"})


@dataclass(frozen=True, slots=True)
class ClusterView:
    nodes: Mapping[str, NodeView]
    hosts: Mapping[str, ExternalHost]
    pods: Mapping[str, LabPod]
    services: Mapping[str, ServiceView]
    slices: tuple[EndpointSlice, ...]
    node_port_networks: tuple[IPNetwork, ...]  # empty: NodePorts are open on all addresses
    traffic_mode: str
    policies: PolicyView


def applied(before: Documents, step: Iterable[Document]) -> Documents:
    """The documents after those of a step were applied, without probes and actions."""
    after = dict(before)
    for document in _opened(step):
        kind, key = identity(document)
        if kind == "Delete":
            gone = msgspec.convert(document["spec"], dict[str, str])
            del after[gone["kind"], gone["name"]]
        elif kind not in {"Probe", "Action"}:
            after[kind, key] = document
    return after


def _opened(documents: Iterable[Document]) -> Iterator[Document]:
    """Replaces each List by its items."""
    for document in documents:
        if document["kind"] == "List":
            yield from _opened(msgspec.convert(document["items"], list[Document]))
        else:
            yield document


def identity(document: Document) -> tuple[str, str]:
    metadata = msgspec.convert(document["metadata"], MetadataView)
    kind = str(document["kind"])
    return kind, metadata.name if kind in _CLUSTER_SCOPED else metadata.key


def read(documents: Documents) -> ClusterView:
    """Leaves out malformed objects: the product must report and ignore them."""
    found = list(documents.values())
    settings = _settings(documents)
    nodes = {node.name: node for node in _of("Node", NodeView, found)}
    pods = {pod.key: pod for pod in _of("Pod", LabPod, found) if pod.runs}
    return ClusterView(
        nodes,
        {host.name: host for host in _of("ExternalHost", ExternalHost, found)},
        pods,
        {service.key: service for service in _of("Service", ServiceView, found)},
        tuple(_of("EndpointSlice", EndpointSlice, found)),
        tuple(map(ip_network, msgspec.convert(settings.get("nodePortAddresses") or [], list[str]))),
        str(settings.get("trafficMode") or "encap"),
        policy_views.read(found, pods, nodes),
    )


_T = TypeVar("_T")


def _of(kind: str, view: type[_T], documents: Iterable[Document]) -> Iterator[_T]:
    for document in documents:
        if document["kind"] == kind:
            try:
                yield msgspec.convert(document, view)
            except msgspec.ValidationError:
                continue


def _settings(documents: Documents) -> dict[str, object]:
    """The configuration of the agents."""
    config = documents.get(("ConfigMap", "kube-system/windlass-config"))
    if config is None:
        return {}
    text = msgspec.convert(config["data"], dict[str, str])["windlass.yaml"]
    return msgspec.convert(yaml.safe_load(text) or {}, dict[str, object])
