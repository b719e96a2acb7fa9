"""Services and EndpointSlices as the API has them, for tests."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

from windlass.cluster.clusters import decode
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.objects import EndpointSlice, Service
from windlass.model.families import Family
from windlass.model.nodes import OperatingSystem

NODE = ServingNode(
    "node-1",
    "zone-a",
    (Family.IPV4, Family.IPV6),
    OperatingSystem.LINUX,
    {Family.IPV4: ip_network("172.16.1.0/24"), Family.IPV6: ip_network("fd00:172:16:1::/64")},
)
HTTP = {"name": "http", "port": 80}


def service(name: str = "web", *, labels: object = None, ingress: object = None, **spec: object) -> Service:
    """One with a ClusterIP and the port `http`, by default."""
    decoded = decode(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {"clusterIPs": ["10.96.0.10"], "ports": [HTTP]} | spec,
            "status": {"loadBalancer": {"ingress": ingress}},
        }
    )
    assert isinstance(decoded, Service)
    return decoded


def endpoint(address: str, node: str | None = "node-2", **fields: Any) -> dict[str, object]:
    """Keywords: the conditions ready, serving and terminating; the hints zones and nodes."""
    conditions = {name: fields[name] for name in ("ready", "serving", "terminating") if name in fields}
    hints = {
        field: [{"name": name} for name in fields[given]]
        for field, given in (("forZones", "zones"), ("forNodes", "nodes"))
        if given in fields
    }
    return {"addresses": [address], "nodeName": node, "conditions": conditions or None, "hints": hints or None}


def slice_of(
    *endpoints: dict[str, object],
    name: str = "web-1",
    of: str | None = "web",
    ports: object = ({"name": "http", "port": 8080},),
    family: object = "IPv4",
    **labels: str,
) -> EndpointSlice:
    owner = {"kubernetes.io/service-name": of} if of else {}
    decoded = decode(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "default", "labels": owner | labels},
            "addressType": family,
            "ports": ports,
            "endpoints": endpoints,
        }
    )
    assert isinstance(decoded, EndpointSlice)
    return decoded
