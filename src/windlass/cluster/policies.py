"""Reports policies that Windlass does not enforce, of the kinds that ClusterNetworkPolicy replaced. Pure.

Only their names are read.
"""

from __future__ import annotations

from collections.abc import Iterable

from windlass.cluster.clusters import KINDS, Cluster, decode, objects_of
from windlass.cluster.kinds import kinds_of
from windlass.cluster.objects import (
    AdminNetworkPolicy,
    BaselineAdminNetworkPolicy,
    EventReason,
    Malformed,
    Problem,
    Reference,
)

NOT_ENFORCED = EventReason("NotEnforced", "Ignore")
_STRUCTS = (AdminNetworkPolicy, BaselineAdminNetworkPolicy)
_MEMBERS = tuple(name for name, kind in kinds_of(Cluster).items() if kind.struct in _STRUCTS)
POLICY_KINDS = tuple(kind for kind in KINDS if kind.struct in _STRUCTS)

_INSTEAD = "Kubernetes has replaced its kind; write a ClusterNetworkPolicy (v1alpha2) instead"
_NAMED = 3  # policies that the summary names


def policies_of(cluster: Cluster) -> tuple[Reference, ...]:
    found = [objects for member in _MEMBERS if (objects := objects_of(cluster, member))]  # mostly none
    return tuple(Reference.to(policy) for objects in found for policy in objects.values())


def policy_in(document: object) -> Reference | None:
    """The policy that a parsed manifest holds; None if it holds something else, or a malformed policy."""
    try:
        decoded = decode(document)
    except Malformed:
        return None
    return Reference.to(decoded) if isinstance(decoded, _STRUCTS) else None


def problems(policies: Iterable[Reference]) -> tuple[Problem, ...]:
    """One for each policy, for an Event about it."""
    sentence = f"Windlass does not enforce this policy: {_INSTEAD}"
    return tuple(Problem(_name(policy), sentence, policy, NOT_ENFORCED) for policy in policies)


def summary(policies: Iterable[Reference]) -> tuple[str, ...]:
    """One sentence about all policies together; none if there is no policy."""
    names = sorted(map(_name, policies))
    if not names:
        return ()
    what = "1 policy is not enforced" if len(names) == 1 else f"{len(names):,} policies are not enforced"
    listed = ", ".join([*names[:_NAMED], *(["..."] if len(names) > _NAMED else [])])
    return (f"{what}: {listed}; {_INSTEAD}",)


def _name(policy: Reference) -> str:
    return f"{policy.kind} {policy.namespace}/{policy.name}" if policy.namespace else f"{policy.kind} {policy.name}"
