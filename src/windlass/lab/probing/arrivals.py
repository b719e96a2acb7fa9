"""Detects packets that arrive at a machine but that no server of the lab answers.

The kernel answers echo requests, and a spoofed packet gets no answer. Both carry a token that is detected here.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count

from windlass.lab.probing import packets, sockets
from windlass.lab.probing.sockets import Packet
from windlass.model.families import Family


@dataclass(frozen=True, slots=True)
class Arrival:
    backend: str
    client: str  # the address that the packet came from, as the backend saw it


class Arrivals:
    def __init__(self) -> None:
        self._expected: dict[int, asyncio.Future[Arrival]] = {}
        self._tokens = count(0x4C414221)  # an arbitrary start: a token matters only while it is expected

    @contextmanager
    def expected(self) -> Iterator[tuple[int, asyncio.Future[Arrival]]]:
        """A token of 32 bits to put into a packet, and a future that is set when a machine receives it."""
        token = self.token()
        future: asyncio.Future[Arrival] = asyncio.get_running_loop().create_future()
        self._expected[token] = future
        try:
            yield token, future
        finally:
            del self._expected[token]
            future.cancel()

    def token(self) -> int:
        """32 bits that no other packet of the lab carries; never 0."""
        return next(self._tokens) & 0xFFFFFFFF or self.token()

    def note(self, token: int, backend: str, client: str) -> None:
        future = self._expected.get(token)
        if future and not future.done():
            future.set_result(Arrival(backend, client))

    def watch_echoes(self, namespace: str, backend: str) -> Callable[[], None]:
        """Detects the echo requests that arrive there, until the returned function is called."""

        def on_packet(packet: Packet) -> None:
            found = packets.echo_payload(packet.payload)
            if found:
                self.note(int.from_bytes(found[1][:4]), backend, str(packet.source))

        closing = ExitStack()
        for family, number in ((Family.IPV4, packets.ICMP), (Family.IPV6, packets.ICMPV6)):
            sock = sockets.raw(namespace, family, number, on_packet)
            sock.setsockopt(*_only_echo_requests(family))
            closing.callback(sockets.closed, sock)
        return closing.close

    @contextmanager
    def watching_syns(self, places: Iterable[tuple[str, str]]) -> Iterator[None]:
        """Within the block, detects first packets of TCP connections in each (namespace, backend)."""
        with ExitStack() as closing:
            for namespace, backend in places:

                def on_packet(packet: Packet, backend: str = backend) -> None:
                    self.note(packets.tcp_sequence(packet.payload), backend, str(packet.source))

                for family in Family:
                    sock = sockets.raw(namespace, family, packets.TCP, on_packet)
                    sockets.attach_filter(sock, _SYN_WITHOUT_ACK[family])
                    closing.callback(sockets.closed, sock)
            yield


_ACCEPT_IF_SYN = [(0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0xFFFF), (0x06, 0, 0, 0)]
_SYN_WITHOUT_ACK = {
    Family.IPV4: [(0xB1, 0, 0, 0), (0x50, 0, 0, 13), *_ACCEPT_IF_SYN],  # the flags are byte 13 after the IP header
    Family.IPV6: [(0x30, 0, 0, 13), *_ACCEPT_IF_SYN],  # for IPv6, a filter does not see the IP header
}


def _only_echo_requests(family: Family) -> tuple[int, int, bytes]:
    """ICMP_FILTER and ICMPV6_FILTER: a set bit blocks the type, for example frequent neighbour discovery."""
    wanted = packets.ECHO_REQUEST[family]
    if family is Family.IPV4:
        return 255, 1, struct.pack("=I", 0xFFFFFFFF & ~(1 << wanted))
    blocked = (1 << 256) - 1 & ~(1 << wanted)
    return packets.ICMPV6, 1, struct.pack("=8I", *(blocked >> 32 * word & 0xFFFFFFFF for word in range(8)))
