"""Predicts the outcome of a connection, by the rules of Kubernetes for Services and of this project for addresses.

It follows one connection from its client to the endpoints that may answer. Pure, and independent of the product's code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import ip_address, ip_network

from windlass.lab.fuzz.cluster_views import ClusterView
from windlass.lab.fuzz.eligible_endpoints import EndpointLocation, OracleEndpoint, choice, endpoints, listener, listens
from windlass.lab.scenarios.objects import LabNode, LabPod, LabService, LabServicePort, ProbeOutcome, parsed_network
from windlass.lab.scenarios.segments import PREFIX
from windlass.model.families import Family, IPAddress, family_of
from windlass.policy.oracle import PolicyPacket, judge_egress, judge_ingress

PRESERVED = "Preserved"
NODE_PORTS = range(30000, 32768)  # a Service with another NodePort is malformed


class FrontendKind(Enum):
    CLUSTER_IP = "ClusterIP"
    UNUSED_PORT = "unused port of a ClusterIP"
    NODE_PORT = "NodePort"
    EXTERNAL_IP = "externalIP"
    LOAD_BALANCER = "load balancer IP"


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a connection: exactly one field is set. A hostNetwork Pod uses the network of its Node."""

    node: str = ""
    pod: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """One connection. `via` is the Node to which the underlay routes an address that belongs to no Node."""

    client: Client
    address: IPAddress
    port: int
    protocol: str = "TCP"
    via: str = ""

    @property
    def family(self) -> Family:
        return family_of(self.address)


@dataclass(frozen=True, slots=True)
class Prediction:
    outcome: ProbeOutcome
    endpoints: tuple[OracleEndpoint, ...] = ()  # any of them may answer
    seen: frozenset[str] = frozenset()  # the client addresses that they may see; empty: not specified
    sticky: bool = False
    narrowed: bool = False  # the Service has other endpoints, which must not be chosen here
    why: str = ""
    seen_by: tuple[str | None, ...] = ()  # the client address that each endpoint sees
    entry: str = ""  # the Node where a Service is translated; empty: no Service
    inside: bool = False  # the client is on that Node

    @property
    def backends(self) -> frozenset[str]:
        return frozenset(endpoint.backend for endpoint in self.endpoints)


@dataclass(frozen=True, slots=True)
class PortClaim:
    """The Service port that a proxy serves at an address on a Node."""

    kind: FrontendKind
    service: LabService
    port: LabServicePort | None  # None: the Service does not have this port


def predict(cluster: ClusterView, query: Query) -> Prediction | None:
    """None if the rules do not specify the outcome."""
    answer = _without_policies(cluster, query)
    if answer is None or not cluster.has_policies or answer.outcome is ProbeOutcome.TIMEOUT:
        return answer
    allowed = allows(cluster, query, answer)
    if allowed is None:
        return None
    return answer if allowed else replace(answer, outcome=ProbeOutcome.TIMEOUT, why=f"{answer.why}: denied by policies")


def _without_policies(cluster: ClusterView, query: Query) -> Prediction | None:
    home = _home(cluster, query.client)
    if home is not None:
        if claim := claimed(cluster, home, query):
            return _served(cluster, query, claim, home, inside=True)
        if query.address in home.all_addresses or query.address.is_loopback:
            return _host_itself(cluster, query, home, PRESERVED)
    holders = (node for node in cluster.nodes.values() if query.address in node.all_addresses)
    entry = next(holders, cluster.nodes.get(query.via))
    if entry is None:
        return _outside(cluster, query, home)
    # At another Node, every packet comes from outside.
    if claim := claimed(cluster, entry, query):
        return _served(cluster, query, claim, entry, inside=False)
    if query.address in entry.all_addresses:
        return _host_itself(cluster, query, entry, _from_outside(cluster, query))
    return None


def claimed(cluster: ClusterView, node: LabNode, query: Query) -> PortClaim | None:
    """The Service port at this address and port on this Node."""
    services = [service for service in cluster.services.values() if service.is_served]
    for service in services:
        for kind, addresses in (
            (FrontendKind.CLUSTER_IP, service.cluster_ips),
            (FrontendKind.EXTERNAL_IP, service.external_ips),
            (FrontendKind.LOAD_BALANCER, service.served_load_balancer_ips),
        ):
            if query.address in addresses and query.family in map(family_of, service.cluster_ips):
                for port in service.spec.ports:
                    if (port.port, port.protocol.value) == (query.port, query.protocol):
                        return PortClaim(kind, service, port)
    if _node_ports_open(cluster, node, query):
        for service in services:
            for port in service.spec.ports:
                asked = (port.node_port, port.protocol.value) == (query.port, query.protocol)
                if asked and port.node_port in NODE_PORTS and query.family in map(family_of, service.cluster_ips):
                    return PortClaim(FrontendKind.NODE_PORT, service, port)
    unused = next((service for service in services if query.address in service.cluster_ips), None)
    return PortClaim(FrontendKind.UNUSED_PORT, unused, None) if unused else None


# At a proxy -----------------------------------------------------------------------------------------------------


def _served(cluster: ClusterView, query: Query, claim: PortClaim, entry: LabNode, *, inside: bool) -> Prediction | None:
    """`inside`: the client is on the Node `entry` itself."""
    service = claim.service
    words = f"{claim.kind.value} of {service.key} at {entry.name}"
    if claim.port is None:
        return Prediction(ProbeOutcome.REFUSED, why=words, entry=entry.name, inside=inside)
    everything = endpoints(cluster, service, claim.port, query.family)
    found = choice(everything, entry)
    if claim.kind is FrontendKind.LOAD_BALANCER:
        allowed = _in_range(cluster, query, service)
        if allowed is None or (not allowed and not found.any):
            return None  # the order of checking ranges and endpoints is not specified
        if not allowed:
            return Prediction(ProbeOutcome.TIMEOUT, why=f"{words}: the client is outside of loadBalancerSourceRanges")
    if not found.any:
        if query.protocol == "SCTP" and not inside and not query.client.host:
            return None  # the ICMP error may reach another Pod with the same translated source: see decision 9
        words += ": the Service has no endpoint"
        return Prediction(ProbeOutcome.REFUSED, why=words, entry=entry.name, inside=inside)
    local, masquerade = _policy(claim, inside=inside, from_pod=_pod(cluster, query.client) is not None)
    access = _ServiceAccess(cluster, query, claim, entry, inside, masquerade)
    eligible = found.local if local else found.cluster
    words += ", only endpoints of this Node" if local else ""
    if not eligible:
        return Prediction(ProbeOutcome.TIMEOUT, why=f"{words}: this Node has none")
    answer = _chosen(access, eligible, words)
    return answer and replace(answer, narrowed=len(eligible) < len(everything), entry=entry.name, inside=inside)


def _policy(claim: PortClaim, *, inside: bool, from_pod: bool) -> tuple[bool, bool]:
    """Whether only endpoints of this Node may be chosen, and whether the connection is masqueraded."""
    spec = claim.service.spec
    if claim.kind is FrontendKind.CLUSTER_IP:
        return spec.internal_traffic_policy == "Local", not inside  # kube-proxy masquerades clients from outside
    if spec.external_traffic_policy != "Local":
        return False, True
    # A client on the Node itself may use all endpoints, and only Pods keep their address.
    return (False, not from_pod) if inside else (True, False)


@dataclass(frozen=True, slots=True)
class _ServiceAccess:
    """A connection to a Service port at the Node `entry`; `inside`: the client is on that Node."""

    cluster: ClusterView
    query: Query
    claim: PortClaim
    entry: LabNode
    inside: bool
    masquerade: bool


def _chosen(access: _ServiceAccess, eligible: tuple[OracleEndpoint, ...], why: str) -> Prediction | None:
    answering = [endpoint for endpoint in eligible if endpoint.backend]
    if not answering:
        if access.cluster.has_policies:
            return None  # policies may deny the port: a client cannot distinguish that from a port without a listener
        return _no_listener(access.query, f"{why}: it has endpoints")
    if len(answering) < len(eligible):
        return None  # the outcome depends on the choice
    seen = [_seen(access, endpoint) for endpoint in eligible]
    sticky = access.claim.service.spec.session_affinity == "ClientIP"
    known = frozenset(s for s in seen if s) if all(seen) else frozenset()
    return Prediction(ProbeOutcome.CONNECTED, eligible, known, sticky, why=why, seen_by=tuple(seen))


def _seen(access: _ServiceAccess, endpoint: OracleEndpoint) -> str | None:
    """The client address that the endpoint sees; None if it is not specified."""
    cluster, query, entry = access.cluster, access.query, access.entry
    inside, masquerade = access.inside, access.masquerade
    gateway, node_ip = str(entry.gateway(query.family)), str(entry.addresses.get(query.family))
    elsewhere = endpoint.place is EndpointLocation.OUTSIDE or (
        endpoint.place is EndpointLocation.NODE and endpoint.host != entry.name
    )
    if elsewhere and (inside or masquerade):
        # Connections that leave the Pod network are masqueraded with the address of the NIC that leads there.
        return str(_address_towards(entry, endpoint.address)) if endpoint.address else node_ip
    if not inside and not masquerade:
        return _from_outside(cluster, query)
    pod = _pod(cluster, query.client)
    if pod and not masquerade:
        return gateway if endpoint.backend == pod.key else PRESERVED  # hairpin: a Pod cannot reply to itself
    if endpoint.place is not EndpointLocation.POD:
        return None
    local = access.claim.kind is FrontendKind.NODE_PORT and access.claim.service.spec.external_traffic_policy == "Local"
    return node_ip if inside and local and cluster.pods[endpoint.backend].spec.node_name != entry.name else gateway


def _in_range(cluster: ClusterView, query: Query, service: LabService) -> bool | None:
    """Whether the source ranges allow the client. Only ranges of its family matter."""
    written = (parsed_network(cidr.strip()) for cidr in service.spec.load_balancer_source_ranges)
    ranges = [network for network in written if family_of(network) is query.family]
    source = _source(cluster, query) if ranges else None
    if source is None:
        return None if ranges else True
    return any(source in network for network in ranges)


def _node_ports_open(cluster: ClusterView, node: LabNode, query: Query) -> bool:
    of_the_node = query.address in node.all_addresses
    by_loopback = query.address.is_loopback and _home(cluster, query.client) == node
    networks = cluster.node_port_networks
    return (of_the_node or by_loopback) and (not networks or any(query.address in n for n in networks))


def _no_listener(query: Query, where: str) -> Prediction | None:
    """Refused, but not specified for SCTP: the kernel sends no ABORT if the lab has a raw SCTP socket there."""
    return None if query.protocol == "SCTP" else Prediction(ProbeOutcome.REFUSED, why=f"{where}, but nothing listens")


def _host_itself(cluster: ClusterView, query: Query, node: LabNode, seen: str) -> Prediction | None:
    """The Node's own network, without a Service: only hostNetwork Pods listen there."""
    backend, why = listener(cluster, node.name, query.protocol, query.port), f"{node.name} itself"
    if not backend:
        return _no_listener(query, why)
    found = OracleEndpoint(backend, EndpointLocation.NODE, node.name, node.name)
    return Prediction(ProbeOutcome.CONNECTED, (found,), frozenset({seen}), why=why)


def _pod_itself(cluster: ClusterView, query: Query) -> Prediction | None:
    """A Pod, without a Service. Not specified from outside unless the underlay has routes to Pods."""
    pod = next((pod for pod in cluster.pods.values() if query.address in pod.fixed_addresses), None)
    is_specified = cluster.has_policies and (cluster.routes_pods or not query.client.host)
    if pod is None or query.client.pod == pod.key or not is_specified:
        return None
    found = OracleEndpoint(pod.key, EndpointLocation.POD, pod.spec.node_name, address=query.address)
    answers = query.protocol == "ICMP" or listens(pod, query.protocol, query.port)
    return Prediction(ProbeOutcome.CONNECTED, (found,), why=f"{pod.key} itself") if answers else None


def _outside(cluster: ClusterView, query: Query, home: LabNode | None) -> Prediction | None:
    if any(query.address in cidr for node in cluster.nodes.values() for cidr in node.pod_cidrs.values()):
        return _pod_itself(cluster, query)
    if query.protocol == "SCTP" and query.client.pod and home is not None and home.is_windows:
        return None  # that datapath does not translate SCTP
    for host in cluster.hosts.values():
        if query.address in host.addresses:
            if not listens(host, query.protocol, query.port):
                return _no_listener(query, f"{host.name}, outside")
            found = OracleEndpoint(f"externalHost/{host.name}", EndpointLocation.OUTSIDE, "")
            seen = str(_source_of_node(home, query)) if home and _pod(cluster, query.client) else PRESERVED
            return Prediction(ProbeOutcome.CONNECTED, (found,), frozenset({seen}), why=f"{host.name}, outside")
    return Prediction(ProbeOutcome.REFUSED, why="no machine has this address: the router reports it as unreachable")


# Policies -------------------------------------------------------------------------------------------------------


def allows(cluster: ClusterView, query: Query, answer: Prediction) -> bool | None:
    """Whether policies allow the connection to all endpoints of the answer, or to none; None if it depends."""
    if not answer.endpoints:
        return _allows_egress(cluster, query, query.address, query.port) if not answer.inside else True
    verdicts: set[bool | None] = set()
    seen_by = answer.seen_by or (None,) * len(answer.endpoints)
    for endpoint, seen in zip(answer.endpoints, seen_by, strict=True):
        address, port = _address_of(cluster, query, endpoint), endpoint.port or query.port
        if address is None:
            return None
        is_translated = answer.inside or not answer.entry
        egress = _allows_egress(cluster, query, *((address, port) if is_translated else (query.address, query.port)))
        ingress = _allows_ingress(cluster, query, answer, endpoint, address, port, seen)
        verdicts.add(None if ingress is None else egress and ingress)
    return verdicts.pop() if len(verdicts) == 1 else None


def _allows_egress(cluster: ClusterView, query: Query, address: IPAddress, port: int) -> bool:
    pod = _pod(cluster, query.client)
    source = next((one for one in pod.fixed_addresses if family_of(one) is query.family), None) if pod else None
    if source is None:
        return True
    return judge_egress(cluster.policies, PolicyPacket(source, address, query.protocol, port or None)).allowed


def _allows_ingress(
    cluster: ClusterView,
    query: Query,
    answer: Prediction,
    endpoint: OracleEndpoint,
    address: IPAddress,
    port: int,
    seen: str | None,
) -> bool | None:
    """Policies see the client where it enters, before it is masqueraded; another Node sees the masqueraded one."""
    if endpoint.place is not EndpointLocation.POD or endpoint.backend not in cluster.pods:
        return True
    node = cluster.pods[endpoint.backend].spec.node_name
    sources = _sources(cluster, query, answer)
    if answer.entry and node != answer.entry and seen != PRESERVED:
        sources = [ip_address(seen)] if seen else []
    packets = (PolicyPacket(source, address, query.protocol, port or None) for source in sources)
    verdicts = {judge_ingress(cluster.policies, packet).allowed for packet in packets}
    return verdicts.pop() if len(verdicts) == 1 else None


def _sources(cluster: ClusterView, query: Query, answer: Prediction) -> list[IPAddress]:
    """The addresses by which the client may be seen. A host's depends on the way to the Pod."""
    home, pod = _home(cluster, query.client), _pod(cluster, query.client)
    if home and not pod:
        found = [*home.all_addresses, home.gateway(query.family)]
    elif home and answer.entry and not answer.inside:
        found = [_source_of_node(home, query)]  # a Pod's connection leaves its Node masqueraded
    else:
        found = [_source(cluster, query)]
    return [one for one in found if one and family_of(one) is query.family]


def _address_of(cluster: ClusterView, query: Query, endpoint: OracleEndpoint) -> IPAddress | None:
    if endpoint.address is not None or not endpoint.backend:
        return endpoint.address
    if endpoint.place is EndpointLocation.POD and endpoint.backend in cluster.pods:
        own = cluster.pods[endpoint.backend].fixed_addresses
        return next((one for one in own if family_of(one) is query.family), None)
    return query.address  # the Node itself, or a host outside


# Clients --------------------------------------------------------------------------------------------------------


def home_of(cluster: ClusterView, client: Client) -> str:
    """The Node of the client; empty for a client outside of the cluster."""
    return cluster.pods[client.pod].spec.node_name if client.pod else client.node


def _home(cluster: ClusterView, client: Client) -> LabNode | None:
    return cluster.nodes.get(home_of(cluster, client))


def _pod(cluster: ClusterView, client: Client) -> LabPod | None:
    """The Pod of the client, unless it has hostNetwork."""
    pod = cluster.pods.get(client.pod)
    return None if pod is None or pod.spec.host_network else pod


def _from_outside(cluster: ClusterView, query: Query) -> str:
    """The client address that another Node sees: Pods are masqueraded with the address of their Node's NIC."""
    pod = _pod(cluster, query.client)
    return str(_source_of_node(cluster.nodes[pod.spec.node_name], query)) if pod else PRESERVED


def _source(cluster: ClusterView, query: Query) -> IPAddress | None:
    """The source address of the client."""
    pod, home = _pod(cluster, query.client), _home(cluster, query.client)
    if home and not pod:
        return _source_of_node(home, query)
    addresses = pod.fixed_addresses if pod else cluster.hosts[query.client.host].addresses
    return next((one for one in addresses if family_of(one) is query.family), None)


def _source_of_node(node: LabNode, query: Query) -> IPAddress | None:
    """The Node's source address: to itself, the destination; otherwise that of the NIC that leads there."""
    is_own = query.address in node.all_addresses or query.address.is_loopback
    return query.address if is_own else _address_towards(node, query.address)


def _address_towards(node: LabNode, other: IPAddress) -> IPAddress | None:
    """The address of the NIC on the segment of a neighbour; for other destinations, the Node IP."""
    main = node.addresses.get(family_of(other))
    return next((own for own in node.all_addresses if on_one_wire([own], other)), main)


def on_one_wire(addresses: Iterable[IPAddress], other: IPAddress) -> bool:
    same = (address for address in addresses if family_of(address) is family_of(other))
    return any(other in ip_network((address, PREFIX[family_of(other)]), strict=False) for address in same)
