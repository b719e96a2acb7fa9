"""The permissions that the agent needs at the API server."""

from __future__ import annotations

from windlass.cluster.clusters import Cluster
from windlass.cluster.kinds import kinds_of


def rules(cluster: type[Cluster] = Cluster) -> list[dict[str, object]]:
    """The rules of a ClusterRole: read the kinds that `cluster` declares, write what `writing` writes, and no more."""
    by_group: dict[str, set[str]] = {}
    for kind in kinds_of(cluster).values():
        by_group.setdefault(kind.group, set()).add(kind.resource)
    reading = [(group, sorted(names), ["list", "watch"]) for group, names in by_group.items()]
    writing = [
        ("", ["nodes"], ["patch"]),
        ("events.k8s.io", ["events"], ["create"]),
        ("policy.networking.k8s.io", ["clusternetworkpolicies/status"], ["patch"]),
    ]
    return [{"apiGroups": [group], "resources": names, "verbs": verbs} for group, names, verbs in (*reading, *writing)]
