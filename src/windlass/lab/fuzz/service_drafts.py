"""Drafts of the Services of a random cluster and their slices, and the documents made from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from windlass.lab.fuzz.cluster_views import Document
from windlass.lab.fuzz.eligible_endpoints import SERVICE_OF_SLICE
from windlass.lab.fuzz.machine_drafts import NAMESPACE, NAMESPACES, V4, EndpointState, HostDraft, PodDraft
from windlass.model.families import Family

_Numbers = tuple[tuple[str, str, int], ...]  # of ports: name, protocol, number

_CONDITIONS: dict[EndpointState, dict[str, bool]] = {
    EndpointState.READY: {"ready": True, "serving": True, "terminating": False},
    EndpointState.UNSAID: {},
    EndpointState.NOT_READY: {"ready": False, "serving": False},
    EndpointState.DRAINING: {"ready": False, "serving": True, "terminating": True},
    EndpointState.ENDED: {"ready": False, "serving": False, "terminating": True},
}


@dataclass(frozen=True, slots=True)
class PortDraft:
    name: str
    port: int
    protocol: str
    target: str  # the name of the port in the Pods
    target_number: int | None = None  # used instead of the name, if all Pods have this number
    node_port: int = 0

    def document(self, *, alone: bool) -> Document:
        """The only port of a Service needs no name."""
        return {
            **({} if alone and not self.name else {"name": self.name}),
            "port": self.port,
            **({} if self.protocol == "TCP" else {"protocol": self.protocol}),
            "targetPort": self.target_number or self.target,
            **({"nodePort": self.node_port} if self.node_port else {}),
        }


@dataclass(frozen=True, slots=True)
class EndpointDraft:
    """An endpoint in a slice of the scenario, not of the controller."""

    backend: str  # the key of a Pod, or the name of an ExternalHost
    state: EndpointState = EndpointState.READY
    part: int = 0  # the number of the slice that contains it
    twice: bool = False  # another slice contains it, too, without nodeName
    other: bool = False  # for a hostNetwork Pod: at the second address of its Node
    for_nodes: tuple[str, ...] = ()
    for_zones: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceDraft:
    number: int  # unique in the cluster: part of its name, its addresses and its NodePorts
    families: tuple[Family, ...]
    ports: tuple[PortDraft, ...]
    app: str
    type: str = "ClusterIP"
    endpoints: tuple[EndpointDraft, ...] | None = None  # None: the controller makes the slices
    external_policy: str = ""
    internal_policy: str = ""
    external_ips: tuple[str, ...] = ()
    ingress: tuple[tuple[str, str], ...] = ()  # address (empty: a host name instead) and ipMode (empty: absent)
    ranges: tuple[str, ...] = ()
    affinity: int = 0  # seconds; 0: none
    distribution: str = ""
    publish_not_ready: bool = False
    own_node_ports: bool = True

    @property
    def name(self) -> str:
        return f"s{self.number}"

    @property
    def namespace(self) -> str:
        return NAMESPACES.get(self.app, NAMESPACE)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def outside(self) -> bool:
        """Whether externalTrafficPolicy applies to it."""
        return self.type != "ClusterIP" or bool(self.external_ips)

    def document(self) -> Document:
        spec: Document = {"type": self.type, "clusterIP": cluster_ip(self.families[0], self.number)}
        if len(self.families) > 1:
            spec |= {
                "ipFamilyPolicy": "RequireDualStack",
                "clusterIPs": [cluster_ip(f, self.number) for f in self.families],
            }
        spec["ipFamilies"] = [str(family) for family in self.families]
        spec |= {
            name: value
            for name, value in {
                "selector": {"app": self.app} if self.endpoints is None else {},
                "externalTrafficPolicy": self.external_policy if self.outside else "",
                "internalTrafficPolicy": self.internal_policy,
                "externalIPs": list(self.external_ips),
                "loadBalancerSourceRanges": list(self.ranges) if self.type == "LoadBalancer" else [],
                "trafficDistribution": self.distribution,
                "publishNotReadyAddresses": self.publish_not_ready,
            }.items()
            if value
        }
        if self.type == "LoadBalancer" and not self.own_node_ports:
            spec["allocateLoadBalancerNodePorts"] = False
        if self.type == "LoadBalancer" and self.external_policy == "Local":
            spec["healthCheckNodePort"] = 31000 + self.number
        if self.affinity:
            spec["sessionAffinity"] = "ClientIP"
            spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": self.affinity}}
        spec["ports"] = [port.document(alone=len(self.ports) == 1) for port in self.ports]
        document: Document = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": spec,
        }
        if self.type == "LoadBalancer" and self.ingress:
            ingress = [
                {"hostname": "balancer.example.com"} if not ip else {"ip": ip, **({"ipMode": mode} if mode else {})}
                for ip, mode in self.ingress
            ]
            document["status"] = {"loadBalancer": {"ingress": ingress}}
        return document


def cluster_ip(family: Family, number: int) -> str:
    """Some are in another range, as after the cluster got a second ServiceCIDR."""
    if number % 5 == 0:
        return f"10.100.7.{number}" if family is V4 else f"fd00:10:100::{number}"
    return f"10.96.0.{number}" if family is V4 else f"fd00:10:96::{number}"


def slices(
    service: ServiceDraft,
    written: Iterable[EndpointDraft],
    pods: Iterable[PodDraft],
    hosts: Iterable[HostDraft],
) -> Iterator[Document]:
    """Endpoints of one part with the same port numbers share a slice per family."""
    known: dict[str, PodDraft | HostDraft] = {pod.key: pod for pod in pods} | {host.name: host for host in hosts}
    groups: dict[tuple[Family, int, _Numbers], list[Document]] = {}
    for family in service.families:
        for endpoint in written:
            backend = known[endpoint.backend]
            numbers = _numbers(service, backend)
            groups.setdefault((family, endpoint.part, numbers), []).append(_endpoint(endpoint, backend, family))
            if endpoint.twice:
                again = {k: v for k, v in _endpoint(endpoint, backend, family).items() if k != "nodeName"}
                groups.setdefault((family, 9, numbers), []).append(again)
        if not any(group[0] is family for group in groups):
            groups[family, 0, ()] = []
    for number, ((family, _, ports), endpoints) in enumerate(sorted(groups.items(), key=_order)):
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{service.name}-{str(family).lower()}-{number}",
                "namespace": service.namespace,
                "labels": {SERVICE_OF_SLICE: service.name},
            },
            "addressType": str(family),
            "ports": [{"name": name, "protocol": protocol, "port": port} for name, protocol, port in ports],
            "endpoints": endpoints,
        }


def _order(
    group: tuple[tuple[Family, int, _Numbers], list[Document]],
) -> tuple[str, int, _Numbers]:
    (family, part, ports), _ = group
    return str(family), part, ports


def _numbers(service: ServiceDraft, backend: PodDraft | HostDraft) -> _Numbers:
    """The Service ports with their numbers at this backend, without ports that it does not have."""
    if isinstance(backend, HostDraft):
        numbers = [dict(backend.ports).get(port.protocol) for port in service.ports]  # the last one of each protocol
    else:
        numbers = [backend.port(port.target, port.protocol) for port in service.ports]
    return tuple((p.name, p.protocol, n) for p, n in zip(service.ports, numbers, strict=True) if n)


def _endpoint(endpoint: EndpointDraft, backend: PodDraft | HostDraft, family: Family) -> Document:
    hints: Document = {}
    if endpoint.for_nodes:
        hints["forNodes"] = [{"name": name} for name in endpoint.for_nodes]
    if endpoint.for_zones:
        hints["forZones"] = [{"name": name} for name in endpoint.for_zones]
    conditions = _CONDITIONS[endpoint.state]
    address = backend.address(family)
    if endpoint.other and isinstance(backend, PodDraft) and backend.host_network and backend.node.second:
        address = backend.node.other(family)
    return {
        "addresses": [address],
        **({"conditions": dict(conditions)} if conditions else {}),
        **({"nodeName": backend.node.name} if isinstance(backend, PodDraft) else {}),
        **({"hints": hints} if hints else {}),
    }
