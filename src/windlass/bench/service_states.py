"""The cluster of `windlass bench services`: one Node, and Services with endpoints on many Nodes. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, ip_interface, ip_network
from typing import TypeVar

import msgspec

from windlass.cluster.catalogues import SERVICE_LABEL
from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.nodes import OS_LABEL
from windlass.cluster.objects import EndpointSlice, Node, Service, ServiceCIDR
from windlass.model.families import Family
from windlass.model.nodes import LocalNode, OperatingSystem, TrafficMode, TunnelType

NODE, NODE_IP, POD_CIDR = "node-1", "10.176.25.11", "172.16.1.0/24"
SERVICE_CIDR = "10.96.0.0/12"

_POD_CIDRS = {Family.IPV4: ip_network(POD_CIDR)}
SERVING_NODE = ServingNode(NODE, zone="", families=(Family.IPV4,), pod_cidrs=_POD_CIDRS)
LOCAL_NODE = LocalNode(
    name=NODE,
    mode=TrafficMode.ENCAP,
    tunnel=TunnelType.GENEVE,
    os=OperatingSystem.LINUX,
    addresses={Family.IPV4: ip_interface(f"{NODE_IP}/24")},
    pod_cidrs=_POD_CIDRS,
    uplink_mac="02:00:00:00:00:01",
    service_cidrs=(ip_network(SERVICE_CIDR),),
)

_CLUSTER_IPS, _PODS = IPv4Address("10.96.0.1"), IPv4Address("10.128.0.0")
_UNUSED_POD = 1 << 20  # numbers from here on belong to no Pod of the cluster
_NODES = 100  # Nodes that the endpoints are spread over
_Kind = TypeVar("_Kind", Node, Service, EndpointSlice, ServiceCIDR)


def cluster(services: int, endpoints: int, os: OperatingSystem = OperatingSystem.LINUX) -> Cluster:
    """Services of one TCP port each, and a slice for each. `os` is that of the Node."""
    return Cluster(
        revision="0",
        nodes={NODE: _object(Node, {"name": NODE, "labels": {OS_LABEL: os.value}}, **_NODE)},
        services=_by_key(service(number) for number in range(services)),
        slices=_by_key(
            endpoint_slice(number, range(number * endpoints, (number + 1) * endpoints)) for number in range(services)
        ),
        service_cidrs={"kubernetes": _object(ServiceCIDR, {"name": "kubernetes"}, spec={"cidrs": [SERVICE_CIDR]})},
    )


def service(number: int) -> Service:
    address = str(_CLUSTER_IPS + number)
    spec = {
        "type": "ClusterIP",
        "clusterIP": address,
        "clusterIPs": [address],
        "ipFamilies": ["IPv4"],
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        "internalTrafficPolicy": "Cluster",
        "sessionAffinity": "None",
    }
    return _object(Service, {"namespace": "default", "name": f"service-{number:05}"}, spec=spec)


def spread(times: int, count: int) -> int:
    """One of `count` numbers: consecutive `times` give numbers that are far apart."""
    return 7919 * times % count


def changed_slice(number: int, endpoints: int, times: int) -> EndpointSlice:
    """The slice of Service `number` with a new Pod in place of the last one, a different one for each of `times`."""
    first = number * endpoints
    return endpoint_slice(number, [*range(first, first + endpoints - 1), _UNUSED_POD + times])


def endpoint_slice(number: int, pods: Iterable[int]) -> EndpointSlice:
    """The slice of Service `number`, with these Pods behind it."""
    metadata = {
        "namespace": "default",
        "name": f"service-{number:05}-abcde",
        "labels": {SERVICE_LABEL: f"service-{number:05}"},
    }
    endpoints = [
        {
            "addresses": [str(_PODS + pod)],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": f"node-{pod % _NODES + 1}",
        }
        for pod in pods
    ]
    ports = [{"name": "http", "protocol": "TCP", "port": 8080}]
    return _object(EndpointSlice, metadata, addressType="IPv4", ports=ports, endpoints=endpoints)


_NODE = {"spec": {"podCIDRs": [POD_CIDR]}, "status": {"addresses": [{"type": "InternalIP", "address": NODE_IP}]}}


def _object(kind: type[_Kind], metadata: object, **fields: object) -> _Kind:
    """Decoded from JSON, so that no two objects share a part, as from an API server."""
    return msgspec.json.decode(msgspec.json.encode({"kind": kind.__name__, "metadata": metadata, **fields}), type=kind)


def _by_key(objects: Iterable[_Kind]) -> dict[str, _Kind]:
    return {one.key: one for one in objects}
