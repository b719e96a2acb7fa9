"""The two address families, so that IPv4 and IPv6 are one code path with a parameter."""

from __future__ import annotations

from enum import Enum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network
IPInterface = IPv4Interface | IPv6Interface


class Family(Enum):
    IPV4 = 4
    IPV6 = 6

    # Enum hashes the member's name, in Python, at each look-up. Identity is enough, because each member exists once.
    __hash__ = object.__hash__

    def __str__(self) -> str:
        return f"IPv{self.value}"


def unpacked(address: bytes) -> IPAddress:
    return IPv4Address(address) if len(address) == 4 else IPv6Address(address)


_BY_VERSION = {family.value: family for family in Family}


def family_of(value: IPAddress | IPNetwork | IPInterface) -> Family:
    return _BY_VERSION[value.version]
