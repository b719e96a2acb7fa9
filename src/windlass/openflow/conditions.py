"""Conditions that matches are built from: the same ones for both families."""

from __future__ import annotations

from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from windlass.model.families import Family, IPAddress, IPNetwork
from windlass.model.prefixes import BITS, Prefix
from windlass.openflow import fields
from windlass.openflow.fields import Field, FieldSet, Term

_IP = {Family.IPV4: fields.ETH_TYPE(0x0800), Family.IPV6: fields.ETH_TYPE(0x86DD)}


def _by_family(both: FieldSet) -> dict[Family, Field]:
    return dict(zip((Family.IPV4, Family.IPV6), both.fields, strict=True))


_SOURCES, _DESTINATIONS = _by_family(fields.IP_SOURCE), _by_family(fields.IP_DESTINATION)
_TUNNEL_SOURCES, _TUNNEL_DESTINATIONS = _by_family(fields.TUNNEL_SOURCE), _by_family(fields.TUNNEL_DESTINATION)
_ICMP_PROTOCOLS = {Family.IPV4: fields.ICMP, Family.IPV6: fields.ICMPV6}
_ICMP_KINDS = _by_family(fields.ICMP_KIND)
_TRANSPORTS = (fields.TCP, fields.UDP, fields.SCTP)
_SOURCE_PORTS = dict(zip(_TRANSPORTS, fields.SOURCE_PORT.fields, strict=True))
_DESTINATION_PORTS = dict(zip(_TRANSPORTS, fields.DESTINATION_PORT.fields, strict=True))

ARP: Term = fields.ETH_TYPE(0x0806)
TAGGED: Term = fields.VLAN_VID(0x1000, 0x1000)  # with at least one VLAN tag of any type and number
MULTICAST_MAC: Term = fields.ETH_DST(0x01 << 40, 0x01 << 40)  # broadcast included


def ip(family: Family) -> Term:
    return _IP[family]


def source(where: IPAddress | IPNetwork | Prefix) -> tuple[Term, Term]:
    """An IP packet from this address or network."""
    return _addressed(_SOURCES, where)


def source_bits(family: Family, value: int, mask: int) -> tuple[Term, Term]:
    """An IP packet whose source address has this value in the bits of the mask."""
    return _IP[family], _SOURCES[family](value, mask)


def destination(where: IPAddress | IPNetwork | Prefix) -> tuple[Term, Term]:
    """An IP packet to this address or network."""
    return _addressed(_DESTINATIONS, where)


@cache
def protocol(family: Family, number: int) -> tuple[Term, Term]:
    return ip(family), fields.IP_PROTO(number)


def icmp(family: Family, kind: int | None = None) -> tuple[Term, ...]:
    """ICMP or ICMPv6, of one type or of any."""
    packets = protocol(family, _ICMP_PROTOCOLS[family])
    return packets if kind is None else (*packets, _ICMP_KINDS[family](kind))


@lru_cache(4096)  # there are many Services, but few different ports
def destination_port(family: Family, number: int, port: int, mask: int | None = None) -> tuple[Term, ...]:
    """Packets of protocol `number` (TCP, UDP or SCTP) to this port, or to the ports that the mask covers."""
    return (*protocol(family, number), _DESTINATION_PORTS[number](port, mask))


def source_port(family: Family, number: int, port: int, mask: int | None = None) -> tuple[Term, ...]:
    """The same for the source port."""
    return (*protocol(family, number), _SOURCE_PORTS[number](port, mask))


def tunnel_source(address: IPAddress) -> Term:
    """A packet that came out of a tunnel from this address."""
    return _TUNNEL_SOURCES[Family(address.version)](int(address))


def tunnel_destination(address: IPAddress) -> Term:
    return _TUNNEL_DESTINATIONS[Family(address.version)](int(address))


def _addressed(by_family: dict[Family, Field], where: IPAddress | IPNetwork | Prefix) -> tuple[Term, Term]:
    if isinstance(where, tuple):
        version, first, length = where
        family = Family.IPV4 if version == 4 else Family.IPV6
        bits = BITS[version]
        mask = None if length == bits else (1 << bits) - (1 << bits - length)
        return _IP[family], Term(by_family[family], first, mask)
    # Called for every flow of a Service: testing the class is faster than reading `version`.
    family = Family.IPV4 if isinstance(where, (IPv4Address, IPv4Network)) else Family.IPV6
    field = by_family[family]
    if isinstance(where, (IPv4Address, IPv6Address)):
        return _IP[family], Term(field, int(where))
    return _IP[family], field(int(where.network_address), int(where.netmask))
