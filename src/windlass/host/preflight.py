"""The preflight checks: from facts about the host to findings. Pure.

The host reads the facts; the agent adds those of Open vSwitch. Facts that a host does not have keep their defaults,
which lead to no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from windlass.host import port_ranges
from windlass.host.plans import TUNNEL_OVERHEAD
from windlass.host.port_ranges import ENOUGH_LOCAL_PORTS, left_for_host, port_set
from windlass.model.families import Family, IPInterface, family_of
from windlass.model.nodes import TunnelType
from windlass.pipeline.snat_ports import HOST_RESERVED, UNRESERVED

ENOUGH_CONNECTIONS = 131_072  # conntrack entries: the minimum that kube-proxy sets
NEARLY_FULL = 0.9  # of the conntrack table
SMALLEST_MTU = {Family.IPV4: 576, Family.IPV6: 1280}  # RFC 791, RFC 8200; Linux disables IPv6 below it
OWN_CONFIGURATION = "10-windlass.conflist"

# Interfaces of other Pod networks.
OTHER_NETWORKS = {
    "antrea-*": "Antrea",
    "cilium_*": "Cilium",
    "cali*": "Calico",
    "vxlan.calico": "Calico",
    "flannel*": "flannel",
    "cni0": "flannel or the bridge plugin",
    "kube-bridge": "kube-router",
    "ovn-k8s-*": "OVN-Kubernetes",
    "weave": "Weave Net",
}
IPVS_INTERFACE = "kube-ipvs0"


class Severity(Enum):
    ERROR = "error"  # taking the NIC would break the network of the Node: the agent does not take it
    WARNING = "warning"  # something else will not work


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    check: str
    what: str  # the fact, and its consequence
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class Intent:
    """The configuration of the agent, as far as the checks need it."""

    bridge: str
    gateway: str
    tunnel: TunnelType | None  # None in noEncap
    userspace: bool
    mtu: int | None = None  # of Pods; None: the MTU of the NIC minus the overhead of the tunnel
    connections: int = 0  # the agent raises a lower limit of tracked connections to this; 0: it does not
    reserves_ports: bool = True  # whether the agent reserves local ports of the host for SNAT


@dataclass(frozen=True, slots=True)
class ConntrackUse:
    """The size and use of a conntrack table."""

    limit: int
    used: int = 0
    can_be_raised: bool = False  # by the agent


@dataclass(frozen=True, slots=True)
class Facts:
    uplink: str  # the NIC
    mtu: int
    addresses: tuple[IPInterface, ...]  # of the NIC, also after they have moved to the bridge interface
    adopted: bool = False  # the NIC is already a port of the bridge
    ethernet: bool = True
    carrier: bool = True
    master: str = ""  # the interface that the NIC is a member of
    master_kind: str = ""  # bond, bridge, team, vrf, openvswitch
    network_manager: bool = False  # NetworkManager manages the NIC
    interfaces: frozenset[str] = frozenset()
    local_ports: tuple[int, int] = (32768, 60999)  # first and last
    reserved_ports: tuple[tuple[int, int], ...] = ()  # ranges that the host does not use for its own connections
    drop_chains: tuple[str, ...] = ()  # firewall chains whose policy drops forwarded packets
    connections: ConntrackUse | None = None  # of the kernel; None: no conntrack yet, or no limit
    switch_connections: ConntrackUse | None = None  # of Open vSwitch's userspace datapath
    network_configurations: tuple[str, ...] = ()  # the container runtime's files, in its order
    kube_proxy: tuple[str, ...] = ()  # traces of kube-proxy
    missing_modules: frozenset[str] = frozenset()
    nftables: bool = True
    foreign_ports: tuple[str, ...] = ()  # of a bridge with the configured name that Windlass did not create


Check = Callable[[Facts, Intent], Iterator[Finding]]


def findings(facts: Facts, intent: Intent) -> tuple[Finding, ...]:
    """All findings, errors first."""
    found = [finding for check in CHECKS for finding in check(facts, intent)]
    return tuple(sorted(found, key=lambda finding: finding.severity is not Severity.ERROR))


# The NIC --------------------------------------------------------------------------------------------------------------


def uplink(facts: Facts, _: Intent) -> Iterator[Finding]:
    nic = facts.uplink
    if facts.adopted:
        return
    if not facts.ethernet:
        yield _error(
            "uplink",
            f"{nic} is not an Ethernet interface, and only those can be a port of a bridge",
            "Set `uplink` to the NIC that carries the Node's address.",
        )
    elif facts.master and facts.master_kind != "openvswitch":
        yield _error(
            "uplink",
            f"{nic} is a member of {facts.master} ({facts.master_kind}): taking it would disconnect {facts.master}",
            f"Set `uplink: {facts.master}`, or take {nic} out of it first: ip link set {nic} nomaster.",
        )
    if not facts.carrier:
        yield _warning("uplink", f"{nic} has no carrier: no packet can pass", "Check its cable, or the virtual switch.")
    if facts.network_manager:
        yield _warning(
            "uplink",
            f"NetworkManager manages {nic} and may reconfigure it after its addresses have moved to the bridge",
            "Configure NetworkManager as described in docs/operations.md.",
        )


def tunnel_mtu(facts: Facts, intent: Intent) -> Iterator[Finding]:
    families = {family_of(address) for address in facts.addresses}
    overhead = 0
    if intent.tunnel:
        overhead = TUNNEL_OVERHEAD[Family.IPV4 if Family.IPV4 in families else Family.IPV6]
    mtu = intent.mtu or facts.mtu - overhead
    if mtu + overhead > facts.mtu:
        yield _warning(
            "MTU",
            f"Pods may send packets of {mtu} bytes, which take {mtu + overhead} bytes in the tunnel: more than the MTU "
            f"of {facts.uplink}, {facts.mtu}. Such packets will be lost",
            f"Set `mtu` to {facts.mtu - overhead} or less, or to 0.",
        )
    for family in sorted(families, key=str):
        if mtu < SMALLEST_MTU[family]:
            yield _warning(
                "MTU",
                f"The MTU of {facts.uplink} is {facts.mtu}, which leaves {mtu} bytes for a Pod's packet; {family} "
                f"needs {SMALLEST_MTU[family]}",
                f"Give {facts.uplink} an MTU of {SMALLEST_MTU[family] + overhead} or more.",
            )


# The host -------------------------------------------------------------------------------------------------------------


def local_ports(facts: Facts, intent: Intent) -> Iterator[Finding]:
    first, last = facts.local_ports
    reserved = port_set(facts.reserved_ports)
    local = f"The host takes local ports from {first}-{last} (net.ipv4.ip_local_port_range)"
    if intent.reserves_ports:
        left = left_for_host(facts.local_ports, reserved | port_set(HOST_RESERVED))
        if left >= ENOUGH_LOCAL_PORTS:
            return
        for_snat = port_ranges.text(port_set(HOST_RESERVED))
        yield _warning(
            "local ports",
            f"{local}, of which only {left} would be left if {for_snat} were reserved for SNAT. So these are not "
            "reserved, and Pods and clients of Services have fewer SNAT ports to one destination",
            "Set net.ipv4.ip_local_port_range to 32768 60999, or set `reserveLocalPorts: false`.",
        )
    for ports, clients in ((UNRESERVED.pods, "Pods"), (UNRESERVED.services, "clients of Services")):
        if left_for_host(facts.local_ports, reserved) == left_for_host(
            facts.local_ports, reserved | port_set((ports,))
        ):
            continue
        yield _warning(
            "local ports",
            f"{local}, and {clients} leave this Node by {ports[0]}-{ports[1]}: two connections may use the same port, "
            "and one of them fails",
            "Set net.ipv4.ip_local_port_range to 32768 60999, or reserve the ports: "
            f"sysctl -w net.ipv4.ip_local_reserved_ports={UNRESERVED.pods[0]}-{UNRESERVED.services[1]}.",
        )


def forwarding(facts: Facts, intent: Intent) -> Iterator[Finding]:
    for chain in facts.drop_chains:
        yield _warning(
            "forwarding",
            f"The policy of {chain} drops forwarded packets: unless a rule accepts them, Pods cannot reach addresses "
            "outside the cluster, and clients behind other NICs cannot reach Services",
            f"Accept packets from and to {intent.bridge} and {intent.gateway} in it, or set its policy to accept "
            "(iptables -P FORWARD ACCEPT).",
        )


def connection_limits(facts: Facts, intent: Intent) -> Iterator[Finding]:
    wanted = intent.connections
    yield from _limit(facts.connections, wanted, "the kernel", "sysctl -w net.netfilter.nf_conntrack_max=")
    if intent.userspace:
        yield from _limit(facts.switch_connections, wanted, "Open vSwitch", "ovs-appctl dpctl/ct-set-maxconns ")


def _limit(table: ConntrackUse | None, wanted: int, whose: str, command: str) -> Iterator[Finding]:
    if table is None or (table.can_be_raised and table.limit < wanted):
        return
    if table.limit < ENOUGH_CONNECTIONS:
        yield _warning(
            "conntrack",
            f"The conntrack table of {whose} is limited to {table.limit:,} connections; when it is full, new "
            "connections fail",
            f"Raise the limit to {ENOUGH_CONNECTIONS:,} or more: {command}{ENOUGH_CONNECTIONS}.",
        )
    elif table.used > NEARLY_FULL * table.limit:
        yield _warning(
            "conntrack",
            f"The conntrack table of {whose} is nearly full: {table.used:,} of {table.limit:,} connections; when "
            "it is full, new connections fail",
            f"Raise the limit: {command}{2 * table.limit}.",
        )


def kernel(facts: Facts, intent: Intent) -> Iterator[Finding]:
    if "openvswitch" in facts.missing_modules and not intent.userspace:
        yield _error(
            "kernel",
            "This kernel has no Open vSwitch datapath (module openvswitch)",
            "Install the module (modprobe openvswitch), or set `datapathType: netdev`: user space, slower.",
        )
    if intent.tunnel and not intent.userspace and intent.tunnel.value in facts.missing_modules:
        yield _warning(
            "kernel",
            f"This kernel has no {intent.tunnel.value} (module {intent.tunnel.value}): tunnels to other Nodes cannot "
            "be created",
            f"Install the module (modprobe {intent.tunnel.value}), or set `tunnelType` to the other kind on all Nodes.",
        )
    if not facts.nftables:
        yield _warning(
            "kernel",
            "This kernel has no nftables (module nf_tables): NodePorts and external addresses work only for clients "
            "behind the uplink, and not for the Node itself",
            "Install the module: modprobe nf_tables.",
        )


# Others ---------------------------------------------------------------------------------------------------------------


def other_networks(facts: Facts, intent: Intent) -> Iterator[Finding]:
    theirs: dict[str, list[str]] = {}
    for name in sorted(facts.interfaces):
        who = next((who for pattern, who in OTHER_NETWORKS.items() if fnmatchcase(name, pattern)), None)
        if who:
            theirs.setdefault(who, []).append(name)
    for who, names in theirs.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield _warning(
            "other network",
            f"{who} is on this Node (interfaces {', '.join(names[:3])}{more}): its Pods, routes and rules conflict "
            "with Windlass",
            "Remove it completely and reboot the Node (docs/migrate-from-kube-proxy.md).",
        )
    if facts.foreign_ports and not facts.adopted:
        yield _error(
            "other network",
            f"The bridge {intent.bridge} was not created by Windlass (ports {', '.join(facts.foreign_ports)}): its "
            "flows would be replaced",
            "Remove that network and its bridge, or set `bridge` to another name.",
        )


def network_configurations(facts: Facts, _: Intent) -> Iterator[Finding]:
    for name in facts.network_configurations:
        if name < OWN_CONFIGURATION:
            yield _warning(
                "CNI",
                f"The network configuration {name} sorts before {OWN_CONFIGURATION}: the container runtime attaches "
                "new Pods to that network",
                f"Remove {name} when no Pod of this Node needs it any more.",
            )


def kube_proxy(facts: Facts, _: Intent) -> Iterator[Finding]:
    signs = [*facts.kube_proxy, *((f"interface {IPVS_INTERFACE}",) if IPVS_INTERFACE in facts.interfaces else ())]
    if signs:
        yield _warning(
            "kube-proxy",
            f"kube-proxy runs here, or has left its rules ({', '.join(signs)}): they apply to connections of the Node "
            "to Services first, and may lead to endpoints that no longer exist",
            "Stop kube-proxy on this Node, then run `kube-proxy --cleanup` or reboot.",
        )


CHECKS: tuple[Check, ...] = (
    uplink,
    tunnel_mtu,
    local_ports,
    forwarding,
    connection_limits,
    kernel,
    other_networks,
    network_configurations,
    kube_proxy,
)


def _error(check: str, what: str, remedy: str) -> Finding:
    return Finding(Severity.ERROR, check, what, remedy)


def _warning(check: str, what: str, remedy: str) -> Finding:
    return Finding(Severity.WARNING, check, what, remedy)
