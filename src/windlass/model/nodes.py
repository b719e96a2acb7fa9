"""The state of one Node: itself, its Pods, its peers and its Services. `program(state)` depends on nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from windlass.model.families import Family, IPAddress, IPInterface, IPNetwork, family_of
from windlass.model.policies import NodePolicies
from windlass.model.services import Protocol, ServedService

_FAMILIES = tuple(Family)  # each Service needs them, and iterating over an Enum is slow
_BY_VERSION = {family.value: family for family in Family}


class TrafficMode(Enum):
    ENCAP = "encap"  # Pod traffic between Nodes goes through a tunnel
    NO_ENCAP = "noEncap"  # it is not tunnelled: the underlay routes PodCIDRs
    HYBRID = "hybrid"  # not tunnelled within a subnet, through a tunnel between subnets


class TunnelType(Enum):
    GENEVE = "geneve"
    VXLAN = "vxlan"

    @property
    def udp_port(self) -> int:
        """The port on which Nodes receive tunnelled packets, as assigned by IANA."""
        return {TunnelType.GENEVE: 6081, TunnelType.VXLAN: 4789}[self]


class OperatingSystem(Enum):
    """Decides which matches and actions the switch of the Node supports (`pipeline.datapaths`)."""

    LINUX = "linux"
    WINDOWS = "windows"

    __hash__ = object.__hash__  # see Family


@dataclass(frozen=True, slots=True)
class Ports:
    """OpenFlow port numbers, as in the design notes. The bridge's own port is always LOCAL."""

    tunnel: int = 1
    gateway: int = 2
    uplink: int = 3


class HostConnection(NamedTuple):
    """A connection of the host itself from a port that is now reserved for SNAT: it keeps the port until it ends."""

    protocol: Protocol
    port: int
    remote: IPAddress | None = None  # None: a socket that may talk to any address
    remote_port: int = 0


@dataclass(frozen=True, slots=True)
class LocalNode:
    """This Node. A change here recomputes everything."""

    name: str
    mode: TrafficMode
    tunnel: TunnelType
    os: OperatingSystem
    addresses: Mapping[Family, IPInterface]  # the Node IP on the bridge, with the prefix of its subnet
    pod_cidrs: Mapping[Family, IPNetwork]
    uplink_mac: str  # also the MAC of the bridge interface
    other_addresses: tuple[IPAddress, ...] = ()  # of NICs that are not ports of the bridge
    service_cidrs: tuple[IPNetwork, ...] = ()  # the known ranges of ClusterIPs, which the host routes to the switch
    node_port_networks: tuple[
        IPNetwork, ...
    ] = ()  # NodePorts are served only at addresses in these networks; empty: at all addresses
    ports: Ports = field(default_factory=Ports)
    userspace: bool = False  # the switch uses the userspace datapath
    ports_reserved: bool = True  # the host opens no connection from the ports that are for SNAT
    host_connections: tuple[HostConnection, ...] = ()  # those it had opened from them before
    families: tuple[Family, ...] = field(init=False, compare=False)  # those in which it has both an address and Pods

    def __post_init__(self) -> None:
        families = tuple(family for family in _FAMILIES if family in self.addresses and family in self.pod_cidrs)
        object.__setattr__(self, "families", families)  # once, and not for each of ten thousand Services

    def serves_node_ports(self, address: IPAddress) -> bool:
        return not self.node_port_networks or any(address in network for network in self.node_port_networks)

    def has_family(self, version: int) -> bool:
        return _BY_VERSION[version] in self.families

    def own_addresses(self, family: Family) -> tuple[IPAddress, ...]:
        """The Node IP, and the addresses of its other NICs."""
        return (self.addresses[family].ip, *(a for a in self.other_addresses if family_of(a) is family))

    def gateway(self, family: Family) -> IPAddress:
        """The first address of the PodCIDR: the host's end of the Pod network."""
        return self.pod_cidrs[family].network_address + 1

    @property
    def gateway_mac(self) -> str:
        return mac_for(self.gateway(self.families[0]))

    @property
    def tunnel_port(self) -> int | None:
        """The UDP port of the tunnel; None if the Node has no tunnel."""
        return None if self.mode is TrafficMode.NO_ENCAP else self.tunnel.udp_port


@dataclass(frozen=True, slots=True)
class Peer:
    """Another Node of the cluster."""

    name: str
    addresses: Mapping[Family, IPAddress]
    pod_cidrs: Mapping[Family, IPNetwork]

    def gateway(self, family: Family) -> IPAddress:
        return self.pod_cidrs[family].network_address + 1


@dataclass(frozen=True, slots=True)
class AttachedPod:
    """A Pod whose interface is a port of this Node's bridge."""

    namespace: str
    name: str
    container_id: str
    interface: str  # the name of the port
    ofport: int
    mac: str
    addresses: tuple[IPAddress, ...]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def mac_for(address: IPAddress) -> str:
    """The MAC of an interface, derived from its first address: nothing to store, the same after every restart."""
    return ":".join(f"{byte:02x}" for byte in (0x0A, 0x58, *address.packed[-4:]))


@dataclass(frozen=True, slots=True)
class NodeState:
    node: LocalNode
    peers: Mapping[str, Peer] = field(default_factory=dict)  # by Node name
    pods: Mapping[str, AttachedPod] = field(default_factory=dict)  # by container id
    services: Mapping[str, ServedService] = field(default_factory=dict)  # by namespace/name
    policies: NodePolicies = field(default_factory=NodePolicies)
