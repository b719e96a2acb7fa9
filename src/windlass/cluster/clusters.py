"""The state of a cluster as far as a Node needs it, with the declaration of each kind that is watched for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import msgspec

from windlass.cluster.kinds import WatchedKind, by_key, kinds_of
from windlass.cluster.objects import (
    HEADLESS_LABEL,
    PROXY_NAME_LABEL,
    AdminNetworkPolicy,
    APIObject,
    BaselineAdminNetworkPolicy,
    EndpointSlice,
    Malformed,
    Namespace,
    Node,
    PeerPod,
    Pod,
    Problem,
    Service,
    ServiceCIDR,
    field_sentence,
)
from windlass.cluster.policy_objects import (
    ClusterNetworkPolicy,
    NetworkPolicy,
    closed_cluster_network_policy,
    closed_network_policy,
)

# As kube-proxy does: neither headless Services, which only DNS uses, nor those of another proxy.
_SERVED = f"!{HEADLESS_LABEL},!{PROXY_NAME_LABEL}"
P = TypeVar("P", bound=APIObject)
Namespaces: TypeAlias = frozenset[str] | None  # None: all of them


def _replaced_policies(struct: type[P], resource: str) -> Mapping[str, P]:
    """Kinds that are not enforced: see `policies`. A Node gets its network whether or not these can be read."""
    version = "policy.networking.k8s.io/v1alpha1"
    return by_key(WatchedKind(struct, version, resource, is_optional=True, is_required=False))


@dataclass(frozen=True, slots=True)
class Cluster:
    """All objects that a source holds at one moment, by key."""

    revision: str = ""  # identifies this state: equal revisions mean equal objects
    problems: tuple[Problem, ...] = ()
    listed_namespaces: Namespaces = None  # those all of whose Pods are known, as far as policies need them
    nodes: Mapping[str, Node] = by_key(WatchedKind(Node, "v1", "nodes"))
    namespaces: Mapping[str, Namespace] = by_key(WatchedKind(Namespace, "v1", "namespaces"))
    services: Mapping[str, Service] = by_key(WatchedKind(Service, "v1", "services", label_selector=_SERVED))
    slices: Mapping[str, EndpointSlice] = by_key(
        WatchedKind(EndpointSlice, "discovery.k8s.io/v1", "endpointslices", label_selector=_SERVED)
    )
    pods: Mapping[str, Pod] = by_key(WatchedKind(Pod, "v1", "pods", field_selector="spec.nodeName={node}"))
    # Pods of other Nodes that policies of this Node's Pods select. Manifests have all Pods in `pods`.
    peer_pods: Mapping[str, PeerPod] = by_key(
        WatchedKind(
            PeerPod,
            "v1",
            "pods",
            field_selector="spec.nodeName!={node},status.phase!=Succeeded,status.phase!=Failed",
            is_on_demand=True,
            watch_name="pods of other Nodes",
        )
    )
    # In v1 since Kubernetes 1.33. Without it the Node learns ClusterIPs from the Services alone.
    service_cidrs: Mapping[str, ServiceCIDR] = by_key(
        WatchedKind(ServiceCIDR, "networking.k8s.io/v1", "servicecidrs", is_optional=True)
    )
    network_policies: Mapping[str, NetworkPolicy] = by_key(
        WatchedKind(
            NetworkPolicy,
            "networking.k8s.io/v1",
            "networkpolicies",
            closed=closed_network_policy,
            is_remembered=True,
        )
    )
    cluster_network_policies: Mapping[str, ClusterNetworkPolicy] = by_key(
        WatchedKind(
            ClusterNetworkPolicy,
            "policy.networking.k8s.io/v1alpha2",
            "clusternetworkpolicies",
            is_optional=True,
            closed=closed_cluster_network_policy,
            is_remembered=True,
        )
    )
    # The two kinds that ClusterNetworkPolicy replaced.
    admin_network_policies: Mapping[str, AdminNetworkPolicy] = _replaced_policies(
        AdminNetworkPolicy, "adminnetworkpolicies"
    )
    baseline_admin_network_policies: Mapping[str, BaselineAdminNetworkPolicy] = _replaced_policies(
        BaselineAdminNetworkPolicy, "baselineadminnetworkpolicies"
    )


KINDS = tuple(kinds_of(Cluster).values())


def objects_of(cluster: Cluster, member: str) -> Mapping[str, APIObject]:
    """The objects of one kind; `member` is a name in `kinds_of`."""
    objects: Mapping[str, APIObject] = getattr(cluster, member)
    return objects


def with_objects(
    cluster: Cluster, objects: Mapping[str, Mapping[str, APIObject]], revision: str | None = None
) -> Cluster:
    """The cluster with these objects of some kinds; each key is a name in `kinds_of`. None: the same revision."""
    revision = cluster.revision if revision is None else revision
    return replace(cluster, revision=revision, **objects)  # type: ignore[arg-type]  # objects of the right kinds


def kind_of(document: Mapping[str, object], cluster: type[Cluster] = Cluster) -> WatchedKind[APIObject] | None:
    """The kind of a parsed manifest; None if `cluster` does not take it from manifests."""
    named = document.get("apiVersion"), document.get("kind")
    kinds = (kind for kind in kinds_of(cluster).values() if not kind.is_on_demand)
    return next((kind for kind in kinds if (kind.api_version, kind.name) == named), None)


def decode(document: object, cluster: type[Cluster] = Cluster) -> APIObject | None:
    """The typed object of a parsed manifest; None if `cluster` does not take its kind from manifests."""
    if not isinstance(document, dict):
        raise Malformed(f"expected a Kubernetes object, got {type(document).__name__}")
    api_version, name = str(document.get("apiVersion") or ""), str(document.get("kind") or "")
    if not api_version or not name:
        raise Malformed("an object needs `apiVersion` and `kind`")
    kind = kind_of(document, cluster)
    if kind is None:
        return None
    try:
        return msgspec.convert(document, kind.struct)
    except msgspec.ValidationError as error:
        raise Malformed(field_sentence(str(error))) from None
