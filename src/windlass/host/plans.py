"""The desired state of the host: settings of interfaces, addresses, routes, access to Services.

Pure, and the same for every operating system; a `protocol.Host` carries it out. The addresses and routes of the uplink
are not planned here: they are moved as they are found on the Node. `services` plans the items of Services.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import ip_interface
from typing import TypeVar

from windlass.model.families import Family, IPAddress, IPInterface, IPNetwork
from windlass.model.nodes import LocalNode, NodeState, Peer, TrafficMode
from windlass.model.services import Protocol
from windlass.pipeline.routing import is_direct

V = TypeVar("V")

# Outer IP and UDP header, Geneve or VXLAN header (both 8 bytes without options), inner Ethernet header.
TUNNEL_OVERHEAD = {Family.IPV4: 20 + 8 + 8 + 14, Family.IPV6: 40 + 8 + 8 + 14}


@dataclass(frozen=True, slots=True)
class HostNames:
    uplink: str
    bridge: str = "br-int"
    gateway: str = "windlass-gw0"

    def __iter__(self) -> Iterator[str]:
        yield from (self.uplink, self.bridge, self.gateway)


@dataclass(frozen=True, slots=True)
class InterfaceSettings:
    """Settings of an interface. None, or a family that is not named, leaves the setting unchanged."""

    name: str
    up: bool | None = None
    mac: str | None = None
    mtu: int | None = None
    forwards: frozenset[Family] = frozenset()
    accepts_own_source: bool | None = None  # accepts packets whose source is an address of this host
    offloads: bool | None = None  # the device computes checksums and segments packets
    kernel_ingress: bool | None = None  # False: only the switch gets incoming packets


class ConntrackParameter(Enum):
    """A setting of connection tracking on the host."""

    LIMIT = "the limit of tracked connections"  # a minimum
    TCP_ESTABLISHED = "the timeout of established TCP connections"  # timeouts are in seconds
    TCP_CLOSE_WAIT = "the timeout of TCP connections in CLOSE_WAIT"
    UDP = "the timeout of UDP connections without a reply"
    UDP_STREAM = "the timeout of UDP connections with replies"


@dataclass(frozen=True, slots=True)
class ConntrackSetting:
    what: ConntrackParameter
    value: int

    def __str__(self) -> str:
        return f"{self.what.value} to {self.value}"

    def holds(self, now: int) -> bool:
        return now >= self.value if self.what is ConntrackParameter.LIMIT else now == self.value


@dataclass(frozen=True, slots=True)
class HostAddress:
    interface: str
    address: IPInterface

    def __str__(self) -> str:
        return f"address {self.address} on {self.interface}"


@dataclass(frozen=True, slots=True)
class Route:
    destination: IPNetwork
    interface: str
    via: IPAddress | None = None
    onlink: bool = False  # `via` is reachable on this interface although no address of it covers `via`
    source: IPAddress | None = None

    def __str__(self) -> str:
        via = f" via {self.via}" if self.via else ""
        return f"route {self.destination}{via} on {self.interface}"


@dataclass(frozen=True, slots=True)
class Neighbour:
    interface: str
    address: IPAddress
    mac: str

    def __str__(self) -> str:
        return f"neighbour {self.address} at {self.mac} on {self.interface}"


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """Access to Services for connections of the host, and for clients whose packets do not come through the switch.

    Their packets leave by the gateway to the virtual next hop. Connections of the host get the address of the gateway
    as their source, so that replies return there.
    """

    gateway: str
    bridge: str
    sources: frozenset[IPAddress]  # the addresses of the gateway, one for each family
    node_ips: frozenset[IPAddress]  # the switch passes packets to these to the bridge interface
    networks: frozenset[IPNetwork]  # NodePorts answer at the addresses of the host in these networks
    mtu: int  # of the gateway
    snat_ports: tuple[tuple[int, int], ...]  # the source ports of connections that the switch translated to the Node IP

    def __str__(self) -> str:
        return f"access of the host to Services through {self.gateway}"


@dataclass(frozen=True, slots=True)
class NodePort:
    """Open at the addresses of the host in `ServiceAccess.networks`. The switch serves it at the Node IP for others."""

    family: Family
    protocol: Protocol
    port: int

    def __str__(self) -> str:
        return f"NodePort {self.port}/{self.protocol.name} ({self.family})"


@dataclass(frozen=True, slots=True)
class ExternalPort:
    """A port of a load balancer IP or an external IP. Other ports of that address are not affected."""

    address: IPAddress
    protocol: Protocol
    port: int

    def __str__(self) -> str:
        return f"external address {self.address}, port {self.port}/{self.protocol.name}"


InterfaceItem = HostAddress | Route | Neighbour
ServicePortItem = NodePort | ExternalPort
Item = InterfaceItem | ServiceAccess | ServicePortItem


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The whole desired state, or the part of one owner (the Node, a peer). Parts are joined with `|`."""

    settings: frozenset[InterfaceSettings] = frozenset()
    items: frozenset[Item] = frozenset()
    tracking: frozenset[ConntrackSetting] = frozenset()

    def __or__(self, other: HostPlan) -> HostPlan:
        return HostPlan(self.settings | other.settings, self.items | other.items, self.tracking | other.tracking)


@dataclass(frozen=True, slots=True)
class HostChange:
    """The difference between installed and desired state. False if there is none."""

    settings: tuple[InterfaceSettings, ...] = ()  # only the settings that must change
    removed: frozenset[Item] = frozenset()
    added: frozenset[Item] = frozenset()
    tracking: frozenset[ConntrackSetting] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.settings or self.removed or self.added or self.tracking)


def plan(
    state: NodeState, names: HostNames, uplink_mtu: int, *, userspace: bool, configured_mtu: int | None = None
) -> HostPlan:
    """userspace: the switch runs its userspace datapath, which shares its ports with the kernel."""
    own = plan_node(state.node, names, uplink_mtu, userspace=userspace, configured_mtu=configured_mtu)
    of_peers = (plan_peer(state.node, peer, names).items for peer in state.peers.values())
    return own | HostPlan(items=frozenset().union(*of_peers))


def plan_node(
    node: LocalNode, names: HostNames, uplink_mtu: int, *, userspace: bool, configured_mtu: int | None = None
) -> HostPlan:
    gateway_mtu = pod_mtu(node, uplink_mtu, configured_mtu)
    forwards = frozenset(node.families)
    # With offloads, the userspace datapath would receive packets without checksums and longer than the MTU.
    offloads = False if userspace else None
    routed = InterfaceSettings("", up=True, forwards=forwards, offloads=offloads)
    return HostPlan(
        settings=frozenset(
            (
                replace(routed, name=names.bridge, mac=node.uplink_mac, mtu=uplink_mtu, accepts_own_source=False),
                # The switch translates packets of Pods to the Node IP: they reach the host with its own address as
                # their source. Packets from the wire never have it.
                replace(routed, name=names.gateway, mac=node.gateway_mac, mtu=gateway_mtu, accepts_own_source=True),
                InterfaceSettings(names.uplink, up=True, offloads=offloads, kernel_ingress=not userspace),
            )
        ),
        items=frozenset(HostAddress(names.gateway, _gateway_address(node, family)) for family in node.families),
    )


def plan_peer(node: LocalNode, peer: Peer, names: HostNames) -> HostPlan:
    return HostPlan(items=frozenset(_routes(node, peer, names)))


def pod_mtu(node: LocalNode, uplink_mtu: int, configured: int | None = None) -> int:
    """The longest packet that a Pod may send to any destination. In hybrid mode it may go through a tunnel."""
    if configured is not None:
        return configured
    if node.mode is TrafficMode.NO_ENCAP:
        return uplink_mtu
    underlay = Family.IPV4 if Family.IPV4 in node.addresses else Family.IPV6
    return uplink_mtu - TUNNEL_OVERHEAD[underlay]


def _gateway_address(node: LocalNode, family: Family) -> IPInterface:
    return ip_interface((node.gateway(family), node.pod_cidrs[family].prefixlen))


def diff(installed: HostPlan, desired: HostPlan) -> HostChange:
    """The change from installed to desired. Between two plans of one owner, it is the change of that owner."""
    now = {settings.name: settings for settings in installed.settings}
    tracked = {setting.what: setting.value for setting in installed.tracking}  # only settings that this host can change
    different = (_missing(now.get(wanted.name), wanted) for wanted in desired.settings)
    return HostChange(
        settings=tuple(sorted((s for s in different if s != InterfaceSettings(s.name)), key=lambda s: s.name)),
        removed=installed.items - desired.items,
        added=desired.items - installed.items,
        tracking=frozenset(s for s in desired.tracking if s.what in tracked and not s.holds(tracked[s.what])),
    )


def _routes(node: LocalNode, peer: Peer, names: HostNames) -> Iterator[Route]:
    for family in node.families:
        if family not in peer.pod_cidrs:
            continue
        destination = peer.pod_cidrs[family]
        if not is_direct(node, peer, family):
            yield Route(destination, names.gateway, via=peer.gateway(family), onlink=True)
        elif family in peer.addresses and peer.addresses[family] in node.addresses[family].network:
            yield Route(destination, names.bridge, via=peer.addresses[family])
        # Otherwise a router that knows the PodCIDRs is between both Nodes: the default route leads there.


def _missing(now: InterfaceSettings | None, wanted: InterfaceSettings) -> InterfaceSettings:
    """`wanted` without settings that are already in effect."""
    if now is None:
        return wanted
    return InterfaceSettings(
        wanted.name,
        up=_unless_same(now.up, wanted.up),
        mac=_unless_same(now.mac, wanted.mac),
        mtu=_unless_same(now.mtu, wanted.mtu),
        forwards=wanted.forwards - now.forwards,
        accepts_own_source=_unless_same(now.accepts_own_source, wanted.accepts_own_source),
        offloads=_unless_same(now.offloads, wanted.offloads),
        kernel_ingress=_unless_same(now.kernel_ingress, wanted.kernel_ingress),
    )


def _unless_same(now: V | None, wanted: V | None) -> V | None:
    return None if now == wanted else wanted
