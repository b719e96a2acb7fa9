"""Parses the IP addresses in Kubernetes objects, fast, and accepts only those that a Service can have. Pure."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import repeat
from operator import itemgetter
from socket import AF_INET, AF_INET6, inet_pton

from windlass.model.families import Family, IPAddress, IPNetwork

# The first bytes of all addresses that `_special_use` refuses: one lookup accepts most addresses.
_SUSPECT = frozenset({0, 127, 169, *range(224, 256)})
_first_byte = itemgetter(0)


def read_address(text: str) -> tuple[bytes, IPAddress] | None:
    """The address as bytes, which compare and hash fast, and as an object.

    None if the text is not an address, or not one that a Service can have: see `complaint`.
    """
    six = ":" in text
    try:
        packed = inet_pton(AF_INET6 if six else AF_INET, text)
    except (OSError, ValueError):
        return None
    address = IPv6Address(packed) if six else IPv4Address(packed)
    return None if packed[0] in _SUSPECT and _special_use(address) else (packed, address)


def read_addresses(texts: list[str], family: Family) -> tuple[list[bytes], list[int]]:
    """The bytes of all addresses of one family, and the indexes of the texts that `read_address` refuses.

    Parses the list without a Python step for each address: there may be a hundred thousand endpoints.
    """
    kind, system = (IPv6Address, AF_INET6) if family is Family.IPV6 else (IPv4Address, AF_INET)
    with suppress(OSError, ValueError):
        packed = list(map(inet_pton, repeat(system), texts))
        if _SUSPECT.isdisjoint(map(_first_byte, packed)):
            return packed, []
    each = [read if read and isinstance(read[1], kind) else None for read in map(read_address, texts)]
    return [read[0] for read in each if read], [index for index, read in enumerate(each) if not read]


def complaint(text: str, family: str | None = None) -> str:
    """Why `read_address` refuses this text, or why it is not an address of this family."""
    try:
        what = _special_use(ip_address(text))
    except ValueError:
        return f"{text!r} is not an IP address"
    return f"{text} is {what}" if what else f"{text} is not an {family or 'IP'} address"


def read_network(text: str) -> IPNetwork | None:
    """A CIDR; surrounding spaces and host bits are ignored, as in kube-proxy."""
    address, _, length = text.strip().partition("/")
    try:
        return ip_network((address, int(length)), strict=False) if length.isdecimal() else None
    except ValueError:
        return None


def _special_use(address: IPAddress) -> str:
    """The name of the special use, if no Service can have the address. The API server refuses most of them itself."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return "an IPv4-mapped address"
    if address.is_unspecified or (isinstance(address, IPv4Address) and address.packed[0] == 0):
        return "an unspecified address"
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if isinstance(address, IPv4Address) and address.is_reserved:
        return "a reserved address"
    return ""
