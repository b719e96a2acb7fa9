"""Services as one Node serves them: frontends that packets are addressed to, and the endpoints behind each.

`cluster.services` has already resolved conditions, policies, hints, families and slices. `pipeline` decides the flows.
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
    packed: bytes  # the address; as bytes it takes a third of the time and memory, and there may be a hundred thousand
    port: int
    local: bool = False  # on this Node

    @classmethod
    def at(cls, address: IPAddress, port: int, *, local: bool = False) -> Endpoint:
        return cls(address.packed, port, local)

    @property
    def address(self) -> IPAddress:
        return unpacked(self.packed)


class Reach(Enum):
    """The kind of address of a frontend, which decides its traffic policy and its translation."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"  # at the Node's own addresses
    EXTERNAL = "External"  # a load balancer's or an external IP


class Frontend(Struct, frozen=True, gc=False):
    reach: Reach
    address: IPAddress | None  # None for a NodePort
    port: int
    local_only: bool = False  # internal- or externalTrafficPolicy: Local
    sources: tuple[IPNetwork, ...] | None = None  # loadBalancerSourceRanges; None: no restriction


class ServedPort(Struct, frozen=True, gc=False):
    """One port of a Service in one family, as this Node serves it."""

    name: str
    protocol: Protocol
    family: Family
    frontends: tuple[Frontend, ...]
    endpoints: tuple[Endpoint, ...]  # usable from this Node by policy Cluster, after topology hints; in a stable order
    local_endpoints: tuple[Endpoint, ...]  # usable on this Node by policy Local; () if no policy is Local
    anywhere: bool = True  # whether any Node has a usable endpoint; if not, connections are refused
    affinity_seconds: int = 0  # sessionAffinity ClientIP; 0: none
    # On any Node, including endpoints that terminate or that hints leave out: only connections to these may stay.
    serving: tuple[Endpoint, ...] = ()
    group: int = 0  # the first of 256 group numbers that belong to this port, whatever other Services do


class ServedService(Struct, frozen=True, gc=False):
    """A Service as this Node serves it."""

    namespace: str
    name: str
    ports: tuple[ServedPort, ...]
    cluster_ips: tuple[IPAddress, ...]  # connections to their other ports are refused
    health_check_port: int = 0  # healthCheckNodePort
    ready_local_endpoints: int = 0  # the count that its health check reports

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"
