"""Building blocks for the tests of Services: addresses, one Service with its endpoints, and its clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_network

from journeys import HOST, WIRE, Arrival, Journeys, Place, pod
from msgspec import structs
from node_states import cluster_ip, load_balancer, node_address, outside, pod_address, service_port, small_cluster
from packets import Ends

from windlass.model.families import Family, IPAddress
from windlass.model.nodes import NodeState, TrafficMode
from windlass.model.services import Endpoint, Frontend, Protocol, Reach, ServedService
from windlass.openflow.fields import TCP
from windlass.pipeline.reserved import NODE_PORT_ADDRESS, VIRTUAL_CLIENT

POD_1, POD_2 = pod(1), pod(2)
NODE_PORT = 30080


@dataclass(frozen=True, slots=True)
class Known:
    """The addresses of all parties, in one family."""

    family: Family

    @property
    def service(self) -> IPAddress:
        return cluster_ip(10, self.family)

    @property
    def balancer(self) -> IPAddress:
        return load_balancer(10, self.family)

    @property
    def node(self) -> IPAddress:
        return node_address(1, 25, self.family)

    @property
    def other(self) -> IPAddress:
        """Another address of this Node, on a NIC that is not on the bridge."""
        return node_address(1, 27, self.family)

    @property
    def gateway(self) -> IPAddress:
        return pod_address(1, -8, self.family)

    @property
    def pod_1(self) -> IPAddress:
        return pod_address(1, 1, self.family)

    @property
    def pod_2(self) -> IPAddress:
        return pod_address(1, 2, self.family)

    @property
    def near_pod(self) -> IPAddress:
        """Of a Node in the same segment."""
        return pod_address(2, 1, self.family)

    @property
    def far_pod(self) -> IPAddress:
        """Of a Node behind a router."""
        return pod_address(3, 1, self.family)

    @property
    def other_node(self) -> IPAddress:
        return node_address(2, 25, self.family)

    @property
    def outside(self) -> IPAddress:
        return outside(80, self.family)

    @property
    def client(self) -> IPAddress:
        """A client outside of the cluster, on the wire."""
        return IPv4Address("198.51.100.7") if self.family is Family.IPV4 else IPv6Address("2001:db8:198::7")

    @property
    def host_node_port(self) -> IPAddress:
        """The address to which the host translates its own when it connects to one of its NodePorts."""
        return NODE_PORT_ADDRESS[self.family]

    @property
    def virtual_client(self) -> IPAddress:
        return VIRTUAL_CLIENT[self.family]

    def asks(self, client: Place, to: IPAddress, port: int, protocol: int = TCP, source_port: int = 40000) -> Ends:
        source = {POD_1: self.pod_1, POD_2: self.pod_2, HOST: self.gateway, WIRE: self.client}[client]
        return Ends(source, source_port, to, port, protocol)


def on_cluster_ip(at: Known, *, local_only: bool = False) -> Frontend:
    return Frontend(Reach.CLUSTER_IP, at.service, 80, local_only)


def on_node_port(*, local_only: bool = False) -> Frontend:
    return Frontend(Reach.NODE_PORT, None, NODE_PORT, local_only)


def on_balancer(at: Known, *, local_only: bool = False, sources: tuple[str, ...] | None = None) -> Frontend:
    ranges = None if sources is None else tuple(ip_network(text) for text in sources)
    return Frontend(Reach.EXTERNAL, at.balancer, 80, local_only, ranges)


def at_node(at: Known, address: IPAddress | None = None, *, local_only: bool = False) -> Frontend:
    """An external IP that is an address of this Node."""
    return Frontend(Reach.EXTERNAL, address or at.node, 80, local_only)


def here(address: IPAddress, port: int = 8080) -> Endpoint:
    return Endpoint.at(address, port, local=True)


def elsewhere(address: IPAddress, port: int = 8080) -> Endpoint:
    return Endpoint.at(address, port)


def cluster(
    at: Known, frontend: Frontend, *endpoints: Endpoint, mode: TrafficMode = TrafficMode.ENCAP, protocol: int = TCP
) -> NodeState:
    port = structs.replace(service_port(1, (frontend,), endpoints, at.family), protocol=Protocol(protocol))
    service = ServedService("default", "web", (port,), (at.service,))
    return replace(small_cluster(mode, at.family), services={service.key: service})


def journeys(
    at: Known, frontend: Frontend, *endpoints: Endpoint, mode: TrafficMode = TrafficMode.ENCAP, protocol: int = TCP
) -> Journeys:
    return Journeys(cluster(at, frontend, *endpoints, mode=mode, protocol=protocol))


def answered_by_each(state: NodeState, client: Place, asked: Ends, *, fragments: bool = False) -> list[Arrival]:
    """The same connection once for each endpoint that can be chosen."""
    choices = Journeys(state, fragments=fragments).send(client, asked).trips[0].buckets
    return [Journeys(state, fragments=fragments).converse(client, asked, bucket) for bucket in range(choices)]


def from_outside(at: Known, *, local_only: bool = False) -> list[tuple[Frontend, IPAddress, int]]:
    """The two kinds of frontends that are reachable from outside, with their address and port."""
    return [
        (on_node_port(local_only=local_only), at.node, NODE_PORT),
        (on_balancer(at, local_only=local_only), at.balancer, 80),
    ]
