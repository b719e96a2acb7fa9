"""rtnetlink requests for links, addresses, routes, neighbours and rules, with typed values."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import IPv6Interface, ip_address, ip_interface

from windlass.host.linux.adapter_state import AdapterRoute
from windlass.host.linux.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Netlink,
    NetlinkError,
    as_number,
    as_text,
    attribute,
    attributes,
    ignoring,
    nested,
    number,
    text,
)
from windlass.host.linux.route_messages import (
    FAMILIES,
    ROUTE,
    RTA_OIF,
    SCOPE_ANY,
    SCOPE_UNIVERSE,
    KernelRoute,
    read_route,
    write_route,
)
from windlass.model.families import Family, IPAddress, IPInterface

# Marks the routes and neighbours of Windlass ("W"; `ip route show proto 87`).
PROTOCOL = 87

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
# Multicast groups, as a mask.
GROUP_LINKS = 0x1
GROUP_ADDRESSES = 0x10 | 0x100
GROUP_ROUTES = 0x40 | 0x400

_IFF_UP, _IFF_NOARP, _IFF_PROMISC = 0x1, 0x80, 0x100
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_CARRIER = 1, 3, 4, 5, 10, 18, 33
_IFLA_IFALIAS, _IFLA_NET_NS_FD, _IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 20, 28, 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST, _IFA_FLAGS = 1, 2, 4, 8
_IFA_F_TEMPORARY, _IFA_F_NODAD, _IFA_F_NOPREFIXROUTE = 0x01, 0x02, 0x200
_NDA_DST, _NDA_LLADDR, _NDA_IFINDEX, _NDA_PROTOCOL, _NUD_PERMANENT = 1, 2, 8, 12, 0x80
_FRA_PRIORITY, _FRA_FWMARK, _FRA_TABLE, _FRA_FWMASK, _FRA_PROTOCOL, _FR_ACT_TO_TABLE = 6, 10, 15, 16, 21, 1

_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # family, index, state, flags, type
_RULE = struct.Struct("=BBBBBxxBI")  # family, dst len, src len, tos, table, action, flags


@dataclass(frozen=True, slots=True)
class Link:
    index: int
    name: str
    up: bool
    mac: str
    mtu: int
    kind: str
    peer: int  # of a veth: the index of its other end, in the namespace of that end
    alias: str
    master: int  # the index of the interface of which it is a member; 0: none
    type: int  # ARPHRD_*
    carrier: bool


@dataclass(frozen=True, slots=True)
class KernelNeighbour:
    address: IPAddress
    mac: str
    ours: bool


@dataclass(frozen=True, slots=True)
class MarkRule:
    """Packets with this bit in their mark use this routing table."""

    family: Family
    mark: int
    table: int
    priority: int


def unless_absent() -> AbstractContextManager[None]:
    """Ignore errors within the block about objects that do not exist."""
    return ignoring(errno.ENODEV, errno.ENOENT, errno.ESRCH, errno.EADDRNOTAVAIL)


def link(netlink: Netlink, name_or_index: str | int) -> Link | None:
    wanted = _link(0) + text(_IFLA_IFNAME, name_or_index) if isinstance(name_or_index, str) else _link(name_or_index)
    try:
        return read_link(netlink.get(RTM_GETLINK, wanted))
    except NetlinkError as error:
        if error.errno == errno.ENODEV:
            return None
        raise


def links(netlink: Netlink) -> Iterator[Link]:
    return map(read_link, netlink.dump(RTM_GETLINK, _link(0)))


def read_link(body: bytes) -> Link:
    _, hardware, index, flags, _ = _LINK.unpack_from(body)
    found = attributes(body, _LINK.size)
    info = attributes(found.get(_IFLA_LINKINFO, b""))
    return Link(
        index=index,
        name=as_text(found.get(_IFLA_IFNAME, b"")),
        up=bool(flags & _IFF_UP),
        mac=_as_mac(found.get(_IFLA_ADDRESS, b"")),
        mtu=as_number(found.get(_IFLA_MTU, b"")),
        kind=as_text(info.get(_IFLA_INFO_KIND, b"")),
        peer=as_number(found.get(_IFLA_LINK, b"")),
        alias=as_text(found.get(_IFLA_IFALIAS, b"")),
        master=as_number(found.get(_IFLA_MASTER, b"")),
        type=hardware,
        carrier=found.get(_IFLA_CARRIER, b"\1") != b"\0",
    )


def set_link(
    netlink: Netlink,
    index: int,
    *,
    up: bool | None = None,
    mac: str | None = None,
    mtu: int | None = None,
    alias: str | None = None,
    arp: bool | None = None,
    promiscuous: bool | None = None,
) -> None:
    flags = (_IFF_UP if up else 0) | (0 if arp in {None, True} else _IFF_NOARP) | (_IFF_PROMISC if promiscuous else 0)
    changed = (0 if up is None else _IFF_UP) | (0 if arp is None else _IFF_NOARP)
    changed |= 0 if promiscuous is None else _IFF_PROMISC
    body = _link(index, flags, changed)
    if mac is not None:
        body += attribute(_IFLA_ADDRESS, _mac(mac))
    if mtu is not None:
        body += number(_IFLA_MTU, mtu)
    if alias is not None:
        body += attribute(_IFLA_IFALIAS, alias.encode())
    netlink.do(RTM_NEWLINK, body)


def add_veth(netlink: Netlink, name: str, peer: str, peer_namespace: int, peer_mac: str, mtu: int) -> None:
    """Both ends are down. The peer is created in its namespace, given as a file descriptor."""
    other = (
        _link(0)
        + text(_IFLA_IFNAME, peer)
        + attribute(_IFLA_ADDRESS, _mac(peer_mac))
        + number(_IFLA_MTU, mtu)
        + number(_IFLA_NET_NS_FD, peer_namespace)
    )
    kind = text(_IFLA_INFO_KIND, "veth") + nested(_IFLA_INFO_DATA, attribute(_VETH_INFO_PEER, other))
    body = _link(0) + text(_IFLA_IFNAME, name) + number(_IFLA_MTU, mtu) + nested(_IFLA_LINKINFO, kind)
    netlink.do(RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL)


def delete_link(netlink: Netlink, index: int) -> None:
    with unless_absent():
        netlink.do(RTM_DELLINK, _link(index))


def addresses(netlink: Netlink, index: int = 0) -> Iterator[tuple[int, IPInterface]]:
    """Index and address, of one interface or all, in the order of the kernel, without those that it creates itself."""
    for body in netlink.dump(RTM_GETADDR, ADDRESS.pack(0, 0, 0, 0, index)):
        _, prefix, short_flags, _, where = ADDRESS.unpack_from(body)
        parts = attributes(body, ADDRESS.size)
        flags = as_number(parts[_IFA_FLAGS]) if _IFA_FLAGS in parts else short_flags
        address = ip_interface((parts.get(_IFA_LOCAL, parts.get(_IFA_ADDRESS, b"")), prefix))
        temporary = address.version == 6 and flags & _IFA_F_TEMPORARY
        if not address.is_link_local and not temporary:
            yield where, address


def global_addresses(netlink: Netlink) -> Iterator[IPAddress]:
    """The addresses of all interfaces, without loopback and link-local addresses."""
    for body in netlink.dump(RTM_GETADDR, ADDRESS.pack(0, 0, 0, 0, 0)):
        if is_global_address(body):
            parts = attributes(body, ADDRESS.size)
            yield ip_address(parts.get(_IFA_LOCAL, parts.get(_IFA_ADDRESS, b"")))


def is_global_address(body: bytes) -> bool:
    return bool(ADDRESS.unpack_from(body)[3] == SCOPE_UNIVERSE)


def index_of_address(body: bytes) -> int:
    return int(ADDRESS.unpack_from(body)[4])


def add_address(netlink: Netlink, index: int, address: IPInterface, *, connected_route: bool = True) -> None:
    """No error if the address exists. No duplicate address detection: the address is known to be free."""
    is_ipv6 = isinstance(address, IPv6Interface)
    flags = (_IFA_F_NODAD if is_ipv6 else 0) | (0 if connected_route else _IFA_F_NOPREFIXROUTE)
    body = _address(index, address) + (number(_IFA_FLAGS, flags) if flags else b"")
    if not is_ipv6 and address.network.prefixlen < 31:
        body += attribute(_IFA_BROADCAST, address.network.broadcast_address.packed)
    with ignoring(errno.EEXIST):
        netlink.do(RTM_NEWADDR, body, NLM_F_CREATE | NLM_F_EXCL)


def delete_address(netlink: Netlink, index: int, address: IPInterface) -> None:
    with unless_absent():
        netlink.do(RTM_DELADDR, _address(index, address))


def routes(netlink: Netlink, *, protocol: int = 0, index: int = 0) -> Iterator[KernelRoute]:
    """Unicast routes of both families, optionally of this protocol and interface only."""
    by = number(RTA_OIF, index) if index else b""
    for family in FAMILIES.values():
        for body in netlink.dump(RTM_GETROUTE, ROUTE.pack(family, 0, 0, 0, 0, protocol, 0, 0, 0) + by):
            route = read_route(body)
            if route is not None:
                yield route


def add_route(netlink: Netlink, index: int, route: AdapterRoute, *, instead: bool = False) -> None:
    """Raises an error if the destination has a route, unless `instead`: then the new route takes precedence (IPv4)."""
    exclusive = 0 if instead and route.destination.version == 4 else NLM_F_EXCL
    netlink.do(RTM_NEWROUTE, write_route(index, route), NLM_F_CREATE | exclusive)


def move_route(netlink: Netlink, source: int, target: int, route: AdapterRoute) -> None:
    """Move an IPv6 route from one interface to another, in one step if possible. It is not possible if other interfaces
    have a route of the same destination and metric, because the kernel would replace those as well.
    """
    same = [
        found.indexes
        for found in routes(netlink)
        if (found.route.destination, found.route.metric, found.route.table)
        == (route.destination, route.metric, route.table)
    ]
    if all(indexes == {source} for indexes in same):
        netlink.do(RTM_NEWROUTE, write_route(target, route), NLM_F_CREATE | NLM_F_REPLACE)
        return
    delete_route(netlink, source, route)
    try:
        add_route(netlink, target, route)
    except NetlinkError:
        add_route(netlink, source, route)
        raise


def delete_route(netlink: Netlink, index: int, route: AdapterRoute) -> None:
    with unless_absent():
        netlink.do(RTM_DELROUTE, write_route(index, route, SCOPE_ANY))


def neighbours(netlink: Netlink, index: int) -> Iterator[KernelNeighbour]:
    """The permanent neighbours."""
    for body in netlink.dump(RTM_GETNEIGH, _NEIGHBOUR.pack(0, 0, 0, 0, 0) + number(_NDA_IFINDEX, index)):
        family, _, state, _, _ = _NEIGHBOUR.unpack_from(body)
        parts = attributes(body, _NEIGHBOUR.size)
        if state & _NUD_PERMANENT and family in FAMILIES.values() and _NDA_LLADDR in parts:
            ours = as_number(parts.get(_NDA_PROTOCOL, b"")) == PROTOCOL
            yield KernelNeighbour(ip_address(parts[_NDA_DST]), _as_mac(parts[_NDA_LLADDR]), ours)


def set_neighbour(netlink: Netlink, index: int, address: IPAddress, mac: str) -> None:
    body = _neighbour(index, address, _NUD_PERMANENT)
    body += attribute(_NDA_LLADDR, _mac(mac)) + attribute(_NDA_PROTOCOL, bytes((PROTOCOL,)))
    netlink.do(RTM_NEWNEIGH, body, NLM_F_CREATE | NLM_F_REPLACE)  # replaces a learned entry


def delete_neighbour(netlink: Netlink, index: int, address: IPAddress) -> None:
    with unless_absent():
        netlink.do(RTM_DELNEIGH, _neighbour(index, address, 0))


def mark_rules(netlink: Netlink) -> Iterator[MarkRule]:
    """The rules of Windlass, of both families."""
    for body in netlink.dump(RTM_GETRULE, _RULE.pack(0, 0, 0, 0, 0, 0, 0)):
        family = next((f for f in Family if FAMILIES[f.value] == body[0]), None)
        parts = attributes(body, _RULE.size)
        if family is not None and as_number(parts.get(_FRA_PROTOCOL, b"")) == PROTOCOL:
            mark, table, priority = (as_number(parts.get(a, b"")) for a in (_FRA_FWMARK, _FRA_TABLE, _FRA_PRIORITY))
            yield MarkRule(family, mark, table, priority)


def add_mark_rule(netlink: Netlink, rule: MarkRule) -> None:
    """No error if the rule exists."""
    with ignoring(errno.EEXIST):
        netlink.do(RTM_NEWRULE, _rule(rule), NLM_F_CREATE | NLM_F_EXCL)


def delete_mark_rule(netlink: Netlink, rule: MarkRule) -> None:
    with unless_absent():
        netlink.do(RTM_DELRULE, _rule(rule))


def _link(index: int, flags: int = 0, changed: int = 0) -> bytes:
    return _LINK.pack(0, 0, index, flags, changed)


def _address(index: int, address: IPInterface) -> bytes:
    local = address.ip.packed
    body = ADDRESS.pack(FAMILIES[address.version], address.network.prefixlen, 0, 0, index)
    return body + attribute(_IFA_LOCAL, local) + attribute(_IFA_ADDRESS, local)


def _rule(rule: MarkRule) -> bytes:
    body = _RULE.pack(FAMILIES[rule.family.value], 0, 0, 0, 0, _FR_ACT_TO_TABLE, 0)
    body += number(_FRA_FWMARK, rule.mark) + number(_FRA_FWMASK, rule.mark) + number(_FRA_TABLE, rule.table)
    return body + number(_FRA_PRIORITY, rule.priority) + attribute(_FRA_PROTOCOL, bytes((PROTOCOL,)))


def _neighbour(index: int, address: IPAddress, state: int) -> bytes:
    body = _NEIGHBOUR.pack(FAMILIES[address.version], index, state, 0, 0)
    return body + attribute(_NDA_DST, address.packed)


def _mac(value: str) -> bytes:
    return bytes.fromhex(value.replace(":", ""))


def _as_mac(value: bytes) -> str:
    return value.hex(":")
