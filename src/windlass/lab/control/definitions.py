"""Definitions of kinds that are not built into the API server. They accept any contents: the agents check them."""

from __future__ import annotations

import asyncio

from windlass.cluster.clusters import KINDS
from windlass.cluster.kinds import WatchedKind
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused
from windlass.cluster.objects import APIObject
from windlass.cluster.policy_objects import ClusterNetworkPolicy
from windlass.lab.control.control_planes import apply
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.time_limits import seconds

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATIENCE = seconds(30.0)  # how long the server may take to serve a new kind
_PAUSE = 0.05  # the server gives no signal
CLUSTER_NETWORK_POLICIES = next(kind for kind in KINDS if kind.struct is ClusterNetworkPolicy)


def definition(kind: WatchedKind[APIObject]) -> dict[str, object]:
    group, _, version = kind.api_version.rpartition("/")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    # Kubernetes requires this annotation for groups of its own domain.
    approved = {"api-approved.kubernetes.io": "unapproved, a definition of a lab"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.resource}.{group}", "annotations": approved},
        "spec": {
            "group": group,
            "scope": "Namespaced" if kind.struct.is_namespaced else "Cluster",
            "names": {"plural": kind.resource, "kind": kind.name},
            "versions": [served],
        },
    }


async def define(connection: APIConnection, kind: WatchedKind[APIObject]) -> None:
    """Returns when the server serves the kind."""
    content = definition(kind)
    await apply(connection, content, f"{DEFINITIONS}/{kind.resource}.{kind.group}")
    try:
        async with asyncio.timeout(PATIENCE):
            while not await _is_served(connection, kind):  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise LabError(f"the API server does not serve {kind.resource} within {PATIENCE:g} s") from None


async def _is_served(connection: APIConnection, kind: WatchedKind[APIObject]) -> bool:
    try:
        await connection.request("GET", kind.path)
    except RequestRefused:
        return False
    return True
