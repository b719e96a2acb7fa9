"""The Kubernetes objects that a Node needs, as typed structs with only the fields that Windlass uses.

Which of them are watched, and how, is declared in `clusters`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, NamedTuple, Self

import msgspec
from msgspec import Struct

# Kubernetes treats null and absent alike: a field that may be absent may be None.
# `gc=False`: these structs hold no reference cycles, so the garbage collector need not track them.

HEADLESS_LABEL = "service.kubernetes.io/headless"
PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"


class Metadata(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    name: str
    namespace: str | None = None
    labels: dict[str, str] | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    uid: str | None = None

    @property
    def key(self) -> str:
        """`namespace/name`. As in kubectl, the namespace is `default` if the object names none."""
        return f"{self.namespace or 'default'}/{self.name}"


class APIObject(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag=True, gc=False):
    """The name of the class is the kind, unless the class gives another `tag`."""

    metadata: Metadata

    is_namespaced: ClassVar[bool] = True

    @property
    def key(self) -> str:
        """Unique among the objects of its kind."""
        return self.metadata.key if self.is_namespaced else self.metadata.name


def kind_name(kind: type[APIObject]) -> str:
    """The name of the kind, as in `kind:` of a manifest."""
    return str(kind.__struct_config__.tag)


LEAVING_TAINT = "ToBeDeletedByClusterAutoscaler"


class Taint(Struct, frozen=True, omit_defaults=True):
    key: str


class NodeSpec(Struct, frozen=True, omit_defaults=True, rename="camel"):
    # `podCIDR` repeats the first of `podCIDRs`; objects with only the old field are accepted, too.
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")
    taints: tuple[Taint, ...] | None = None

    def __post_init__(self) -> None:
        """Drop taints of other programs: the Node must compare equal when they change."""
        if self.taints is not None:
            kept = tuple(taint for taint in self.taints if taint.key == LEAVING_TAINT)
            msgspec.structs.force_setattr(self, "taints", kept or None)


class NodeAddress(Struct, frozen=True):
    type: str
    address: str


class NodeStatus(Struct, frozen=True, omit_defaults=True):
    addresses: tuple[NodeAddress, ...] = ()


class Node(APIObject, frozen=True):
    is_namespaced: ClassVar[bool] = False

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

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
    # `clusterIP` repeats the first of `clusterIPs`; objects with only the old field are accepted, too.
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


class Service(APIObject, frozen=True):
    spec: ServiceSpec | None = None
    status: ServiceStatus | None = None


class EndpointConditions(Struct, frozen=True, omit_defaults=True, gc=False):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Hint(Struct, frozen=True, gc=False):
    name: str


class EndpointHints(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    for_zones: tuple[Hint, ...] | None = None
    for_nodes: tuple[Hint, ...] | None = None


class SliceEndpoint(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    addresses: tuple[str, ...] | None = None
    conditions: EndpointConditions | None = None
    node_name: str | None = None
    hints: EndpointHints | None = None


class EndpointPort(Struct, frozen=True, omit_defaults=True, gc=False):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None


class EndpointSlice(APIObject, frozen=True, rename="camel"):
    address_type: str | None = None
    ports: tuple[EndpointPort, ...] | None = None
    endpoints: tuple[SliceEndpoint, ...] | None = None


class ServiceCIDRSpec(Struct, frozen=True, omit_defaults=True, gc=False):
    cidrs: tuple[str, ...] | None = None


class ServiceCIDR(APIObject, frozen=True):
    is_namespaced: ClassVar[bool] = False

    spec: ServiceCIDRSpec | None = None


class Namespace(APIObject, frozen=True):
    is_namespaced: ClassVar[bool] = False


class ContainerPort(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    name: str | None = None
    container_port: int | None = None
    protocol: str | None = None
    host_port: int | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")


SIDECAR = "Always"  # the restartPolicy of an init container that runs as long as the Pod


class Container(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    ports: tuple[ContainerPort, ...] | None = None
    restart_policy: str | None = None


class PodSpec(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    node_name: str | None = None
    host_network: bool | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None


class PodIP(Struct, frozen=True, omit_defaults=True, gc=False):
    ip: str | None = None


class PodStatus(Struct, frozen=True, omit_defaults=True, gc=False):
    phase: str | None = None
    # `podIP` repeats the first of `podIPs`; objects with only the old field are accepted, too.
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    pod_ips: tuple[PodIP, ...] | None = msgspec.field(default=None, name="podIPs")

    @property
    def addresses(self) -> list[str | None]:
        if self.pod_ips:
            return [one.ip for one in self.pod_ips]
        return [self.pod_ip] if self.pod_ip else []


class PodAnnotations(Struct, frozen=True, omit_defaults=True, gc=False):
    mirrored: str = msgspec.field(default="", name="kubernetes.io/config.mirror")


class AnnotatedMetadata(Metadata, frozen=True):
    annotations: PodAnnotations | None = None


class Pod(APIObject, frozen=True):
    metadata: AnnotatedMetadata
    spec: PodSpec | None = None
    status: PodStatus | None = None

    def has_uid(self, uid: str) -> bool:
        """Whether this may be the Pod with this uid of the container runtime. Empty, as in a manifest: any uid.

        A static Pod has the uid that the kubelet gave it. Its mirror in the API server has that uid as an annotation.
        """
        own, annotations = self.metadata.uid, self.metadata.annotations
        return not uid or not own or uid in {own, annotations.mirrored if annotations else own}


class NamedContainerPort(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    name: str | None = None
    container_port: int | None = None
    protocol: str | None = None


class NamedPortsContainer(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    ports: tuple[NamedContainerPort, ...] | None = None
    restart_policy: str | None = None

    def __post_init__(self) -> None:
        """Drop ports without names: policies cannot refer to them."""
        named = tuple(port for port in self.ports or () if port.name)
        msgspec.structs.force_setattr(self, "ports", named or None)


class PeerPodSpec(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    host_network: bool | None = None
    containers: tuple[NamedPortsContainer, ...] | None = None
    init_containers: tuple[NamedPortsContainer, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("containers", "init_containers"):
            kept = tuple(one for one in getattr(self, name) or () if one.ports)
            msgspec.structs.force_setattr(self, name, kept or None)


class PeerPod(APIObject, frozen=True, tag="Pod"):
    """A Pod of another Node, with only the fields that policies use. There may be many."""

    spec: PeerPodSpec | None = None
    status: PodStatus | None = None


# ClusterNetworkPolicy replaced both. Only their metadata is read, to report them.


class AdminNetworkPolicy(APIObject, frozen=True):
    is_namespaced: ClassVar[bool] = False


class BaselineAdminNetworkPolicy(APIObject, frozen=True):
    is_namespaced: ClassVar[bool] = False


class Reference(NamedTuple):
    """Identifies an object of the cluster."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    @classmethod
    def to(cls, one: APIObject) -> Self:
        metadata = one.metadata
        namespace = metadata.namespace or ("default" if one.is_namespaced else "")
        return cls(kind_name(type(one)), metadata.name, namespace, metadata.uid or "")


class EventReason(NamedTuple):
    """What the agent does with an object that it cannot use, as fields of an Event."""

    reason: str
    action: str


NOT_USABLE = EventReason("NotUsable", "Refuse")


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of the input that cannot be used: what, where, and what happens now. The rest is used."""

    where: str  # a file or an object
    sentence: str
    regarding: Reference | None = None  # the object, unless it is a file
    reason: EventReason = NOT_USABLE

    @classmethod
    def of(cls, one: APIObject, sentence: str) -> Self:
        reference = Reference.to(one)
        return cls(f"{reference.kind} {one.key}", sentence, reference)

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}"


class Malformed(ValueError):
    """An object does not have the shape of its kind."""


_TYPES = {
    "array": "a list",
    "object": "an object",
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
}


def field_sentence(error: str) -> str:
    """msgspec says "Expected `str`, got `int` - at `$.spec.podCIDRs[0]`"; a sentence starts with the field."""
    what, _, where = error.replace(" | null", "").partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    return f"{path}: {type_sentence(what)}" if path else type_sentence(what)


def type_sentence(error: str) -> str:
    """In words: "expected text in quotes, got a number"."""
    what = re.sub(r"`(\w+)`", lambda found: _TYPES.get(found[1], found[0]), f"{error[:1].lower()}{error[1:]}")
    return re.sub(r"^expected text, got (a number|true or false)$", r"expected text in quotes, got \1", what)
