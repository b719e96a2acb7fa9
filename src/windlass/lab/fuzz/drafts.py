"""A random cluster before it is written as documents. It is immutable: a change gives a new draft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import yaml

from windlass.lab.fuzz.documents import Documents, WrittenDocument, directive, identity, manifest, nonempty
from windlass.lab.fuzz.eligible_endpoints import SERVICE_OF_SLICE
from windlass.lab.scenarios.objects import ZONE_LABEL
from windlass.model.families import Family

NAMESPACES = {"blue": "shop"}  # by app; all other apps are in NAMESPACE
NAMESPACE = "default"
TIERS = ("", "front", "back")  # the label that policies select by; empty: none
V4, V6 = Family.IPV4, Family.IPV6


_Numbers = tuple[tuple[str, str, int], ...]  # of ports: name, protocol, number


class EndpointState(Enum):
    """The state of an endpoint according to its conditions."""

    READY = "ready"
    UNSAID = "unsaid"  # no conditions, which means ready
    NOT_READY = "not ready"
    DRAINING = "draining"  # terminating and still serving
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class NodeDraft:
    number: int
    families: tuple[Family, ...]  # the primary one first
    segment: int
    second: int = 0  # the segment of its second NIC; 0: none
    second_type: str = "ExternalIP"
    zone: str = ""
    windows: bool = False

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    def main(self, family: Family) -> str:
        return machine_address(family, self.segment, 10 + self.number)

    def other(self, family: Family) -> str:
        return machine_address(family, self.second, 10 + self.number)

    @property
    def addresses(self) -> tuple[str, ...]:
        main = tuple(self.main(family) for family in self.families)
        return (*main, *(self.other(family) for family in self.families)) if self.second else main

    def cidr(self, family: Family) -> str:
        return f"172.16.{self.number}.0/24" if family is V4 else f"fd00:172:16:{self.number}::/64"

    def pod(self, family: Family, number: int) -> str:
        return f"172.16.{self.number}.{number}" if family is V4 else f"fd00:172:16:{self.number}::{number}"

    def document(self) -> WrittenDocument:
        labels = nonempty({ZONE_LABEL: self.zone, "kubernetes.io/os": "windows" if self.windows else ""})
        addresses = [{"type": "InternalIP", "address": self.main(family)} for family in self.families]
        addresses += [{"type": "Hostname", "address": self.name}]
        if self.second:
            addresses += [{"type": self.second_type, "address": self.other(family)} for family in self.families]
        spec = {"podCIDRs": [self.cidr(family) for family in self.families]}
        return manifest("Node", {"name": self.name, "labels": labels}, spec=spec, status={"addresses": addresses})


@dataclass(frozen=True, slots=True)
class HostDraft:
    name: str
    segment: int
    families: tuple[Family, ...]
    number: int = 36
    ports: tuple[tuple[str, int], ...] = ()

    def address(self, family: Family) -> str:
        return machine_address(family, self.segment, self.number)

    def document(self) -> WrittenDocument:
        ports = [{"port": port, "protocol": protocol} for protocol, port in self.ports]
        addresses = [self.address(family) for family in self.families]
        return directive("ExternalHost", self.name, nonempty({"addresses": addresses, "ports": ports}))


@dataclass(frozen=True, slots=True)
class PodDraft:
    app: str  # empty: a client
    number: int  # unique among all Pods of all steps
    node: NodeDraft
    ports: tuple[tuple[str, str, int], ...] = ()  # name, protocol, number
    host_network: bool = False
    state: EndpointState = EndpointState.READY
    tier: str = ""

    @property
    def name(self) -> str:
        return f"{self.app or 'client'}-{self.number}"

    @property
    def key(self) -> str:
        return f"{namespace_of(self.app)}/{self.name}"

    def address(self, family: Family) -> str:
        return self.node.main(family) if self.host_network else self.node.pod(family, 20 + self.number)

    def port(self, name: str, protocol: str) -> int | None:
        return next((number for n, p, number in self.ports if (n, p) == (name, protocol)), None)

    def document(self) -> WrittenDocument:
        ports = [{"name": name, "protocol": protocol, "containerPort": number} for name, protocol, number in self.ports]
        status: WrittenDocument = {}
        if not self.host_network:
            status["podIPs"] = [{"ip": self.address(family)} for family in self.node.families]
        if self.state in {EndpointState.NOT_READY, EndpointState.ENDED}:
            status["conditions"] = [{"type": "Ready", "status": "False"}]
        ending = self.state in {EndpointState.DRAINING, EndpointState.ENDED}
        metadata = {
            "name": self.name,
            "namespace": namespace_of(self.app),
            "labels": nonempty({"app": self.app, "tier": self.tier}),
            "deletionTimestamp": "2026-01-01T00:00:00Z" if ending else "",
        }
        containers = [nonempty({"name": "main", "ports": ports})]
        spec = nonempty({"nodeName": self.node.name, "hostNetwork": self.host_network, "containers": containers})
        return {**manifest("Pod", metadata, spec=spec), **nonempty({"status": status})}


def namespace_of(app: str) -> str:
    return NAMESPACES.get(app, NAMESPACE)


def machine_address(family: Family, segment: int, number: int) -> str:
    return f"10.176.{segment}.{number}" if family is V4 else f"fd00:10:176:{segment}::{number}"


# Services --------------------------------------------------------------------------------------------------------


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

    def document(self, *, alone: bool) -> WrittenDocument:
        """`alone`: the only port of a Service needs no name."""
        name = {"name": self.name} if self.name or not alone else {}
        fields = {
            "port": self.port,
            "protocol": "" if self.protocol == "TCP" else self.protocol,
            "targetPort": self.target_number or self.target,
            "nodePort": self.node_port,
        }
        return {**name, **nonempty(fields)}


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
    def key(self) -> str:
        return f"{namespace_of(self.app)}/{self.name}"

    @property
    def outside(self) -> bool:
        """Whether externalTrafficPolicy applies to it."""
        return self.type != "ClusterIP" or bool(self.external_ips)

    def document(self) -> WrittenDocument:
        spec: WrittenDocument = {"type": self.type, "clusterIP": cluster_ip(self.families[0], self.number)}
        if len(self.families) > 1:
            spec["ipFamilyPolicy"] = "RequireDualStack"
            spec["clusterIPs"] = [cluster_ip(family, self.number) for family in self.families]
        spec["ipFamilies"] = [str(family) for family in self.families]
        fields = {
            "selector": {"app": self.app} if self.endpoints is None else {},
            "externalTrafficPolicy": self.external_policy if self.outside else "",
            "internalTrafficPolicy": self.internal_policy,
            "externalIPs": list(self.external_ips),
            "loadBalancerSourceRanges": list(self.ranges) if self.type == "LoadBalancer" else [],
            "trafficDistribution": self.distribution,
            "publishNotReadyAddresses": self.publish_not_ready,
        }
        spec |= nonempty(fields)
        if self.type == "LoadBalancer" and not self.own_node_ports:
            spec["allocateLoadBalancerNodePorts"] = False
        if self.type == "LoadBalancer" and self.external_policy == "Local":
            spec["healthCheckNodePort"] = 31000 + self.number
        if self.affinity:
            spec["sessionAffinity"] = "ClientIP"
            spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": self.affinity}}
        spec["ports"] = [port.document(alone=len(self.ports) == 1) for port in self.ports]
        ingress = [
            nonempty({"ip": ip, "ipMode": mode}) if ip else {"hostname": "balancer.example.com"}
            for ip, mode in self.ingress
        ]
        status = {"loadBalancer": {"ingress": ingress}} if self.type == "LoadBalancer" and ingress else {}
        metadata = {"name": self.name, "namespace": namespace_of(self.app)}
        return {**manifest("Service", metadata, spec=spec), **nonempty({"status": status})}


def cluster_ip(family: Family, number: int) -> str:
    """Some are in another range, as after the cluster got a second ServiceCIDR."""
    if number % 5 == 0:
        return f"10.100.7.{number}" if family is V4 else f"fd00:10:100::{number}"
    return f"10.96.0.{number}" if family is V4 else f"fd00:10:96::{number}"


def slices(service: ServiceDraft, backends: Mapping[str, PodDraft | HostDraft]) -> Iterator[WrittenDocument]:
    """Endpoints of one part with the same port numbers share a slice per family."""
    groups: dict[tuple[Family, int, _Numbers], list[WrittenDocument]] = {}
    for family in service.families:
        for endpoint in service.endpoints or ():
            backend = backends[endpoint.backend]
            numbers = _numbers(service, backend)
            written = _endpoint(endpoint, backend, family)
            groups.setdefault((family, endpoint.part, numbers), []).append(written)
            if endpoint.twice:
                again = {name: value for name, value in written.items() if name != "nodeName"}
                groups.setdefault((family, 9, numbers), []).append(again)
        if not any(group[0] is family for group in groups):
            groups[family, 0, ()] = []
    ordered = sorted(groups, key=lambda group: (str(group[0]), *group[1:]))
    for number, (family, part, ports) in enumerate(ordered):
        metadata = {
            "name": f"{service.name}-{str(family).lower()}-{number}",
            "namespace": namespace_of(service.app),
            "labels": {SERVICE_OF_SLICE: service.name},
        }
        yield manifest(
            "EndpointSlice",
            metadata,
            api_version="discovery.k8s.io/v1",
            addressType=str(family),
            ports=[{"name": name, "protocol": protocol, "port": port} for name, protocol, port in ports],
            endpoints=groups[family, part, ports],
        )


def _numbers(service: ServiceDraft, backend: PodDraft | HostDraft) -> _Numbers:
    """The Service ports with their numbers at this backend, without ports that it does not have."""
    if isinstance(backend, HostDraft):
        numbers = [dict(backend.ports).get(port.protocol) for port in service.ports]  # the last one of each protocol
    else:
        numbers = [backend.port(port.target, port.protocol) for port in service.ports]
    return tuple((p.name, p.protocol, n) for p, n in zip(service.ports, numbers, strict=True) if n)


def _endpoint(endpoint: EndpointDraft, backend: PodDraft | HostDraft, family: Family) -> WrittenDocument:
    node = backend.node if isinstance(backend, PodDraft) else None
    address = backend.address(family)
    if endpoint.other and isinstance(backend, PodDraft) and backend.host_network and backend.node.second:
        address = backend.node.other(family)
    hints = {
        "forNodes": [{"name": name} for name in endpoint.for_nodes],
        "forZones": [{"name": name} for name in endpoint.for_zones],
    }
    return nonempty(
        {
            "addresses": [address],
            "conditions": dict(_CONDITIONS[endpoint.state]),
            "nodeName": node.name if node else "",
            "hints": nonempty(hints),
        }
    )


# The cluster -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draft:
    families: tuple[Family, ...]
    mode: str
    tunnel: str
    node_port_networks: tuple[str, ...]
    nodes: tuple[NodeDraft, ...]
    hosts: tuple[HostDraft, ...]
    pods: tuple[PodDraft, ...]
    services: tuple[ServiceDraft, ...]
    noise: tuple[WrittenDocument, ...] = ()
    teams: tuple[tuple[str, str], ...] = ()  # the label of each namespace; empty: the cluster has no policies
    policies: tuple[WrittenDocument, ...] = ()
    counts_rules: bool = False

    def documents(self) -> Iterator[WrittenDocument]:
        settings = nonempty(
            {
                "trafficMode": self.mode,
                "tunnelType": "" if self.mode == "noEncap" else self.tunnel,
                "nodePortAddresses": list(self.node_port_networks),
                "countPolicyRules": self.counts_rules,
            }
        )
        text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=True).strip()
        metadata = {"name": "windlass-config", "namespace": "kube-system"}
        yield manifest("ConfigMap", metadata, data={"windlass.yaml": text})
        for part in (self.nodes, self.hosts, self.pods, self.services):
            yield from (one.document() for one in part)
        backends: dict[str, PodDraft | HostDraft] = {pod.key: pod for pod in self.pods}
        backends |= {host.name: host for host in self.hosts}
        for service in self.services:
            if service.endpoints is not None:
                yield from slices(service, backends)
        yield from self.noise
        for name, team in self.teams:
            yield manifest("Namespace", {"name": name, "labels": {"team": team}})
        yield from self.policies

    def by_identity(self) -> Documents:
        return {identity(document): document for document in self.documents()}
