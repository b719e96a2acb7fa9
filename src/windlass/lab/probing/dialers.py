"""Opens connections from any machine of the lab to any address: TCP, UDP, SCTP, ICMP echo, and spoofed first packets.

A connection is open when the other side has answered with its name.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from windlass.lab.probing import packets, sockets
from windlass.lab.probing.arrivals import Arrival, Arrivals
from windlass.lab.probing.packets import Chunk, SctpPacket
from windlass.lab.probing.servers import NAME_REPLY, NAME_REQUEST, parse_identity
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.objects import ProbeOutcome, ProbeProtocol
from windlass.model.families import Family, IPAddress, family_of

TIME_LIMIT = seconds(3.0)  # until an answer: a first SYN may be lost, and is sent again after one second
RETRY = seconds(0.4)  # until a datagram is sent again: the first one of a tunnel may be lost while ARP resolves
LARGEST_DATAGRAM = 1200  # bytes of payload: fits any tunnel
DATA = b"="  # the first byte of a UDP datagram that the server sends back


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """The destination of a connection; port 0 for ICMP."""

    ip: IPAddress
    port: int

    @property
    def family(self) -> Family:
        return family_of(self.ip)


class Conversation:
    """An open connection to a server that sends back all bytes that it receives."""

    def __init__(self, sock: socket.socket, seen: Arrival) -> None:
        self.seen = seen
        self.local = str(sockets.local_address(sock))
        self._socket = sock

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self) -> bytes:
        return await _stream(self._socket)

    async def echo(self, payload: bytes) -> bytes:
        """What comes back for the payload. Each 64 KiB must arrive within the time limit."""
        sending = asyncio.ensure_future(self.send(payload))
        back = bytearray()
        try:
            while len(back) < len(payload):
                async with asyncio.timeout(TIME_LIMIT):
                    back += await self.receive()
            await sending
        finally:
            sending.cancel()
        return bytes(back)

    def close(self) -> None:
        self._socket.close()


class DatagramConversation(Conversation):
    """The same over packets that may be lost; `wrap` and `unwrap` put bytes into a packet and take them out."""

    def __init__(
        self,
        sock: socket.socket,
        seen: Arrival,
        wrap: Callable[[bytes], bytes],
        unwrap: Callable[[bytes], bytes | None],
        start: bytes | None = None,
    ) -> None:
        super().__init__(sock, seen)
        _report_every_error(sock, family_of(sockets.local_address(sock)), on=False)
        self._wrap = wrap
        self._unwrap = unwrap
        self._start = start

    async def send(self, data: bytes) -> None:
        await _sent(self._socket, self._wrap(data), self._start)

    async def receive(self) -> bytes:
        return await _received(self._socket, self._unwrap, self._start)

    async def echo(self, payload: bytes) -> bytes:
        """Sends the payload in numbered chunks, and repeats a chunk that does not come back in time."""
        back = bytearray()
        for number, start in enumerate(range(0, len(payload), LARGEST_DATAGRAM)):
            label = number.to_bytes(4)
            chunk = label + payload[start : start + LARGEST_DATAGRAM]

            def numbered(packet: bytes, label: bytes = label) -> bytes | None:
                data = self._unwrap(packet)
                return data[4:] if data and data.startswith(label) else None

            back += await _answered(self._socket, self._wrap(chunk), numbered, self._start)
        return bytes(back)


async def dial(namespace: str, protocol: ProbeProtocol, to: SocketAddress, arrivals: Arrivals) -> Conversation:
    """Raises TimeoutError if there is no answer, and OSError for a refusal; `outcome_of` maps both to an outcome."""
    match protocol:
        case ProbeProtocol.TCP:
            return await _dial_tcp(namespace, to)
        case ProbeProtocol.UDP:
            return await _dial_udp(namespace, to)
        case ProbeProtocol.SCTP if sockets.kernel_has_sctp():
            return await _dial_kernel_sctp(namespace, to)
        case ProbeProtocol.SCTP:
            return await _dial_sctp(namespace, to, arrivals.token())
        case ProbeProtocol.ICMP:
            return await _dial_icmp(namespace, to, arrivals)


async def forge(
    namespace: str, protocol: ProbeProtocol, to: SocketAddress, source: IPAddress, arrivals: Arrivals
) -> Arrival:
    """Sends first packets with a spoofed source address until one arrives."""
    with arrivals.expected() as (token, arrived):
        payload, number = _forged(protocol, to, source, token)
        packet = packets.with_ip_header(source, to.ip, number, payload)
        with _opened(namespace, to, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
            async with asyncio.timeout(TIME_LIMIT):
                while not arrived.done():
                    sock.sendto(packet, (str(to.ip), 0))
                    await asyncio.wait([arrived], timeout=RETRY)
        return arrived.result()


class NoRouteError(Exception):
    """The client has no route to the destination, so no packet was sent."""


def outcome_of(error: BaseException) -> ProbeOutcome | None:
    """None for an error that says nothing about the network."""
    if isinstance(error, TimeoutError):
        return ProbeOutcome.TIMEOUT
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        return ProbeOutcome.REFUSED
    return None


_REFUSALS = frozenset(
    {
        errno.ECONNREFUSED,  # RST, ABORT, port unreachable
        errno.ECONNRESET,
        errno.EPIPE,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENOPROTOOPT,  # protocol unreachable
        errno.EACCES,  # prohibited, in IPv6
        errno.EPROTO,
    }
)

# Opening ----------------------------------------------------------------------------------------------------------


async def _dial_tcp(namespace: str, to: SocketAddress) -> Conversation:
    sock = _opened(namespace, to, socket.SOCK_STREAM)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each beat of a held connection is its own packet
    with _closed_on_error(sock):
        return Conversation(sock, await _greeted(sock, to))


async def _greeted(sock: socket.socket, to: SocketAddress) -> Arrival:
    """Connects a stream; returns what the server said first."""
    async with asyncio.timeout(TIME_LIMIT):
        await asyncio.get_running_loop().sock_connect(sock, (str(to.ip), to.port))
        line = b""
        while not line.endswith(b"\n"):  # the server sends no more before it receives data
            line += await _stream(sock)
    return parse_identity(line.rstrip(b"\n"))


async def _dial_udp(namespace: str, to: SocketAddress) -> Conversation:
    def name(packet: bytes) -> bytes | None:
        return packet[1:] if packet.startswith(NAME_REPLY) else None

    def data(packet: bytes) -> bytes | None:
        return packet[1:] if packet.startswith(DATA) else None

    sock = _connected(namespace, to, socket.SOCK_DGRAM)
    with _closed_on_error(sock):
        answer = await _answered(sock, NAME_REQUEST + bytes(4), name)
        return DatagramConversation(sock, parse_identity(answer), lambda payload: DATA + payload, data)


async def _dial_kernel_sctp(namespace: str, to: SocketAddress) -> Conversation:
    sock = _opened(namespace, to, socket.SOCK_STREAM, packets.SCTP)
    with _closed_on_error(sock):
        again = struct.pack("=iIII", 0, int(RETRY * 1000), 0, 0)  # for INIT; 0: what is not changed
        sock.setsockopt(packets.SCTP, sockets.SCTP_RTOINFO, again)
        sock.setsockopt(packets.SCTP, sockets.SCTP_NODELAY, 1)
        # One address: the kernel would offer all that this machine has, which no translation changes.
        sock.bind((str(_source_of(namespace, to)), 0))
        _report_every_error(sock, to.family, on=True)
        seen = await _greeted(sock, to)
        _report_every_error(sock, to.family, on=False)
        return Conversation(sock, seen)


async def _dial_sctp(namespace: str, to: SocketAddress, tag: int) -> Conversation:
    ports = _source_port(tag), to.port

    def reply(packet: bytes) -> SctpPacket | None:
        found = packets.decode_sctp(sockets.payload_of(packet, to.family))
        ours = found and (found.destination_port, found.source_port, found.tag) == (*ports, tag)
        return found if ours else None

    def cookie(packet: bytes) -> bytes | None:
        found = reply(packet)
        if found and found.chunk is Chunk.ABORT:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "ABORT")
        return packets.init_cookie(found.value) if found and found.chunk is Chunk.INIT_ACK else None

    def beat(packet: bytes) -> bytes | None:
        found = reply(packet)
        return packets.heartbeat_payload(found.value) if found and found.chunk is Chunk.HEARTBEAT_ACK else None

    def wrap(payload: bytes) -> bytes:
        return SctpPacket(*ports, tag, Chunk.HEARTBEAT, packets.heartbeat_value(payload)).encode()

    sock = _connected(namespace, to, socket.SOCK_RAW, packets.SCTP)
    init = SctpPacket(*ports, 0, Chunk.INIT, packets.init_value(tag)).encode()
    start = init[:4]  # the ports
    with _closed_on_error(sock):
        answer = await _answered(sock, init, cookie, start)
        return DatagramConversation(sock, parse_identity(answer), wrap, beat, start)


async def _dial_icmp(namespace: str, to: SocketAddress, arrivals: Arrivals) -> Conversation:
    identifier = arrivals.token() & 0xFFFF
    number = packets.ICMP if to.family is Family.IPV4 else packets.ICMPV6
    sock = _connected(namespace, to, socket.SOCK_RAW, number)

    def wrap(payload: bytes) -> bytes:
        return packets.icmp_echo(identifier, payload, (sockets.local_address(sock), to.ip))

    def unwrap(packet: bytes) -> bytes | None:
        message = sockets.payload_of(packet, to.family)
        found = packets.echo_payload(message)
        ours = found and (message[0], found[0]) == (packets.ECHO_REPLY[to.family], identifier)
        return found[1] if found and ours else None

    with _closed_on_error(sock), arrivals.expected() as (token, arrived):
        await _answered(sock, wrap(token.to_bytes(4)), unwrap)
        # The request has arrived before its reply came, but this process may not have read it yet.
        await asyncio.wait([arrived], timeout=RETRY)
        seen = arrived.result() if arrived.done() else parse_identity(b"")
        return DatagramConversation(sock, seen, wrap, unwrap)


def _forged(protocol: ProbeProtocol, to: SocketAddress, source: IPAddress, token: int) -> tuple[bytes, int]:
    ports = _source_port(token), to.port
    match protocol:
        case ProbeProtocol.TCP:
            return packets.tcp_syn(source, to.ip, ports, token), packets.TCP
        case ProbeProtocol.UDP:
            return packets.udp_datagram(source, to.ip, ports, NAME_REQUEST + token.to_bytes(4)), packets.UDP
        case ProbeProtocol.SCTP:
            return SctpPacket(*ports, 0, Chunk.INIT, packets.init_value(token)).encode(), packets.SCTP
        case ProbeProtocol.ICMP:
            number = packets.ICMP if to.family is Family.IPV4 else packets.ICMPV6
            return packets.icmp_echo(ports[0], token.to_bytes(4), (source, to.ip)), number


# Details ----------------------------------------------------------------------------------------------------------


@contextmanager
def _closed_on_error(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


def _source_port(token: int) -> int:
    """For packets that the lab builds itself: below the kernel's range of ephemeral ports."""
    return 20000 + token % 10000


def _opened(namespace: str, to: SocketAddress, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
    """Checks first that the client has a route: the lack of one is not a property of the network."""
    _source_of(namespace, to)
    return sockets.opened(namespace, to.family, kind, protocol)


def _source_of(namespace: str, to: SocketAddress) -> IPAddress:
    """The address that the client's route to the destination sends from."""
    with sockets.opened(namespace, to.family, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect((str(to.ip), 9))
        except OSError as error:
            if error.errno in {errno.ENETUNREACH, errno.EADDRNOTAVAIL}:  # no route, or no address to send from
                raise NoRouteError(f"the client has no route to {to.ip}") from error
            raise
        return sockets.local_address(trial)


def _connected(namespace: str, to: SocketAddress, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
    """Connects also datagram and raw sockets, so that the kernel reports ICMP errors to them."""
    sock = _opened(namespace, to, kind, protocol)
    sock.connect((str(to.ip), to.port))
    _report_every_error(sock, to.family, on=True)
    return sock


def _report_every_error(sock: socket.socket, family: Family, *, on: bool) -> None:
    """Whether to report unreachable hosts and networks, too: they are a refusal only while a connection opens."""
    level, option = (socket.IPPROTO_IP, 11) if family is Family.IPV4 else (socket.IPPROTO_IPV6, 25)
    sock.setsockopt(level, option, int(on))


async def _stream(sock: socket.socket) -> bytes:
    data = await asyncio.get_running_loop().sock_recv(sock, sockets.LARGEST_PACKET)
    if not data:
        raise ConnectionResetError(errno.ECONNRESET, "the other side closed the connection")
    return data


async def _answered(
    sock: socket.socket, packet: bytes, answer: Callable[[bytes], bytes | None], start: bytes | None = None
) -> bytes:
    """Sends the packet repeatedly until an answer to it comes."""
    async with asyncio.timeout(TIME_LIMIT):
        while True:
            await _sent(sock, packet, start)
            try:
                async with asyncio.timeout(RETRY):
                    return await _received(sock, answer, start)
            except TimeoutError:
                continue


async def _sent(sock: socket.socket, packet: bytes, start: bytes | None) -> None:
    try:
        await asyncio.get_running_loop().sock_sendall(sock, packet)
    except OSError:
        if _is_ours(sock, start):
            raise


async def _received(sock: socket.socket, wanted: Callable[[bytes], bytes | None], start: bytes | None) -> bytes:
    while True:
        try:
            packet = await asyncio.get_running_loop().sock_recv(sock, sockets.LARGEST_PACKET)
        except OSError:
            if _is_ours(sock, start):
                raise
            continue
        found = wanted(packet)
        if found is not None:
            return found


def _is_ours(sock: socket.socket, start: bytes | None) -> bool:
    """A raw socket receives errors about all packets of its machine; errors about ours quote our first bytes."""
    return start is None or any(quoted.startswith(start) for quoted in sockets.quoted(sock))
