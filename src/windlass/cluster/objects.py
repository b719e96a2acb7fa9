"""The Kubernetes objects a Node needs, typed, with only the fields that somebody uses; and how to decode them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Self

import msgspec
from msgspec import Struct

# null and absent are the same in Kubernetes: what may be absent may be None.
# `gc=False`: these never refer back to one another, and a hundred thousand of them need no visit by the collector.


class Metadata(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    name: str
    namespace: str | None = None
    labels: dict[str, str] | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    uid: str | None = None

    @property
    def key(self) -> str:
        """As kubectl has it: an object of a namespace that names none is in `default`."""
        return f"{self.namespace or 'default'}/{self.name}"


LEAVING_TAINT = "ToBeDeletedByClusterAutoscaler"


class Taint(Struct, frozen=True, omit_defaults=True):
    key: str


class NodeSpec(Struct, frozen=True, omit_defaults=True, rename="camel"):
    # `podCIDR` repeats the first of these; an object that carries only the old field is understood as well.
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")
    taints: tuple[Taint, ...] | None = None

    def __post_init__(self) -> None:
        """Other taints are the scheduler's. They come and go, and this is no other Node for it."""
        if self.taints is not None:
            kept = tuple(taint for taint in self.taints if taint.key == LEAVING_TAINT)
            msgspec.structs.force_setattr(self, "taints", kept or None)


class NodeAddress(Struct, frozen=True):
    type: str
    address: str


class NodeStatus(Struct, frozen=True, omit_defaults=True):
    addresses: tuple[NodeAddress, ...] = ()


class Node(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="Node"):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def key(self) -> str:
        return self.metadata.name

    @property
    def pod_cidrs(self) -> tuple[str, ...]:
        return self.spec.pod_cidrs or ((self.spec.pod_cidr,) if self.spec.pod_cidr else ())


class ServicePort(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    port: int
    name: str | None = None
    protocol: str | None = None
    node_port: int | None = None


class ClientIPConfig(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    timeout_seconds: int | None = None


class SessionAffinityConfig(Struct, frozen=True, omit_defaults=True, gc=False):
    client_ip: ClientIPConfig | None = msgspec.field(default=None, name="clientIP")


class ServiceSpec(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    type: str | None = None
    # `clusterIP` repeats the first of `clusterIPs`; an object that carries only the old field is understood as well.
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    cluster_ips: tuple[str, ...] | None = msgspec.field(default=None, name="clusterIPs")
    ip_families: tuple[str, ...] | None = None
    ports: tuple[ServicePort, ...] | None = None
    external_ips: tuple[str, ...] | None = msgspec.field(default=None, name="externalIPs")
    external_traffic_policy: str | None = None
    internal_traffic_policy: str | None = None
    session_affinity: str | None = None
    session_affinity_config: SessionAffinityConfig | None = None
    load_balancer_source_ranges: tuple[str, ...] | None = None
    health_check_node_port: int | None = None


class LoadBalancerIngress(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    ip: str | None = None
    ip_mode: str | None = None


class LoadBalancerStatus(Struct, frozen=True, omit_defaults=True, gc=False):
    ingress: tuple[LoadBalancerIngress, ...] | None = None


class ServiceStatus(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    load_balancer: LoadBalancerStatus | None = None


class Service(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="Service", gc=False):
    metadata: Metadata
    spec: ServiceSpec | None = None
    status: ServiceStatus | None = None

    @property
    def key(self) -> str:
        return self.metadata.key


class EndpointConditions(Struct, frozen=True, omit_defaults=True, gc=False):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(Struct, frozen=True, gc=False):
    name: str


class EndpointHints(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    for_zones: tuple[Hint, ...] | None = None
    for_nodes: tuple[Hint, ...] | None = None


class Endpoint(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    addresses: tuple[str, ...] | None = None
    conditions: EndpointConditions | None = None
    node_name: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(Struct, frozen=True, omit_defaults=True, gc=False):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class EndpointSlice(
    Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="kind", tag="EndpointSlice", gc=False
):
    metadata: Metadata
    address_type: str | None = None
    ports: tuple[EndpointPort, ...] | None = None
    endpoints: tuple[Endpoint, ...] | None = None

    @property
    def key(self) -> str:
        return self.metadata.key


class ServiceCIDRSpec(Struct, frozen=True, omit_defaults=True, gc=False):
    cidrs: tuple[str, ...] | None = None


class ServiceCIDR(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="ServiceCIDR", gc=False):
    metadata: Metadata
    spec: ServiceCIDRSpec | None = None

    @property
    def key(self) -> str:
        return self.metadata.name


class Namespace(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="Namespace", gc=False):
    metadata: Metadata

    @property
    def key(self) -> str:
        return self.metadata.name


class ContainerPort(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    container_port: int | None = None
    protocol: str | None = None
    host_port: int | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")


class Container(Struct, frozen=True, omit_defaults=True, gc=False):
    ports: tuple[ContainerPort, ...] | None = None


class PodSpec(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    host_network: bool | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None


class PodIP(Struct, frozen=True, omit_defaults=True, gc=False):
    ip: str | None = None


class PodStatus(Struct, frozen=True, omit_defaults=True, gc=False):
    phase: str | None = None
    pod_ips: tuple[PodIP, ...] | None = msgspec.field(default=None, name="podIPs")


class Pod(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="Pod", gc=False):
    metadata: Metadata
    spec: PodSpec | None = None
    status: PodStatus | None = None

    @property
    def key(self) -> str:
        return self.metadata.key


class PartialObjectMetadata(Struct, frozen=True, omit_defaults=True, gc=False):
    """An object of any kind of which only the metadata was asked for."""

    metadata: Metadata

    @property
    def key(self) -> str:
        return self.metadata.key if self.metadata.namespace else self.metadata.name


# Namespaces and Pods come from an API server only: in manifests nobody needs them yet.
Object = Node | Service | EndpointSlice | ServiceCIDR
Watched = Object | Namespace | Pod | PartialObjectMetadata


class Reference(NamedTuple):
    """Names an object to the cluster."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class Verdict(NamedTuple):
    """What the agent does with an object that it cannot use as it is; the words of an Event."""

    reason: str
    action: str


NOT_USABLE = Verdict("NotUsable", "Refuse")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something of the input that cannot be used: what, where and what now. The rest is used all the same."""

    where: str  # a file, or an object
    sentence: str
    regarding: Reference | None = None  # the object, where it is one
    verdict: Verdict = NOT_USABLE

    @classmethod
    def of(cls, one: Watched, sentence: str) -> Self:
        kind, metadata = type(one).__name__, one.metadata
        reference = Reference(kind, metadata.name, metadata.namespace or "", metadata.uid or "")
        return cls(f"{kind} {one.key}", sentence, reference)

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """All objects that a source holds at one moment."""

    revision: str = ""  # names this state; equal revisions are equal states
    nodes: Mapping[str, Node] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    services: Mapping[str, Service] = field(default_factory=dict)  # by namespace/name
    slices: Mapping[str, EndpointSlice] = field(default_factory=dict)  # by namespace/name
    service_cidrs: Mapping[str, ServiceCIDR] = field(default_factory=dict)
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)
    pods: Mapping[str, Pod] = field(default_factory=dict)  # of this Node; by namespace/name
    policies: tuple[Reference, ...] = ()  # not enforced yet: see `policies`


KINDS: Mapping[tuple[str, str], type[Object]] = {
    ("v1", "Node"): Node,
    ("v1", "Service"): Service,
    ("discovery.k8s.io/v1", "EndpointSlice"): EndpointSlice,
    ("networking.k8s.io/v1", "ServiceCIDR"): ServiceCIDR,
}


class Malformed(ValueError):
    """An object that does not have the shape its kind asks for."""


def decode(document: object) -> Object | None:
    """The typed object of a parsed document; None for a kind that no part of Windlass reads."""
    if not isinstance(document, dict):
        raise Malformed(f"expected a Kubernetes object, got {type(document).__name__}")
    kind = KINDS.get((str(document.get("apiVersion", "")), str(document.get("kind", ""))))
    if kind is None:
        if not document.get("apiVersion") or not document.get("kind"):
            raise Malformed("an object needs `apiVersion` and `kind`")
        return None
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise Malformed(field_sentence(str(error))) from None


def field_sentence(error: str) -> str:
    """msgspec says "Expected `str`, got `int` - at `$.spec.podCIDRs[0]`"; people start with the field."""
    what, _, where = error.replace(" | null", "").partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    return f"{path}: {what[:1].lower()}{what[1:]}" if path else what[:1].lower() + what[1:]
