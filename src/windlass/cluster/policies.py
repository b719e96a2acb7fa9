"""Policies that Windlass meets and does not enforce yet: which kinds there are, and how to say so. Pure.

Only their names are read. This module goes away when policies are enforced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from windlass.cluster.objects import Problem, Reference, Verdict

NOT_ENFORCED = Verdict("NotEnforced", "Ignore")
_FEW = 3  # names beside the number of policies


class PolicyKind(NamedTuple):
    name: str
    api_version: str
    resource: str  # the plural in paths and roles
    is_namespaced: bool = False


POLICY_KINDS = (
    PolicyKind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies", is_namespaced=True),
    PolicyKind("ClusterNetworkPolicy", "policy.networking.k8s.io/v1alpha2", "clusternetworkpolicies"),
    # The two that ClusterNetworkPolicy replaced.
    PolicyKind("AdminNetworkPolicy", "policy.networking.k8s.io/v1alpha1", "adminnetworkpolicies"),
    PolicyKind("BaselineAdminNetworkPolicy", "policy.networking.k8s.io/v1alpha1", "baselineadminnetworkpolicies"),
)
API_VERSIONS: Mapping[str, str] = {kind.name: kind.api_version for kind in POLICY_KINDS}

_BY_KIND = {(kind.api_version, kind.name): kind for kind in POLICY_KINDS}


def policy_in(document: object) -> Reference | None:
    """The policy that a parsed manifest holds; None if it holds something else, or a policy without a name."""
    if not isinstance(document, Mapping):
        return None
    kind = _BY_KIND.get((str(document.get("apiVersion")), str(document.get("kind"))))
    metadata = document.get("metadata")
    if kind is None or not isinstance(metadata, Mapping) or not metadata.get("name"):
        return None
    namespace = str(metadata.get("namespace") or "default") if kind.is_namespaced else ""
    return Reference(kind.name, str(metadata["name"]), namespace)


def problems(policies: Iterable[Reference]) -> tuple[Problem, ...]:
    """One for each policy, for an Event about it."""
    sentence = "Windlass does not enforce this policy: it does not implement policies yet, and allows all traffic"
    return tuple(Problem(_name(policy), sentence, policy, NOT_ENFORCED) for policy in policies)


def summary(policies: Iterable[Reference]) -> tuple[str, ...]:
    """One sentence for all of them together; none if there are none."""
    names = sorted(map(_name, policies))
    if not names:
        return ()
    what = "1 policy is not enforced" if len(names) == 1 else f"{len(names):,} policies are not enforced"
    listed = ", ".join([*names[:_FEW], *(["..."] if len(names) > _FEW else [])])
    return (f"{what}: {listed}; Windlass does not implement policies yet: this Node allows all traffic",)


def _name(policy: Reference) -> str:
    return f"{policy.kind} {policy.namespace}/{policy.name}" if policy.namespace else f"{policy.kind} {policy.name}"
