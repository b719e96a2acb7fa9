"""NetworkPolicy and ClusterNetworkPolicy of the API, typed. `windlass.policy` interprets them.

Fields with one of several words (operators, actions, tiers, protocols) are plain strings: a word that this version
does not know must invalidate one rule, not the whole object. Every field may be absent.

A policy whose document cannot be decoded denies everything to the Pods that it selects: if it were left out, like other
objects, it would allow what it denies. If its subject cannot be read either, it selects all Pods of its namespace, or
of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from windlass.cluster.objects import APIObject, Metadata

T = TypeVar("T")

Labels = Mapping[str, str]


class Requirement(Struct, frozen=True, omit_defaults=True, gc=False):
    """One of a selector's `matchExpressions`."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class LabelSelector(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """An empty selector matches everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class IPBlock(Struct, frozen=True, omit_defaults=True, gc=False):
    cidr: str
    except_: tuple[str, ...] | None = msgspec.field(default=None, name="except")


class NetworkPolicyPeer(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IPBlock | None = None


class NetworkPolicyPort(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    protocol: str | None = None  # TCP
    port: int | str | None = None  # absent: every port of the protocol
    end_port: int | None = None


class IngressRule(Struct, frozen=True, omit_defaults=True, gc=False):
    ports: tuple[NetworkPolicyPort, ...] | None = None
    from_: tuple[NetworkPolicyPeer, ...] | None = msgspec.field(default=None, name="from")

    @property
    def peers(self) -> tuple[NetworkPolicyPeer, ...]:
        return self.from_ or ()


class EgressRule(Struct, frozen=True, omit_defaults=True, gc=False):
    ports: tuple[NetworkPolicyPort, ...] | None = None
    to: tuple[NetworkPolicyPeer, ...] | None = None

    @property
    def peers(self) -> tuple[NetworkPolicyPeer, ...]:
        return self.to or ()


class NetworkPolicySpec(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    pod_selector: LabelSelector | None = None
    policy_types: tuple[str, ...] | None = None
    ingress: tuple[IngressRule, ...] | None = None
    egress: tuple[EgressRule, ...] | None = None


class NetworkPolicy(APIObject, frozen=True):
    spec: NetworkPolicySpec = NetworkPolicySpec()


class NamespacedPods(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    namespace_selector: LabelSelector | None = None
    pod_selector: LabelSelector | None = None


class ClusterNetworkPolicySubject(Struct, frozen=True, omit_defaults=True, gc=False):
    namespaces: LabelSelector | None = None
    pods: NamespacedPods | None = None


class ClusterNetworkPolicyPeer(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A peer of an ingress or egress rule; the last three fields are for egress only."""

    namespaces: LabelSelector | None = None
    pods: NamespacedPods | None = None
    nodes: LabelSelector | None = None
    networks: tuple[str, ...] | None = None
    domain_names: tuple[str, ...] | None = None


class PortSpan(Struct, frozen=True, gc=False):
    start: int
    end: int


class DestinationPort(Struct, frozen=True, omit_defaults=True, gc=False):
    number: int | None = None
    range: PortSpan | None = None


class ProtocolPort(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    destination_port: DestinationPort | None = None


class ClusterNetworkPolicyProtocol(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    tcp: ProtocolPort | None = None
    udp: ProtocolPort | None = None
    sctp: ProtocolPort | None = None
    destination_named_port: str | None = None


class ClusterNetworkPolicyIngressRule(Struct, frozen=True, omit_defaults=True, gc=False):
    action: str = ""
    name: str | None = None
    from_: tuple[ClusterNetworkPolicyPeer, ...] | None = msgspec.field(default=None, name="from")
    protocols: tuple[ClusterNetworkPolicyProtocol, ...] | None = None

    @property
    def peers(self) -> tuple[ClusterNetworkPolicyPeer, ...]:
        return self.from_ or ()


class ClusterNetworkPolicyEgressRule(Struct, frozen=True, omit_defaults=True, gc=False):
    action: str = ""
    name: str | None = None
    to: tuple[ClusterNetworkPolicyPeer, ...] | None = None
    protocols: tuple[ClusterNetworkPolicyProtocol, ...] | None = None

    @property
    def peers(self) -> tuple[ClusterNetworkPolicyPeer, ...]:
        return self.to or ()


ClusterNetworkPolicyRule: TypeAlias = ClusterNetworkPolicyIngressRule | ClusterNetworkPolicyEgressRule


class ClusterNetworkPolicySpec(Struct, frozen=True, omit_defaults=True, gc=False):
    tier: str = ""
    priority: int = 0
    subject: ClusterNetworkPolicySubject = ClusterNetworkPolicySubject()
    ingress: tuple[ClusterNetworkPolicyIngressRule, ...] | None = None
    egress: tuple[ClusterNetworkPolicyEgressRule, ...] | None = None


class ClusterNetworkPolicy(APIObject, frozen=True):
    is_namespaced: ClassVar[bool] = False

    spec: ClusterNetworkPolicySpec = ClusterNetworkPolicySpec()


def closed_network_policy(document: Mapping[str, object]) -> NetworkPolicy | None:
    metadata = _identity(document)
    if metadata is None:
        return None
    selector = _read(_spec(document).get("podSelector"), LabelSelector)
    return NetworkPolicy(metadata, NetworkPolicySpec(selector, policy_types=("Ingress", "Egress")))


def closed_cluster_network_policy(document: Mapping[str, object]) -> ClusterNetworkPolicy | None:
    metadata = _identity(document)
    if metadata is None:
        return None
    subject = _read(_spec(document).get("subject"), ClusterNetworkPolicySubject) or ClusterNetworkPolicySubject()
    # Rules without peers: `policy.readings` turns them into rules that deny everything.
    ingress, egress = ClusterNetworkPolicyIngressRule("Deny"), ClusterNetworkPolicyEgressRule("Deny")
    spec = ClusterNetworkPolicySpec("Admin", subject=subject, ingress=(ingress,), egress=(egress,))
    return ClusterNetworkPolicy(metadata, spec)


def _identity(document: Mapping[str, object]) -> Metadata | None:
    """Without labels and times: policies do not use them, and they may be what cannot be decoded."""
    metadata = document.get("metadata")
    identity = ("name", "namespace", "uid")
    return _read({key: metadata.get(key) for key in identity}, Metadata) if isinstance(metadata, dict) else None


def _spec(document: Mapping[str, object]) -> Mapping[str, object]:
    spec = document.get("spec")
    return spec if isinstance(spec, dict) else {}


def _read(value: object, struct: type[T]) -> T | None:
    try:
        return msgspec.convert(value, struct)
    except msgspec.ValidationError:
        return None
