"""Networks as plain tuples: a Node knows ten thousand addresses of peers, and objects of `ipaddress` are too slow."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from windlass.model.families import IPAddress, IPNetwork

Prefix = tuple[int, int, int]  # IP version, first address, length: sorted, a network is followed by those inside it
BITS = {4: 32, 6: 128}
_BYTES = tuple(map(str, range(256)))  # as text


def prefix_of(value: IPAddress | IPNetwork) -> Prefix:
    """For an address: the network with this address alone."""
    if isinstance(value, IPv4Address):
        return 4, int(value), 32
    if isinstance(value, IPv6Address):
        return 6, int(value), 128
    return value.version, int(value.network_address), value.prefixlen


def network_of(prefix: Prefix) -> IPNetwork:
    version, value, length = prefix
    return IPv4Network((value, length)) if version == 4 else IPv6Network((value, length))


def address_of(prefix: Prefix) -> IPAddress | None:
    """The one address in it; None if there are more."""
    version, value, length = prefix
    if length != BITS[version]:
        return None
    return IPv4Address(value) if version == 4 else IPv6Address(value)


def prefix_text(prefix: Prefix) -> str:
    """As `str` of the network."""
    version, value, length = prefix
    if version == 4:
        a, b, c, d = value.to_bytes(4)
        return f"{_BYTES[a]}.{_BYTES[b]}.{_BYTES[c]}.{_BYTES[d]}/{length}"  # to format numbers takes twice as long
    return f"{IPv6Address(value)}/{length}"  # half the time of `str` of the network
