"""Builds the network under the cluster from a router namespace, bridges and veth pairs, as planned in segments.py.

It blocks (netlink by pyroute2, a few milliseconds per machine), so the event loop calls it in a thread.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from zlib import crc32

from pyroute2 import IPRoute

from windlass.host.linux import namespaces
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.scenarios.directives import HostRoute
from windlass.lab.scenarios.segments import Machine, Nic, Segment, router_of
from windlass.model.families import Family, IPAddress, IPNetwork, family_of

_ADDRESS_FAMILY = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_FIRST_END, _SECOND_END = "fe80::1", "fe80::2"  # the ends of a link between two routers
_NO_DAD = 0x02  # IFA_F_NODAD: usable at once

# Settings of every namespace: addresses are usable at once, nothing is learned from router advertisements, and no rate
# limit disturbs a probe.
_EVERYWHERE = {
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv6/conf/all/accept_dad": "0",
    "ipv6/conf/default/accept_dad": "0",
    "ipv6/conf/default/dad_transmits": "0",
    "ipv6/conf/all/accept_ra": "0",
    "ipv6/conf/default/accept_ra": "0",
    "ipv4/icmp_ratelimit": "0",
    "ipv6/icmp/ratelimit": "0",
}
_ROUTER = {
    "ipv4/ip_forward": "1",
    "ipv6/conf/all/forwarding": "1",
    # It also forwards between subnets on one segment, and must not redirect the hosts past itself.
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/default/send_redirects": "0",
}


class Underlay:
    def __init__(self, lab: Lab, segments: tuple[Segment, ...]) -> None:
        self._lab = lab
        self._segments = segments
        self._router = lab.namespace("underlay")
        self._routes: dict[IPNetwork, IPAddress] = {}
        self._wires: dict[str, list[str]] = {}  # the router's ends of the veth pairs, by namespace
        self._ports = count()  # numbers for the router's ends: names of Nodes are too long for interfaces

    def create(self) -> None:
        """The router with a bridge for each segment."""
        make_namespace(self._router, _ROUTER)
        with _netlink(self._router) as ip:
            for number, segment in enumerate(self._segments, start=1):
                # A fixed MAC: otherwise the bridge takes that of a port, and it changes when a Node joins or leaves.
                mac = f"02:00:00:00:00:{number:02x}"
                ip.link("add", ifname=segment.bridge, kind="bridge", br_mcast_snooping=0, address=mac)
                index = _index(ip, segment.bridge)
                for subnet in segment.subnets:
                    _add_address(ip, index, router_of(subnet), subnet.prefixlen)
                ip.link("set", index=index, state="up")
        retry_neighbours_longer(self._router)

    def plug(self, machine: Machine) -> str:
        """Creates the machine's namespace with NICs, addresses and default routes. Returns its name."""
        namespace = self._lab.namespace(machine.kind, machine.name)
        make_namespace(namespace)
        if machine.link_mtu is None:
            with _netlink(self._router) as ip:
                for nic in machine.nics:
                    self._connect(ip, nic, namespace)
        else:
            self._connect_by_router(machine, machine.link_mtu, namespace)
        with _netlink(namespace) as ip:
            for nic in machine.nics:
                index = _index(ip, nic.name)
                for address in nic.addresses:
                    _add_address(ip, index, address.ip, address.network.prefixlen)
                ip.link("set", index=index, state="up")
            for family, router in machine.default_routers.items():
                ip.route("add", dst="default", gateway=str(router), family=_ADDRESS_FAMILY[family])
        with namespaces.entered(namespaces.path_of(namespace)):
            for nic in machine.nics:
                _leave_checksums_to_software(nic.name)
        retry_neighbours_longer(namespace)
        return namespace

    def unplug(self, machine: Machine) -> None:
        """Removes the machine's namespaces, and with them its veth pairs and routes.

        The veth pairs of a machine without its own router are deleted first: the kernel removes a namespace later, and
        a machine that comes back must not be reachable by its old link.
        """
        namespace = self._lab.namespace(machine.kind, machine.name)
        with _netlink(self._router) as ip:
            for port in self._wires.pop(namespace, ()):
                ip.link("del", ifname=port)
        namespaces.delete(namespace)
        if machine.link_mtu is not None:
            namespaces.delete(self._lab.namespace("router", machine.name))

    def route(self, routes: Mapping[IPNetwork, IPAddress]) -> None:
        """Makes these the only routes of the router, except for those to its own subnets."""
        wanted = dict(routes)
        if wanted == self._routes:
            return
        with _netlink(self._router) as ip:
            for network in self._routes.keys() - wanted.keys():
                ip.route("del", dst=str(network), family=_ADDRESS_FAMILY[family_of(network)])
            for network, via in wanted.items():
                if self._routes.get(network) != via:
                    ip.route("replace", dst=str(network), gateway=str(via), family=_ADDRESS_FAMILY[family_of(network)])
        self._routes = wanted

    def add_host_route(self, machine: Machine, route: HostRoute) -> None:
        """Adds a route on the machine itself, or replaces the one to the same network."""
        family = family_of(route.network)
        options: dict[str, object] = {"type": route.type}
        if route.type == "unicast":
            if family not in machine.default_routers:
                raise LabError(f"Node {machine.name}: a route to {route.to} needs an address of that family")
            options["gateway"] = str(machine.default_routers[family])
        if route.mtu is not None:
            options["metrics"] = {"mtu": route.mtu}
        with _netlink(self._lab.namespace(machine.kind, machine.name)) as ip:
            ip.route("replace", dst=route.to, family=_ADDRESS_FAMILY[family], **options)

    def _connect(self, ip: IPRoute, nic: Nic, namespace: str) -> None:
        bridge = next(segment.bridge for segment in self._segments if nic.subnets <= segment.subnets)
        port = f"port{next(self._ports)}"
        with namespaces.path_of(namespace).open("rb") as there:
            mac = _mac(namespace, nic)
            peer = {"ifname": nic.name, "net_ns_fd": there.fileno(), "address": mac}
            ip.link("add", ifname=port, kind="veth", peer=peer)
        ip.link("set", ifname=port, master=_index(ip, bridge), state="up")
        self._wires.setdefault(namespace, []).append(port)

    def _connect_by_router(self, machine: Machine, mtu: int, namespace: str) -> None:
        """The machine's own link has the usual MTU: only the routers notice packets that are too big."""
        own_router = self._lab.namespace("router", machine.name)
        make_namespace(own_router, _ROUTER)
        (nic,) = machine.nics
        link = f"link{next(self._ports)}"
        with _netlink(self._router) as ip, namespaces.path_of(own_router).open("rb") as there:
            ip.link("add", ifname=link, kind="veth", peer={"ifname": "link", "net_ns_fd": there.fileno()})
            _bring_up(ip, link, _FIRST_END, mtu)
        with _netlink(own_router) as ip, namespaces.path_of(namespace).open("rb") as there:
            _bring_up(ip, "link", _SECOND_END, mtu)
            ip.link("add", ifname="host", kind="veth", peer={"ifname": nic.name, "net_ns_fd": there.fileno()})
            for subnet in nic.subnets:
                _add_address(ip, _index(ip, "host"), router_of(subnet), subnet.prefixlen)
            ip.link("set", ifname="host", state="up")
            for family in {family_of(subnet) for subnet in nic.subnets}:
                _route_by_link(ip, "link", "default", family, _FIRST_END)
        with _netlink(self._router) as ip:
            for subnet in nic.subnets:
                _route_by_link(ip, link, str(subnet), family_of(subnet), _SECOND_END)
        retry_neighbours_longer(self._router)
        retry_neighbours_longer(own_router)


def make_namespace(name: str, settings: Mapping[str, str] | None = None) -> None:
    """Creates a namespace with the lab's settings and its loopback up."""
    path = namespaces.create(name)
    with namespaces.entered(path):
        for key, value in (_EVERYWHERE | dict(settings or {})).items():
            Path("/proc/sys/net", key).write_text(value)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def retry_neighbours_longer(namespace: str) -> None:
    """Makes the kernel look for a neighbour for longer than a probe waits: an absent one is a timeout, not a refusal.

    The settings belong to interfaces, so call this again when there are new interfaces.
    """
    with namespaces.entered(namespaces.path_of(namespace)):
        for family in ("ipv4", "ipv6"):
            for interface in Path("/proc/sys/net", family, "neigh").iterdir():
                with suppress(FileNotFoundError):  # an interface may be removed meanwhile
                    _settle(interface / "retrans_time_ms", "240")  # whole ticks at any HZ, so it reads back the same
                    _settle(interface / "mcast_solicit", "40")


# Details --------------------------------------------------------------------------------------------------------


def _settle(setting: Path, value: str) -> None:
    """Writes only a different value: the kernel reports a write as a link change, and switches check all ports."""
    if setting.read_text().strip() != value:
        setting.write_text(value)


_SET_FLAGS = 0x8914  # SIOCSIFFLAGS
_IFF_UP = 0x1
_ETHTOOL = 0x8946  # SIOCETHTOOL
_SET_TX_CHECKSUM = 0x17


@contextmanager
def _netlink(namespace: str) -> Iterator[IPRoute]:
    with namespaces.entered(namespaces.path_of(namespace)):
        ip = IPRoute()
    with ip:
        yield ip


def _index(ip: IPRoute, name: str) -> int:
    index: int = ip.link_lookup(ifname=name)[0]
    return index


def _mac(namespace: str, nic: Nic) -> str:
    """Derived from the names, so that it is the same after a reboot."""
    digest = crc32(f"{namespace} {nic.name}".encode()).to_bytes(4)
    return f"02:01:{digest.hex(':')}"


def _add_address(ip: IPRoute, index: int, address: IPAddress, prefix: int) -> None:
    flags = _NO_DAD if family_of(address) is Family.IPV6 else 0
    ip.addr("add", index=index, address=str(address), prefixlen=prefix, flags=flags)


def _bring_up(ip: IPRoute, name: str, address: str, mtu: int) -> None:
    index = _index(ip, name)
    ip.addr("add", index=index, address=address, prefixlen=64, flags=_NO_DAD)
    ip.link("set", index=index, mtu=mtu, state="up")


def _route_by_link(ip: IPRoute, link: str, destination: str, family: Family, next_hop: str) -> None:
    """The link needs only link-local addresses: an IPv4 route may have an IPv6 next hop."""
    via = {"gateway": next_hop} if family is Family.IPV6 else {"via": {"family": socket.AF_INET6, "addr": next_hop}}
    ip.route("add", dst=destination, oif=_index(ip, link), family=_ADDRESS_FAMILY[family], **via)


def _leave_checksums_to_software(interface: str) -> None:
    """Turns checksum offload off: between veths the kernel would leave out the checksum, and the userspace datapath of
    Open vSwitch would see incomplete packets.
    """
    request = array("B", struct.pack("II", _SET_TX_CHECKSUM, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        address, _ = request.buffer_info()
        fcntl.ioctl(any_socket, _ETHTOOL, struct.pack("16sP", interface.encode(), address))
