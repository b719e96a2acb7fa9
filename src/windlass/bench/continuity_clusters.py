"""The cluster of `windlass bench continuity`, and its objects in all forms that they take. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from windlass.bench import lab_clusters, service_states
from windlass.files import write
from windlass.lab.scenarios.directives import ProbeSource
from windlass.lab.scenarios.objects import KUBERNETES_KINDS, KubernetesObject
from windlass.lab.scenarios.scenario_files import Scenario

NODE, NODE_IP = "node-1", "10.176.25.11"  # its agent is killed, and its NodePort is loaded
INSIDE, OUTSIDE = ProbeSource(pod="default/client"), ProbeSource(external_host="client")
CLUSTER_IP, PORT, NODE_PORT, TARGET_PORT = "10.111.0.10", 80, 30080, 8080
SERVERS = ("web-1", "web-2")  # on the client's Node, and on another
ENDPOINTS = 10  # per Service that is not loaded

_ADDRESSES = {"web-1": "172.16.1.30", "web-2": "172.16.2.30"}
_OUTSIDE = ("10.176.0.0/16", "172.16.1.1/32")
_NODES = {"web-1": NODE, "web-2": "node-2"}
# No container has a port: the load's own process answers.
_CLUSTER = f"""
apiVersion: v1
kind: List
items:
  - {{apiVersion: v1, kind: Node, metadata: {{name: {NODE}}}, spec: {{podCIDRs: [172.16.1.0/24]}},
     status: {{addresses: [{{type: InternalIP, address: {NODE_IP}}}]}}}}
  - {{apiVersion: v1, kind: Node, metadata: {{name: node-2}}, spec: {{podCIDRs: [172.16.2.0/24]}},
     status: {{addresses: [{{type: InternalIP, address: 10.176.25.12}}]}}}}
  - {{apiVersion: v1, kind: Pod, metadata: {{name: client, labels: {{app: client}}}}, spec: {{nodeName: {NODE}}}}}
  - {{apiVersion: v1, kind: Pod, metadata: {{name: web-1, labels: {{app: web}}}}, spec: {{nodeName: {_NODES["web-1"]}}},
     status: {{podIPs: [{{ip: {_ADDRESSES["web-1"]}}}]}}}}
  - {{apiVersion: v1, kind: Pod, metadata: {{name: web-2, labels: {{app: web}}}}, spec: {{nodeName: {_NODES["web-2"]}}},
     status: {{podIPs: [{{ip: {_ADDRESSES["web-2"]}}}]}}}}
  - {{apiVersion: windlass.dev/v1alpha1, kind: ExternalHost, metadata: {{name: client}},
     spec: {{addresses: [10.176.26.36]}}}}
---
apiVersion: windlass.dev/v1alpha1
kind: Probes
metadata: {{name: first}}
spec:
  share: {{connections: 20, expect: {{backends: [web-1, web-2]}}}}
  each:
    cluster-ip: {{from: {{pod: default/client}}, to: {{address: {CLUSTER_IP}, port: {PORT}}}}}
    node-port: {{from: {{externalHost: client}}, to: {{address: {NODE_IP}, port: {NODE_PORT}}}}}
"""


@dataclass(frozen=True, slots=True)
class ServiceForm:
    """The type and the policy of the Service for a while."""

    type: str
    policy: str = ""

    @property
    def has_node_port(self) -> bool:
        return self.type != "ClusterIP"

    def __str__(self) -> str:
        return f"type {self.type}" + (f", externalTrafficPolicy {self.policy}" if self.policy else "")


FIRST_FORM = ServiceForm("NodePort", "Cluster")
FORMS = (
    ServiceForm("NodePort", "Local"),
    FIRST_FORM,
    ServiceForm("ClusterIP"),
    FIRST_FORM,
    ServiceForm("LoadBalancer", "Cluster"),
    ServiceForm("LoadBalancer", "Local"),
    FIRST_FORM,
)


def scenario() -> Scenario:
    """One step: the cluster with its Service and both endpoints."""
    read = lab_clusters.scenario_of("continuity", _CLUSTER)
    (step,) = read.steps
    changing = (service(FIRST_FORM), endpoint_slice(SERVERS), *network_policies(TARGET_PORT))
    return replace(read, steps=(replace(step, objects=(*step.objects, *changing)),))


def service(form: ServiceForm) -> KubernetesObject:
    port: dict[str, object] = {"name": "http", "protocol": "TCP", "port": PORT, "targetPort": TARGET_PORT}
    if form.has_node_port:
        port["nodePort"] = NODE_PORT
    spec: dict[str, object] = {
        "type": form.type,
        "clusterIP": CLUSTER_IP,
        "clusterIPs": [CLUSTER_IP],
        "ipFamilies": ["IPv4"],
        "ports": [port],
    }
    if form.policy:
        spec["externalTrafficPolicy"] = form.policy
    return _object("v1", "Service", {"name": "web", "namespace": "default"}, {"spec": spec})


def endpoint_slice(servers: Sequence[str]) -> KubernetesObject:
    metadata = {"name": "web-abcde", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}}
    endpoints = [
        {
            "addresses": [_ADDRESSES[name]],
            "nodeName": _NODES[name],
            "conditions": {"ready": True, "serving": True, "terminating": False},
        }
        for name in servers
    ]
    ports = [{"name": "http", "protocol": "TCP", "port": TARGET_PORT}]
    fields = {"addressType": "IPv4", "ports": ports, "endpoints": endpoints}
    return _object("discovery.k8s.io/v1", "EndpointSlice", metadata, fields)


def network_policies(*ports: int) -> list[KubernetesObject]:
    """The client may send to the servers, and they accept from it and from outside: to these ports only.

    A server on another Node than the one with the NodePort sees the gateway of that one.
    """
    listed = [{"protocol": "TCP", "port": port} for port in ports]
    client, servers = ({"matchLabels": {"app": app}} for app in ("client", "web"))
    accepted = [{"podSelector": client}, *({"ipBlock": {"cidr": cidr}} for cidr in _OUTSIDE)]
    specs = {
        "client": {"podSelector": client, "policyTypes": ["Egress"]}
        | {"egress": [{"to": [{"podSelector": servers}], "ports": listed}]},
        "servers": {"podSelector": servers, "policyTypes": ["Ingress"]}
        | {"ingress": [{"from": accepted, "ports": listed}]},
    }
    return [
        _object("networking.k8s.io/v1", "NetworkPolicy", {"name": name, "namespace": "default"}, {"spec": spec})
        for name, spec in specs.items()
    ]


def add_services(folder: Path, services: int) -> None:
    """Add that many Services that are not loaded, in a file beside the lab's own manifests; the lab leaves it alone."""
    state = service_states.cluster(services, ENDPOINTS)
    items = [
        {"apiVersion": version, **msgspec.to_builtins(one)}
        for version, kind in (("v1", state.services), ("discovery.k8s.io/v1", state.slices))
        for one in kind.values()
    ]
    content = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items})
    write(folder / "more-services.json", content, durable=False)


def _object(version: str, kind: str, metadata: Mapping[str, object], fields: Mapping[str, object]) -> KubernetesObject:
    raw = {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
    return KubernetesObject(kind, msgspec.convert(raw, KUBERNETES_KINDS[version, kind]), raw)
