"""What a policy counts as whose document cannot be decoded: it denies everything to the Pods that it selects. Pure.

To leave it out, as other objects, would allow what it denies. If its subject cannot be read either, it selects all Pods
of its namespace, or of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from windlass.cluster.objects import Metadata
from windlass.cluster.policy_objects import (
    ClusterNetworkPolicy,
    ClusterNetworkPolicyRule,
    ClusterNetworkPolicySpec,
    ClusterNetworkPolicySubject,
    LabelSelector,
    NetworkPolicy,
    NetworkPolicySpec,
)

T = TypeVar("T")

# Without peers, which `policy.readings` makes a rule that denies everything.
_DENYING = (ClusterNetworkPolicyRule(action="Deny"),)


def closed_network_policy(document: Mapping[str, object]) -> NetworkPolicy | None:
    metadata = _read(document.get("metadata"), Metadata)
    if metadata is None:
        return None
    selector = _read(_spec(document).get("podSelector"), LabelSelector)
    return NetworkPolicy(metadata, NetworkPolicySpec(selector, policy_types=("Ingress", "Egress")))


def closed_cluster_network_policy(document: Mapping[str, object]) -> ClusterNetworkPolicy | None:
    metadata = _read(document.get("metadata"), Metadata)
    if metadata is None:
        return None
    subject = _read(_spec(document).get("subject"), ClusterNetworkPolicySubject) or ClusterNetworkPolicySubject()
    spec = ClusterNetworkPolicySpec("Admin", subject=subject, ingress=_DENYING, egress=_DENYING)
    return ClusterNetworkPolicy(metadata, spec)


def _spec(document: Mapping[str, object]) -> Mapping[str, object]:
    spec = document.get("spec")
    return spec if isinstance(spec, dict) else {}


def _read(value: object, struct: type[T]) -> T | None:
    try:
        return msgspec.convert(value, struct)
    except msgspec.ValidationError:
        return None
