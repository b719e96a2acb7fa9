"""Decodes and encodes routes in netlink messages, as `AdapterRoute`. `rtnetlink` has the requests."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from windlass.host.linux.adapter_state import AdapterRoute, NextHop
from windlass.host.linux.netlink import as_number, attribute, attributes, number
from windlass.model.families import IPAddress

PROTOCOL_KERNEL = 2
TABLE_MAIN = 254
TABLE_LOCAL = 255
SCOPE_UNIVERSE = 0
SCOPE_ANY = 255
RTA_OIF = 4
ROUTE = struct.Struct("=BBBBBBBBI")  # family, dst len, src len, tos, table, protocol, scope, type, flags
FAMILIES = {4: int(socket.AF_INET), 6: int(socket.AF_INET6)}

_RTA_DST, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC, _RTA_METRICS = 1, 5, 6, 7, 8
_RTA_MULTIPATH, _RTA_CACHEINFO, _RTA_TABLE, _RTA_VIA, _RTA_PREF, _RTA_ENCAP, _RTA_EXPIRES = 9, 12, 15, 18, 20, 22, 23
_RTAX_MTU = 2  # within RTA_METRICS
_RTN_UNICAST, _RTNH_F_ONLINK, _RTM_F_CLONED = 1, 4, 0x200
_SCOPE_LINK = 253
_HOP = struct.Struct("=HBBi")  # length, flags, weight less one, index
_EXPIRES = struct.Struct("=8xi")  # in RTA_CACHEINFO, in ticks
_TICKS = 100  # per second, whatever HZ the kernel was built with


@dataclass(frozen=True, slots=True)
class KernelRoute:
    index: int  # 0 for a multipath route: its next hops have their interfaces
    route: AdapterRoute
    kernel_made: bool  # a connected, link-local or local route
    plain: bool  # AdapterRoute can represent it completely

    @property
    def indexes(self) -> frozenset[int]:
        """The interfaces of the route."""
        return frozenset((self.index, *(hop.interface for hop in self.route.hops))) - {0}


def read_route(body: bytes) -> KernelRoute | None:
    family, prefix, _, tos, short_table, protocol, scope, kind, flags = ROUTE.unpack_from(body)
    if kind != _RTN_UNICAST or family not in FAMILIES.values() or flags & _RTM_F_CLONED:
        return None
    parts = attributes(body, ROUTE.size)
    table = as_number(parts[_RTA_TABLE]) if _RTA_TABLE in parts else short_table
    anywhere = bytes(4 if family == socket.AF_INET else 16)
    destination = ip_network((parts.get(_RTA_DST, anywhere), prefix))
    via = _read_via(parts)
    expected = _SCOPE_LINK if via is None and family == socket.AF_INET else SCOPE_UNIVERSE
    hops = tuple(_read_hops(parts.get(_RTA_MULTIPATH, b"")))
    route = AdapterRoute(
        destination=destination,
        via=via,
        source=ip_address(parts[_RTA_PREFSRC]) if _RTA_PREFSRC in parts else None,
        metric=as_number(parts.get(_RTA_PRIORITY, b"")),
        onlink=bool(flags & _RTNH_F_ONLINK) and not hops,
        table=0 if table == TABLE_MAIN else table,
        protocol=protocol,
        options=parts.get(_RTA_METRICS, b""),
        hops=hops,
        tos=tos,
        scope=None if scope == expected or hops else scope,
        preference=as_number(parts.get(_RTA_PREF, b"")),
        expires_at=_read_expiry(parts.get(_RTA_CACHEINFO, b"")),
    )
    kernel_made = (
        protocol == PROTOCOL_KERNEL
        or table == TABLE_LOCAL
        or destination.is_multicast
        or destination.network_address.is_link_local
    )
    return KernelRoute(as_number(parts.get(RTA_OIF, b"")), route, kernel_made, _RTA_ENCAP not in parts)


def write_route(index: int, route: AdapterRoute, scope: int | None = None) -> bytes:
    if scope is None:
        is_direct = not route.is_indirect and route.destination.version == 4
        usual = _SCOPE_LINK if is_direct else SCOPE_UNIVERSE
        scope = usual if route.scope is None else route.scope
    body = ROUTE.pack(
        FAMILIES[route.destination.version],
        route.destination.prefixlen,
        0,
        route.tos,
        0,
        route.protocol,
        scope,
        _RTN_UNICAST,
        _RTNH_F_ONLINK if route.onlink else 0,
    )
    body += attribute(_RTA_DST, route.destination.network_address.packed)
    body += number(_RTA_TABLE, route.table or TABLE_MAIN)
    if route.hops:
        hops = (_write_hop(index, hop, route.destination.version) for hop in route.hops)
        body += attribute(_RTA_MULTIPATH, b"".join(hops))
    else:
        body += number(RTA_OIF, index) + _write_via(route.via, route.destination.version)
    if route.source is not None:
        body += attribute(_RTA_PREFSRC, route.source.packed)
    if route.metric:
        body += number(_RTA_PRIORITY, route.metric)
    if route.options:
        body += attribute(_RTA_METRICS, route.options)
    if route.preference:
        body += attribute(_RTA_PREF, bytes((route.preference,)))
    if route.expires_at is not None and route.destination.version == 6:
        body += number(_RTA_EXPIRES, max(1, route.expires_at - int(time.time())))
    return body


def mtu_option(mtu: int) -> bytes:
    """For `AdapterRoute.options`."""
    return number(_RTAX_MTU, mtu)


def mtu_of(route: AdapterRoute) -> int | None:
    """None: that of the interface."""
    found = attributes(route.options).get(_RTAX_MTU)
    return None if found is None else as_number(found)


def _read_via(parts: dict[int, bytes]) -> IPAddress | None:
    if _RTA_GATEWAY in parts:
        return ip_address(parts[_RTA_GATEWAY])
    if _RTA_VIA in parts:  # a next hop of the other family, after two bytes with the family
        return ip_address(parts[_RTA_VIA][2:])
    return None


def _write_via(via: IPAddress | None, version: int) -> bytes:
    if via is None:
        return b""
    if via.version == version:
        return attribute(_RTA_GATEWAY, via.packed)
    return attribute(_RTA_VIA, struct.pack("=H", FAMILIES[via.version]) + via.packed)


def _read_hops(data: bytes) -> Iterator[NextHop]:
    offset = 0
    while offset + _HOP.size <= len(data):
        length, flags, weight, index = _HOP.unpack_from(data, offset)
        if length < _HOP.size:
            return
        parts = attributes(data[offset : offset + length], _HOP.size)
        yield NextHop(_read_via(parts), index, weight, bool(flags & _RTNH_F_ONLINK))
        offset += length + -length % 4


def _write_hop(index: int, hop: NextHop, version: int) -> bytes:
    via = _write_via(hop.via, version)
    flags = _RTNH_F_ONLINK if hop.onlink else 0
    return _HOP.pack(_HOP.size + len(via), flags, hop.weight, hop.interface or index) + via


def _read_expiry(data: bytes) -> int | None:
    ticks = int(_EXPIRES.unpack_from(data)[0]) if len(data) >= _EXPIRES.size else 0
    return int(time.time()) + ticks // _TICKS if ticks > 0 else None
