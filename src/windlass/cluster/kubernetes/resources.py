"""What is asked of the API server: which kinds of objects, which of them, and where they go in a Cluster.

Nothing is asked for that nobody on this Node uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.cluster.endpoints import HEADLESS_LABEL
from windlass.cluster.objects import (
    EndpointSlice,
    Namespace,
    Node,
    PartialObjectMetadata,
    Pod,
    Service,
    ServiceCIDR,
    Watched,
)
from windlass.cluster.policies import POLICY_KINDS
from windlass.cluster.services import PROXY_NAME_LABEL

# As kube-proxy has it: the Services of another proxy, and what is for DNS only, are nobody's concern here.
FOR_US = f"!{HEADLESS_LABEL},!{PROXY_NAME_LABEL}"


@dataclass(frozen=True, slots=True)
class Resource:
    kind: type[Watched]
    path: str
    member: str  # of Cluster
    labels: str = ""
    fields: str = ""
    is_optional: bool = False  # there are servers that do not know it

    @property
    def is_metadata_only(self) -> bool:
        return self.kind is PartialObjectMetadata

    @property
    def name(self) -> str:
        """As in a role: what somebody must be allowed to read."""
        return self.path.rpartition("/")[2]

    @property
    def group(self) -> str:
        """Of the API; empty for the first one."""
        parts = self.path.split("/")
        return parts[2] if parts[1] == "apis" else ""

    @property
    def selectors(self) -> dict[str, str]:
        return {
            name: selector
            for name, selector in (("labelSelector", self.labels), ("fieldSelector", self.fields))
            if selector
        }


def resources(node_name: str) -> tuple[Resource, ...]:
    """Of all Nodes the Node objects, but only this one's Pods."""
    return (
        Resource(Node, "/api/v1/nodes", "nodes"),
        Resource(Pod, "/api/v1/pods", "pods", fields=f"spec.nodeName={node_name}"),
        Resource(Namespace, "/api/v1/namespaces", "namespaces"),
        Resource(Service, "/api/v1/services", "services", labels=FOR_US),
        Resource(
            EndpointSlice,
            "/apis/discovery.k8s.io/v1/endpointslices",
            "slices",
            labels=FOR_US,
        ),
        # In v1 since Kubernetes 1.33. Without it the Node learns ClusterIPs from the Services alone.
        Resource(ServiceCIDR, "/apis/networking.k8s.io/v1/servicecidrs", "service_cidrs", is_optional=True),
    )


def policy_resources() -> dict[str, Resource]:
    """By kind. The agent needs their names only; most servers know the first kind alone."""
    return {
        kind.name: Resource(
            PartialObjectMetadata, f"/apis/{kind.api_version}/{kind.resource}", "policies", is_optional=True
        )
        for kind in POLICY_KINDS
    }


def rules() -> list[dict[str, object]]:
    """Of a ClusterRole: what the agent must be allowed, to read all of this and to write as in `writing`. No more."""
    by_group: dict[str, list[str]] = {}
    for resource in (*resources(""), *policy_resources().values()):
        by_group.setdefault(resource.group, []).append(resource.name)
    reading = [(group, sorted(names), ["list", "watch"]) for group, names in by_group.items()]
    writing = [("", ["nodes"], ["patch"]), ("events.k8s.io", ["events"], ["create"])]
    return [{"apiGroups": [group], "resources": names, "verbs": verbs} for group, names, verbs in (*reading, *writing)]
