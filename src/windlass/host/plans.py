"""What the host of this Node should hold besides flows: interface settings, addresses, routes, ways to Services.

Pure, and the same for every operating system; carrying it out is the business of a `protocol.Host`. The uplink's own
addresses and routes are not planned here: they are found on the Node and moved as they are (`migrations`). What
Services ask of the host is decided in `services`.
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

# Outer IP and UDP, the geneve or vxlan header (8 bytes both, no options), inner Ethernet.
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
    """How an interface is set. None, or a family that is not named, means: as it is."""

    name: str
    up: bool | None = None
    mac: str | None = None
    mtu: int | None = None
    forwards: frozenset[Family] = frozenset()
    accepts_own_source: bool | None = None  # packets that come in with an address of this host as their source
    offloads: bool | None = None  # checksums and segmentation left to the device
    kernel_ingress: bool | None = None  # False: what comes in is for the switch alone


class ConntrackParameter(Enum):
    """What can be set about how the host tracks connections."""

    LIMIT = "the limit of tracked connections"  # this many or more
    TCP_ESTABLISHED = "the timeout of established TCP connections"  # all timeouts in seconds
    TCP_CLOSE_WAIT = "the timeout of TCP connections in CLOSE_WAIT"
    UDP = "the timeout of UDP connections without an answer"
    UDP_STREAM = "the timeout of UDP connections with answers"


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
    onlink: bool = False  # `via` is behind this interface although no address there says so
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
    """The host's way to Services, for its own connections and for those that come to it past the switch.

    They leave by the gateway for the virtual next hop; the host's own with the gateway's address, so that their answers
    come back there.
    """

    gateway: str
    bridge: str
    sources: frozenset[IPAddress]  # the gateway's addresses, one of each family that is served
    node_ips: frozenset[IPAddress]  # what comes for these by the bridge interface, the switch has let pass on purpose
    networks: frozenset[IPNetwork]  # NodePorts answer at those addresses of the host that are in these
    mtu: int  # of the gateway
    snat_ports: tuple[tuple[int, int], ...]  # by which connections leave that the switch gave the Node IP

    def __str__(self) -> str:
        return f"the way of the host to Services by {self.gateway}"


@dataclass(frozen=True, slots=True)
class NodePort:
    """Open at the addresses of the host that `ServiceAccess.networks` has; the Node IP is the switch's for others."""

    family: Family
    protocol: Protocol
    port: int

    def __str__(self) -> str:
        return f"NodePort {self.port}/{self.protocol.name} ({self.family})"


@dataclass(frozen=True, slots=True)
class ExternalPort:
    """A port of a load balancer's or an external address. The address's other ports are none of our business."""

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
    """All of it, or the part that one owner (the Node itself, a peer) asks for: parts are joined with `|`."""

    settings: frozenset[InterfaceSettings] = frozenset()
    items: frozenset[Item] = frozenset()
    tracking: frozenset[ConntrackSetting] = frozenset()

    def __or__(self, other: HostPlan) -> HostPlan:
        return HostPlan(self.settings | other.settings, self.items | other.items, self.tracking | other.tracking)


@dataclass(frozen=True, slots=True)
class HostChange:
    """What leads from what is installed to what is desired; false if there is nothing to do."""

    settings: tuple[InterfaceSettings, ...] = ()  # each names only what must become different
    removed: frozenset[Item] = frozenset()
    added: frozenset[Item] = frozenset()
    tracking: frozenset[ConntrackSetting] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.settings or self.removed or self.added or self.tracking)


def plan(
    state: NodeState, names: HostNames, uplink_mtu: int, *, userspace: bool, configured_mtu: int | None = None
) -> HostPlan:
    """`userspace`: the switch runs its userspace datapath, which shares its ports with the kernel."""
    own = plan_node(state.node, names, uplink_mtu, userspace=userspace, configured_mtu=configured_mtu)
    of_peers = (plan_peer(state.node, peer, names).items for peer in state.peers.values())
    return own | HostPlan(items=frozenset().union(*of_peers))


def plan_node(
    node: LocalNode, names: HostNames, uplink_mtu: int, *, userspace: bool, configured_mtu: int | None = None
) -> HostPlan:
    gateway_mtu = pod_mtu(node, uplink_mtu, configured_mtu)
    forwards = frozenset(node.families)
    # The userspace datapath sees packets as the sender's kernel left them: without checksums and longer than the MTU,
    # unless that kernel is told to do the work itself.
    offloads = False if userspace else None
    routed = InterfaceSettings("", up=True, forwards=forwards, offloads=offloads)
    return HostPlan(
        settings=frozenset(
            (
                replace(routed, name=names.bridge, mac=node.uplink_mac, mtu=uplink_mtu, accepts_own_source=False),
                # Pods reach the world as their Node, translated in the switch: so the host meets its own address as a
                # source there. From the wire it never does.
                replace(routed, name=names.gateway, mac=node.gateway_mac, mtu=gateway_mtu, accepts_own_source=True),
                InterfaceSettings(names.uplink, up=True, offloads=offloads, kernel_ingress=not userspace),
            )
        ),
        items=frozenset(HostAddress(names.gateway, gateway_address(node, family)) for family in node.families),
    )


def plan_peer(node: LocalNode, peer: Peer, names: HostNames) -> HostPlan:
    return HostPlan(items=frozenset(_routes(node, peer, names)))


def pod_mtu(node: LocalNode, uplink_mtu: int, configured: int | None = None) -> int:
    """The longest packet that a Pod may send, wherever it goes: hybrid mode may meet a tunnel, too."""
    if configured is not None:
        return configured
    if node.mode is TrafficMode.NO_ENCAP:
        return uplink_mtu
    underlay = Family.IPV4 if Family.IPV4 in node.addresses else Family.IPV6
    return uplink_mtu - TUNNEL_OVERHEAD[underlay]


def gateway_address(node: LocalNode, family: Family) -> IPInterface:
    return ip_interface((node.gateway(family), node.pod_cidrs[family].prefixlen))


def diff(installed: HostPlan, desired: HostPlan) -> HostChange:
    """Also between two plans of one owner: then it is the change of that owner alone."""
    now = {settings.name: settings for settings in installed.settings}
    tracked = {setting.what: setting.value for setting in installed.tracking}  # those that can be set on this host
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
        # Otherwise a router is between us, and it knows the PodCIDRs: the default route leads there.


def _missing(now: InterfaceSettings | None, wanted: InterfaceSettings) -> InterfaceSettings:
    """`wanted` without what holds already."""
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
