"""What must come of a packet, by the rules that Kubernetes sets for Service proxies and the design notes for addresses.

It follows one connection from its client to whoever must answer. Pure; nothing here knows how the product does it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import ip_network

from windlass.lab.fuzz.cluster_views import ClusterView
from windlass.lab.fuzz.eligible_endpoints import EndpointLocation, OracleEndpoint, choice, endpoints, listener
from windlass.lab.fuzz.object_views import NodeView, PodView, ServicePortView, ServiceView, address
from windlass.lab.scenarios.objects import ProbeOutcome
from windlass.model.families import Family, IPAddress, family_of

PRESERVED = "Preserved"
LOOPBACK = ip_network("127.0.0.0/8")
WIRE = {Family.IPV4: 24, Family.IPV6: 64}  # addresses that share so many bits are on one wire


class FrontendKind(Enum):
    CLUSTER_IP = "ClusterIP"
    UNUSED_PORT = "unused port of a ClusterIP"
    NODE_PORT = "NodePort"
    EXTERNAL_IP = "externalIP"
    LOAD_BALANCER = "load balancer IP"


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks: exactly one of them. A hostNetwork Pod asks as its Node does."""

    node: str = ""
    pod: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """One connection: from whom to which address; `via` is the Node to which the underlay brings it, if it is no
    Node's own.
    """

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
    seen: frozenset[str] = frozenset()  # the client addresses that they may see; empty: the rules do not say
    sticky: bool = False
    narrowed: bool = False  # there are others, which may not be chosen here
    why: str = ""

    @property
    def backends(self) -> frozenset[str]:
        return frozenset(endpoint.backend for endpoint in self.endpoints)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a proxy answers for on a Node."""

    kind: FrontendKind
    service: ServiceView
    port: ServicePortView | None  # None: a port that the Service does not have


def predict(cluster: ClusterView, question: Query) -> Prediction | None:
    """None where the rules do not say what happens."""
    home = _home(cluster, question.client)
    if home is not None:
        claim = claimed(cluster, home, question)
        if claim:
            return _served(cluster, question, claim, home, inside=True)
        if question.address in home.addresses or question.address in LOOPBACK:
            return _host_itself(cluster, question, home, PRESERVED)
    entry = next((node for node in cluster.nodes.values() if question.address in node.addresses), None)
    entry = entry or cluster.nodes.get(question.via)
    if entry is None:
        return _outside(cluster, question, home)
    # To another Node it comes from outside, whoever sent it.
    claim = claimed(cluster, entry, question)
    if claim:
        return _served(cluster, question, claim, entry, inside=False)
    if question.address in entry.addresses:
        return _host_itself(cluster, question, entry, _from_outside(cluster, question))
    return None


def claimed(cluster: ClusterView, node: NodeView, question: Query) -> Claim | None:
    """The Service that this address and port belong to on this Node."""
    services = [service for service in cluster.services.values() if service.served]
    for service in services:
        for kind, addresses in (
            (FrontendKind.CLUSTER_IP, service.cluster_ips),
            (FrontendKind.EXTERNAL_IP, service.external_ips),
            (FrontendKind.LOAD_BALANCER, service.load_balancer_ips),
        ):
            if question.address in addresses and question.family in service.families:
                for port in service.spec.ports:
                    if (port.port, port.protocol) == (question.port, question.protocol):
                        return Claim(kind, service, port)
    if _node_ports_open(cluster, node, question):
        for service in services:
            for port in service.spec.ports:
                asked = (port.node_port, port.protocol) == (question.port, question.protocol)
                if asked and question.family in service.families:
                    return Claim(FrontendKind.NODE_PORT, service, port)
    unused = next((service for service in services if question.address in service.cluster_ips), None)
    return Claim(FrontendKind.UNUSED_PORT, unused, None) if unused else None


# At a proxy -----------------------------------------------------------------------------------------------------


def _served(cluster: ClusterView, question: Query, claim: Claim, entry: NodeView, *, inside: bool) -> Prediction | None:
    """`inside`: the client is on the Node `entry` itself."""
    service = claim.service
    words = f"{claim.kind.value} of {service.key} at {entry.name}"
    if claim.port is None:
        return Prediction(ProbeOutcome.REFUSED, why=words)
    everything = endpoints(cluster, service, claim.port, question.family)
    found = choice(everything, entry)
    if claim.kind is FrontendKind.LOAD_BALANCER:
        allowed = _in_range(cluster, question, service)
        if allowed is None or (not allowed and not found.any):
            return None  # whether the range or the lack of endpoints comes first is not said anywhere
        if not allowed:
            return Prediction(ProbeOutcome.TIMEOUT, why=f"{words}: the client is in none of its ranges")
    if not found.any:
        return Prediction(ProbeOutcome.REFUSED, why=f"{words}: no endpoint anywhere")
    local, masquerade = _policy(claim, inside=inside, from_pod=_pod(cluster, question.client) is not None)
    eligible = found.local if local else found.cluster
    words += ", endpoints of this Node only" if local else ""
    if not eligible:
        return Prediction(ProbeOutcome.TIMEOUT, why=f"{words}: there are none here")
    answer = _chosen(cluster, question, claim, entry, eligible, inside=inside, masquerade=masquerade, why=words)
    return answer and replace(answer, narrowed=len(eligible) < len(everything))


def _policy(claim: Claim, *, inside: bool, from_pod: bool) -> tuple[bool, bool]:
    """Whether only endpoints of this Node serve, and whether the client's address is replaced."""
    spec = claim.service.spec
    if claim.kind is FrontendKind.CLUSTER_IP:
        return spec.internal_traffic_policy == "Local", not inside  # as kube-proxy does with clients from outside
    if spec.external_traffic_policy != "Local":
        return False, True
    # Who is on the Node itself needs no detour by a load balancer: all endpoints. Only Pods keep their address.
    return (False, not from_pod) if inside else (True, False)


def _chosen(
    cluster: ClusterView,
    question: Query,
    claim: Claim,
    entry: NodeView,
    eligible: tuple[OracleEndpoint, ...],
    *,
    inside: bool,
    masquerade: bool,
    why: str,
) -> Prediction | None:
    answering = [endpoint for endpoint in eligible if endpoint.backend]
    if not answering:
        return _nobody_listens(question, f"{why}: its endpoints are there")
    if len(answering) < len(eligible):
        return None  # it depends on which one is chosen
    seen = [_seen(cluster, question, claim, entry, e, inside=inside, masquerade=masquerade) for e in eligible]
    sticky = claim.service.spec.session_affinity == "ClientIP"
    known = frozenset(s for s in seen if s) if all(seen) else frozenset()
    return Prediction(ProbeOutcome.CONNECTED, eligible, known, sticky, why=why)


def _seen(
    cluster: ClusterView,
    question: Query,
    claim: Claim,
    entry: NodeView,
    endpoint: OracleEndpoint,
    *,
    inside: bool,
    masquerade: bool,
) -> str | None:
    """The client's address as the endpoint sees it; None where no rule and no note says."""
    client, family = question.client, question.family
    gateway, node_ip = str(entry.gateway(family)), str(entry.main(family))
    elsewhere = endpoint.place is EndpointLocation.OUTSIDE or (
        endpoint.place is EndpointLocation.NODE and endpoint.host != entry.name
    )
    if elsewhere and (inside or masquerade):
        # what leaves the Pod network leaves with the address of the NIC that leads there
        return str(_address_towards(entry, endpoint.address)) if endpoint.address else node_ip
    if not inside and not masquerade:
        return _from_outside(cluster, question)
    pod = _pod(cluster, client)
    if pod and not masquerade:
        return gateway if endpoint.backend == pod.key else PRESERVED  # it cannot answer itself
    if endpoint.place is not EndpointLocation.POD:
        return None
    local = claim.kind is FrontendKind.NODE_PORT and claim.service.spec.external_traffic_policy == "Local"
    return node_ip if inside and local and _without_tunnel(cluster, entry, endpoint, family) else gateway


def _without_tunnel(cluster: ClusterView, entry: NodeView, endpoint: OracleEndpoint, family: Family) -> bool:
    """Whether the endpoint is a Pod of another Node to which the underlay leads."""
    other = cluster.nodes[cluster.pods[endpoint.backend].node]
    if other == entry or cluster.traffic_mode == "encap":
        return False
    own, its = entry.main(family), other.main(family)
    return cluster.traffic_mode == "noEncap" or (own is not None and its is not None and on_one_wire([own], its))


def _in_range(cluster: ClusterView, question: Query, service: ServiceView) -> bool | None:
    """Ranges of the other family say nothing about this one."""
    ranges = [network for network in service.source_ranges if family_of(network) is question.family]
    if not ranges:
        return True
    source = _source(cluster, question)
    return None if source is None else any(source in network for network in ranges)


def _node_ports_open(cluster: ClusterView, node: NodeView, question: Query) -> bool:
    of_the_node = question.address in node.addresses
    by_loopback = question.address in LOOPBACK and _home(cluster, question.client) == node
    networks = cluster.node_port_networks
    return (of_the_node or by_loopback) and (not networks or any(question.address in n for n in networks))


# Elsewhere ------------------------------------------------------------------------------------------------------


def _nobody_listens(question: Query, where: str) -> Prediction | None:
    """The lab speaks SCTP by raw sockets. Where one is open, for whatever port, the kernel is as silent as it is."""
    return None if question.protocol == "SCTP" else Prediction(ProbeOutcome.REFUSED, why=f"{where}, but nobody listens")


def _host_itself(cluster: ClusterView, question: Query, node: NodeView, seen: str) -> Prediction | None:
    """No Service: the Node's own network, on which only hostNetwork Pods listen."""
    backend = listener(cluster, node.name, question.protocol, question.port)
    if not backend:
        return _nobody_listens(question, f"{node.name} itself")
    found = OracleEndpoint(backend, EndpointLocation.NODE, node.name, node.name)
    return Prediction(ProbeOutcome.CONNECTED, (found,), frozenset({seen}), why=f"{node.name} itself")


def _outside(cluster: ClusterView, question: Query, home: NodeView | None) -> Prediction | None:
    if any(question.address in cidr for node in cluster.nodes.values() for cidr in node.pod_cidrs):
        return None  # from Pod to Pod: no Service is asked
    for host in cluster.hosts.values():
        if question.address in host.addresses:
            if not host.listens(question.protocol, question.port):
                return _nobody_listens(question, f"{host.name}, outside")
            found = OracleEndpoint(f"externalHost/{host.name}", EndpointLocation.OUTSIDE, "")
            seen = str(_source_of_node(home, question)) if home and _pod(cluster, question.client) else PRESERVED
            return Prediction(ProbeOutcome.CONNECTED, (found,), frozenset({seen}), why=f"{host.name}, outside")
    return Prediction(ProbeOutcome.REFUSED, why="nobody has this address: the router says that it knows no way")


# Clients --------------------------------------------------------------------------------------------------------


def home_of(cluster: ClusterView, client: Client) -> str:
    """The Node that the client is on; empty for one outside."""
    return cluster.pods[client.pod].node if client.pod else client.node


def _home(cluster: ClusterView, client: Client) -> NodeView | None:
    return cluster.nodes.get(home_of(cluster, client))


def _pod(cluster: ClusterView, client: Client) -> PodView | None:
    """Of a client with a network of its own; a hostNetwork Pod has its Node's."""
    pod = cluster.pods.get(client.pod)
    return None if pod is None or pod.spec.host_network else pod


def _from_outside(cluster: ClusterView, question: Query) -> str:
    """As whom the client comes to a Node that is not its own: Pods leave with the address of their Node's NIC."""
    pod = _pod(cluster, question.client)
    return str(_source_of_node(cluster.nodes[pod.node], question)) if pod else PRESERVED


def _source(cluster: ClusterView, question: Query) -> IPAddress | None:
    """The address that the client sends from."""
    client, family = question.client, question.family
    pod = _pod(cluster, client)
    home = _home(cluster, client)
    if pod:
        addresses = tuple(address(ip.ip) for ip in pod.status.pod_ips)
    elif home:
        return _source_of_node(home, question)
    else:
        addresses = cluster.hosts[client.host].addresses
    return next((one for one in addresses if family_of(one) is family), None)


def _source_of_node(node: NodeView, question: Query) -> IPAddress | None:
    """To itself as whom it asks, to a neighbour by the NIC on that wire, else by the default route."""
    if question.address in node.addresses or question.address in LOOPBACK:
        return question.address
    return _address_towards(node, question.address)


def _address_towards(node: NodeView, other: IPAddress) -> IPAddress | None:
    near = (own for own in node.addresses if on_one_wire([own], other))
    return next(near, node.main(family_of(other)))


def on_one_wire(addresses: Iterable[IPAddress], other: IPAddress) -> bool:
    family = family_of(other)
    return any(other in ip_network((own, WIRE[family]), strict=False) for own in addresses if family_of(own) is family)
