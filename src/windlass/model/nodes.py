"""What one Node knows: itself, its Pods and its peers. `program(state)` is a pure outcome of this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from windlass.model.families import Family, IPAddress, IPInterface, IPNetwork, family_of
from windlass.model.services import Service

_FAMILIES = tuple(Family)  # asked for by every Service: going through an Enum takes its time


class TrafficMode(Enum):
    ENCAP = "encap"  # Pod traffic between Nodes goes through a tunnel
    NO_ENCAP = "noEncap"  # it goes as it is; the underlay knows the PodCIDRs
    HYBRID = "hybrid"  # as it is within a subnet, through a tunnel across


class TunnelType(Enum):
    GENEVE = "geneve"
    VXLAN = "vxlan"

    @property
    def udp_port(self) -> int:
        """The port at which Nodes receive tunnelled packets: the one that IANA assigned."""
        return {TunnelType.GENEVE: 6081, TunnelType.VXLAN: 4789}[self]


class OperatingSystem(Enum):
    """Decides the datapath profile: what matches and actions the switch of this Node can carry out."""

    LINUX = "linux"
    WINDOWS = "windows"

    __hash__ = object.__hash__  # as of Family: each exists once


@dataclass(frozen=True, slots=True)
class Ports:
    """OpenFlow port numbers; the bridge's own port is always LOCAL. The numbers are those of the seeds."""

    tunnel: int = 1
    gateway: int = 2
    uplink: int = 3


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
    other_addresses: tuple[IPAddress, ...] = ()  # of NICs that are not on the bridge
    node_port_networks: tuple[IPNetwork, ...] = ()  # NodePorts answer only at addresses in these; empty: at all
    ports: Ports = field(default_factory=Ports)
    userspace: bool = False  # its switch forwards in user space, not in the kernel

    def serves_node_ports(self, address: IPAddress) -> bool:
        return not self.node_port_networks or any(address in network for network in self.node_port_networks)

    @property
    def families(self) -> tuple[Family, ...]:
        """The families in which this Node has both an address and Pods."""
        return tuple([f for f in _FAMILIES if f in self.addresses and f in self.pod_cidrs])

    def own_addresses(self, family: Family) -> tuple[IPAddress, ...]:
        """The Node IP, and those of its other NICs."""
        return (self.addresses[family].ip, *(a for a in self.other_addresses if family_of(a) is family))

    def gateway(self, family: Family) -> IPAddress:
        """The first address of the PodCIDR: the host's end of the Pod network."""
        return self.pod_cidrs[family].network_address + 1

    @property
    def gateway_mac(self) -> str:
        return mac_for(self.gateway(self.families[0]))

    @property
    def tunnel_port(self) -> int | None:
        """The UDP port of the tunnel; None where there is no tunnel."""
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
    """The MAC of the interface with this first address: nothing to store, the same after every restart."""
    return ":".join(f"{byte:02x}" for byte in (0x0A, 0x58, *address.packed[-4:]))


@dataclass(frozen=True, slots=True)
class NodeState:
    node: LocalNode
    peers: Mapping[str, Peer] = field(default_factory=dict)  # by Node name
    pods: Mapping[str, AttachedPod] = field(default_factory=dict)  # by container id
    services: Mapping[str, Service] = field(default_factory=dict)  # by namespace/name
