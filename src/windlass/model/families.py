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

    def __str__(self) -> str:
        return f"IPv{self.value}"


def family_of(value: IPAddress | IPNetwork | IPInterface) -> Family:
    return Family(value.version)
