"""Services as one Node serves them: frontends that packets are addressed to, and the endpoints behind each.

Everything that Kubernetes has to say (conditions, policies, hints, families, merged slices) has been decided before:
see `cluster.services`. What flows come of it is decided in `pipeline`.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from msgspec import Struct

from windlass.model.families import Family, IPAddress, IPNetwork, unpacked


class Protocol(IntEnum):
    TCP = 6
    UDP = 17
    SCTP = 132


class Endpoint(Struct, frozen=True, gc=False):
    packed: bytes  # its address: so it takes a third of the time and of the memory, and there may be a hundred thousand
    port: int
    local: bool = False  # on this Node

    @classmethod
    def at(cls, address: IPAddress, port: int, *, local: bool = False) -> Endpoint:
        return cls(address.packed, port, local)

    @property
    def address(self) -> IPAddress:
        return unpacked(self.packed)


class Reach(Enum):
    """Where a frontend is, and so which traffic policy and which translation hold for it."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"  # at the Node's own addresses
    EXTERNAL = "External"  # a load balancer's or an external IP


class Frontend(Struct, frozen=True, gc=False):
    reach: Reach
    address: IPAddress | None  # None for a NodePort
    port: int
    local_only: bool = False  # internal- or externalTrafficPolicy: Local
    sources: tuple[IPNetwork, ...] | None = None  # loadBalancerSourceRanges: only these; None: everybody


class ServicePort(Struct, frozen=True, gc=False):
    """One port of a Service in one family."""

    name: str
    protocol: Protocol
    family: Family
    frontends: tuple[Frontend, ...]
    endpoints: tuple[Endpoint, ...]  # usable from here by policy Cluster, after hints; in a stable order
    local_endpoints: tuple[Endpoint, ...]  # usable on this Node by policy Local; () where no policy is Local
    anywhere: bool = True  # is there a usable endpoint on any Node? If not, connections are refused
    affinity_seconds: int = 0  # sessionAffinity ClientIP; 0: none
    # On any Node, terminating or not chosen by hints as well: connections with these may stay, with others not.
    serving: tuple[Endpoint, ...] = ()
    group: int = 0  # the first of 256 group numbers that are this port's, whatever happens to other Services


class Service(Struct, frozen=True, gc=False):
    namespace: str
    name: str
    ports: tuple[ServicePort, ...]
    cluster_ips: tuple[IPAddress, ...]  # their other ports are refused
    health_check_port: int = 0  # healthCheckNodePort
    ready_local_endpoints: int = 0  # what its health check answers

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"
