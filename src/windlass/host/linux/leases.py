"""Reads, adds and changes addresses of an interface with lifetimes, scope and flags, as `AdapterAddress`."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_interface

from windlass.host.linux.adapter_state import AdapterAddress
from windlass.host.linux.netlink import NLM_F_CREATE, NLM_F_REPLACE, Netlink, as_number, attribute, attributes, number
from windlass.host.linux.route_messages import FAMILIES
from windlass.host.linux.rtnetlink import ADDRESS, RTM_DELADDR, RTM_GETADDR, RTM_NEWADDR, unless_absent

NOPREFIXROUTE = 0x200
_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST, _IFA_CACHEINFO, _IFA_FLAGS, _IFA_RT_PRIORITY = 1, 2, 4, 6, 8, 9
_TEMPORARY, _NODAD, _HOMEADDRESS, _DEPRECATED, _MANAGETEMPADDR, _MCAUTOJOIN = 0x01, 0x02, 0x10, 0x20, 0x100, 0x400
_CHOSEN = _HOMEADDRESS | _MANAGETEMPADDR | NOPREFIXROUTE | _MCAUTOJOIN  # the kernel sets the others
_LIFETIMES = struct.Struct("=II8x")  # preferred, valid: seconds left
_FOREVER = 0xFFFFFFFF
_IPV6_METRIC = 256  # the kernel's metric for an address without one
_DEMOTED = 0x4000_0000  # added to the metric of an address, which is that of the route to its network


def held(netlink: Netlink, index: int) -> Iterator[AdapterAddress]:
    """In the order of the kernel, without link-local and temporary addresses, which the kernel creates."""
    for body in netlink.dump(RTM_GETADDR, ADDRESS.pack(0, 0, 0, 0, index)):
        address = _read(body)
        if address is not None:
            yield address


def put(netlink: Netlink, index: int, address: AdapterAddress) -> None:
    """Add the address, or change its lifetimes. No duplicate address detection: the address was in use on this host."""
    netlink.do(RTM_NEWADDR, _write(index, address), NLM_F_CREATE | NLM_F_REPLACE)


def delete(netlink: Netlink, index: int, address: AdapterAddress) -> None:
    with unless_absent():
        netlink.do(RTM_DELADDR, _written_key(index, address))


def demote(netlink: Netlink, index: int) -> None:
    """Prefer other interfaces for the networks of this one's addresses. `held` still reads their former metrics."""
    for address in [*held(netlink, index)]:
        put(netlink, index, replace(address, metric=address.metric | _DEMOTED))


def promote(netlink: Netlink, index: int) -> None:
    """Undo `demote`."""
    for body in [*netlink.dump(RTM_GETADDR, ADDRESS.pack(0, 0, 0, 0, index))]:
        metric = as_number(attributes(body, ADDRESS.size).get(_IFA_RT_PRIORITY, b""))
        if metric & _DEMOTED and (address := _read(body)) is not None:
            # The kernel takes an absent metric of an IPv4 address as 0, and of an IPv6 address as no change.
            default = _IPV6_METRIC if address.version == 6 else 0
            put(netlink, index, replace(address, metric=address.metric or default))


def _read(body: bytes) -> AdapterAddress | None:
    _, prefix, short_flags, scope, _ = ADDRESS.unpack_from(body)
    parts = attributes(body, ADDRESS.size)
    flags = as_number(parts[_IFA_FLAGS]) if _IFA_FLAGS in parts else short_flags
    local, remote = parts.get(_IFA_LOCAL, parts[_IFA_ADDRESS]), parts.get(_IFA_ADDRESS, b"")
    interface = ip_interface((local, prefix))
    if interface.is_link_local or (interface.version == 6 and flags & _TEMPORARY):
        return None
    preferred, valid = _LIFETIMES.unpack_from(parts[_IFA_CACHEINFO]) if _IFA_CACHEINFO in parts else (_FOREVER,) * 2
    now = int(time.time())
    return AdapterAddress(
        interface,
        valid_until=None if valid == _FOREVER else now + valid,
        preferred_until=None if preferred == _FOREVER else now + preferred,
        peer=ip_address(remote) if remote and remote != local else None,
        broadcast=ip_address(parts[_IFA_BROADCAST]) if _IFA_BROADCAST in parts else None,
        metric=as_number(parts.get(_IFA_RT_PRIORITY, b"")) & ~_DEMOTED,
        scope=scope,
        flags=flags & _CHOSEN,
    )


def _write(index: int, address: AdapterAddress) -> bytes:
    body = _written_key(index, address)
    if address.broadcast is not None:
        body += attribute(_IFA_BROADCAST, address.broadcast.packed)
    if address.metric:
        body += number(_IFA_RT_PRIORITY, address.metric)
    if address.valid_until is not None or address.preferred_until is not None:
        valid = _left(address.valid_until)
        preferred = min(_left(address.preferred_until, least=0), valid)
        body += attribute(_IFA_CACHEINFO, _LIFETIMES.pack(preferred, valid))
    return body + number(_IFA_FLAGS, address.flags | (_NODAD if address.version == 6 else 0))


def _left(until: int | None, least: int = 1) -> int:
    return _FOREVER if until is None else max(least, until - int(time.time()))


def _written_key(index: int, address: AdapterAddress) -> bytes:
    prefix = address.interface.network.prefixlen
    body = ADDRESS.pack(FAMILIES[address.version], prefix, 0, address.scope, index)
    remote = address.peer or address.ip
    return body + attribute(_IFA_LOCAL, address.ip.packed) + attribute(_IFA_ADDRESS, remote.packed)
