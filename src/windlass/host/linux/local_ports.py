"""Local ports of the host's own connections: those that the kernel must not choose, and those in use."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import NamedTuple

from windlass.host import port_ranges
from windlass.host.linux import settings
from windlass.host.linux.former_settings import FormerSettings
from windlass.host.linux.netlink import Netlink
from windlass.host.port_ranges import ENOUGH_LOCAL_PORTS, left_for_host, port_set
from windlass.host.protocol import HostError, attempting
from windlass.model.families import IPAddress
from windlass.model.nodes import HostConnection
from windlass.model.services import Protocol

_LOCAL = "ipv4/ip_local_port_range"  # both sysctls are for IPv6, too
# The files of the namespace that the calling thread is in: one line for each socket.
_SOCKETS = Path("/proc/thread-self/net")
_FILES = (
    ("tcp", Protocol.TCP),
    ("tcp6", Protocol.TCP),
    ("udp", Protocol.UDP),
    ("udp6", Protocol.UDP),
)
_TIME_WAIT, _LISTENING = 6, 10  # states


def local() -> tuple[int, int]:
    first, last = settings.read_file(_LOCAL).split()
    return int(first), int(last)


def reserved() -> tuple[tuple[int, int], ...]:
    return port_ranges.parse(settings.read_file(settings.RESERVED_PORTS))


def reserve(
    _: Netlink, formers: FormerSettings, ports: Collection[tuple[int, int]], addresses: Collection[IPAddress]
) -> tuple[HostConnection, ...]:
    """Reserve these ports. Ports that others have reserved stay reserved."""
    with attempting("reserve ports for SNAT (net.ipv4.ip_local_reserved_ports)"):
        (first, last), wanted = local(), port_set(reserved()) | port_set(ports)
        left = left_for_host((first, last), wanted)
        if left < ENOUGH_LOCAL_PORTS:
            raise HostError(
                f"the host takes local ports from {first}-{last} (net.ipv4.ip_local_port_range), of which {left} would "
                f"be left if {port_ranges.text(port_set(ports))} were reserved for SNAT; it needs {ENOUGH_LOCAL_PORTS}"
            )
        settings.change_file(formers, settings.RESERVED_PORTS, port_ranges.text(wanted))
        _choose_from_one_range(formers, port_set(((first, last),)) & ~wanted)
        taken = port_set(ports)
        return tuple(found for found in connections(addresses) if taken >> found.port & 1)


def _choose_from_one_range(formers: FormerSettings, left: int) -> None:
    """Have the kernel choose local ports from the longest unreserved range.

    From a range with reserved ports in it, the kernel does not choose evenly: it starts at a random port and takes the
    next one that is not reserved. So most connections would get the first port after the reserved ones. If one
    connection goes to a Service and another one directly to its endpoint from the same port, the switch cannot tell
    them apart after translation.
    """
    first, last = max(port_ranges.ranges(left), key=lambda ports: ports[1] - ports[0])
    if last - first + 1 >= ENOUGH_LOCAL_PORTS:
        settings.change_file(formers, _LOCAL, f"{first}\t{last}")


def connections(addresses: Collection[IPAddress]) -> Iterator[HostConnection]:
    """The host's sockets at one of these addresses that may send to others; connections to its servers are left out."""
    sockets = list(_sockets())
    served = {(found.protocol, found.port) for found in sockets if found.state == _LISTENING}
    for found in sockets:
        if found.state in {_TIME_WAIT, _LISTENING} or (found.protocol, found.port) in served:
            continue
        if found.remote_port and found.address in addresses:
            yield HostConnection(found.protocol, found.port, found.remote, found.remote_port)
        elif found.protocol is Protocol.UDP and (found.address.is_unspecified or found.address in addresses):
            yield HostConnection(found.protocol, found.port)


class _Socket(NamedTuple):
    protocol: Protocol
    state: int
    address: IPAddress
    port: int
    remote: IPAddress
    remote_port: int


def _sockets() -> Iterator[_Socket]:
    for name, protocol in _FILES:
        try:
            lines = (_SOCKETS / name).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue  # a kernel without IPv6
        for line in lines:
            _, here, there, state, *_ = line.split()
            yield _Socket(protocol, int(state, 16), *_endpoint(here), *_endpoint(there))


def _endpoint(text: str) -> tuple[IPAddress, int]:
    """The kernel writes an address as words in the order of this machine, the port as a number."""
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if len(words) == 1:
        return IPv4Address(packed), int(port, 16)
    address = IPv6Address(packed)
    return address.ipv4_mapped or address, int(port, 16)
