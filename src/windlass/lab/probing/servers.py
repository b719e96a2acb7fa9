"""The servers of all Pods and hosts, in this one process. Each answer names the backend that gave it.

A TCP server sends the line `<backend> <client address that it saw>` and then echoes what it receives. A UDP server
answers `?<token>` with `!<backend> <client>` and echoes everything else. SCTP is like TCP if the kernel has it.
Otherwise it uses raw sockets, with the same text in the state cookie.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from windlass.lab.probing import packets, sockets
from windlass.lab.probing.arrivals import Arrival, Arrivals
from windlass.lab.probing.packets import Chunk, SctpPacket
from windlass.lab.probing.sockets import Packet
from windlass.lab.sandbox.labs import LabError
from windlass.lab.scenarios.objects import ProbeProtocol
from windlass.model.families import Family

NAME_REQUEST = b"?"  # the first byte of a UDP request for the server's name
NAME_REPLY = b"!"  # the first byte of the reply
BACKLOG = 512


class Servers:
    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._open: dict[str, ExitStack] = defaultdict(ExitStack)  # by backend
        self._sctp: dict[str, _Sctp] = {}  # by namespace: raw sockets have no ports of their own

    async def listen(self, namespace: str, backend: str, ports: Iterable[tuple[ProbeProtocol, int]]) -> None:
        """Serves as `backend` on these ports of all addresses of the namespace."""
        for protocol, port in ports:
            try:
                match protocol:
                    case ProbeProtocol.TCP:
                        await self._listen_stream(_bound(namespace, socket.SOCK_STREAM, port), backend)
                    case ProbeProtocol.UDP:
                        self._listen_udp(namespace, backend, port)
                    case _:
                        await self._listen_sctp(namespace, backend, port)
            except OSError as error:
                where = f"{backend} cannot answer on {protocol.value} port {port}"
                raise LabError(f"{where}: {os.strerror(error.errno or 0)}") from error

    def watch(self, namespace: str, backend: str) -> None:
        """Attributes the echo requests that arrive there to `backend`; the kernel answers them."""
        self._open[backend].callback(self._arrivals.watch_echoes(namespace, backend))

    def close(self, backend: str) -> None:
        """Closes its ports and resets its connections, as when a process ends."""
        self._open.pop(backend, ExitStack()).close()

    def close_all(self) -> None:
        for backend in list(self._open):
            self.close(backend)

    async def _listen_stream(self, sock: socket.socket, backend: str) -> None:
        sock.listen(BACKLOG)
        connections: set[_Echo] = set()
        server = await asyncio.get_running_loop().create_server(lambda: _Echo(backend, connections), sock=sock)

        def cut() -> None:
            server.close()
            for connection in list(connections):
                connection.cut()

        self._open[backend].callback(cut)

    def _listen_udp(self, namespace: str, backend: str, port: int) -> None:
        sock = _bound(namespace, socket.SOCK_DGRAM, port)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        asyncio.get_running_loop().add_reader(sock, self._answer_udp, sock, backend)
        self._open[backend].callback(sockets.closed, sock)

    def _answer_udp(self, sock: socket.socket, backend: str) -> None:
        with suppress(BlockingIOError):
            while True:
                data, ancillary, _, peer = sock.recvmsg(sockets.LARGEST_PACKET, 128)
                client = str(sockets.plain(peer[0]))
                answer = data
                if data.startswith(NAME_REQUEST):
                    self._arrivals.note(int.from_bytes(data[1:5]), backend, client)
                    answer = NAME_REPLY + identity(backend, client)
                with suppress(OSError):  # datagrams may be lost
                    sock.sendmsg([answer], sockets.sent_from(sockets.asked_address(ancillary)), 0, peer)

    async def _listen_sctp(self, namespace: str, backend: str, port: int) -> None:
        if sockets.kernel_has_sctp():
            await self._listen_stream(_bound(namespace, socket.SOCK_STREAM, port, packets.SCTP), backend)
        server = self._sctp.setdefault(namespace, _Sctp(namespace, self._arrivals))
        server.listen(port, backend)
        self._open[backend].callback(server.leave, port)


def identity(backend: str, client: str) -> bytes:
    return f"{backend} {client}".encode()


def parse_identity(text: bytes) -> Arrival:
    backend, _, client = text.decode(errors="replace").partition(" ")
    return Arrival(backend, client)


class _Echo(asyncio.Protocol):
    """One connection of TCP, or of SCTP in the kernel."""

    def __init__(self, backend: str, connections: set[_Echo]) -> None:
        self._backend = backend
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 (for mypy: a stream server makes no other)
        self._transport = transport
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        if peer is None:  # reset before it was accepted
            transport.abort()
        else:
            transport.write(identity(self._backend, str(sockets.plain(peer[0]))) + b"\n")

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the protocol's signature)
        self._connections.discard(self)

    def cut(self) -> None:
        self._transport.abort()


class _Sctp:
    """The SCTP server of one namespace: INIT, heartbeats, and ABORT for a closed port.

    If the kernel has SCTP, the kernel answers, and this class only notes what arrives.
    """

    def __init__(self, namespace: str, arrivals: Arrivals) -> None:
        self._namespace = namespace
        self._arrivals = arrivals
        self._answers = not sockets.kernel_has_sctp()
        self._backends: dict[int, str] = {}
        self._sockets: dict[Family, socket.socket] = {}

    def listen(self, port: int, backend: str) -> None:
        if port in self._backends:
            raise OSError(errno.EADDRINUSE, "")
        self._backends[port] = backend
        for family in Family:
            if family not in self._sockets:
                self._sockets[family] = sockets.raw(self._namespace, family, packets.SCTP, self._on_packet)

    def leave(self, port: int) -> None:
        del self._backends[port]
        if not self._backends:
            while self._sockets:
                sockets.closed(self._sockets.popitem()[1])

    def _on_packet(self, packet: Packet) -> None:
        asked = packets.decode_sctp(packet.payload)
        answer = self._answer(asked, str(packet.source)) if asked else None
        if answer and self._answers:
            sock = self._sockets[Family(packet.source.version)]
            with suppress(OSError):  # packets may be lost
                sock.sendmsg([answer.encode()], sockets.sent_from(packet.destination), 0, (str(packet.source), 0))

    def _answer(self, asked: SctpPacket, client: str) -> SctpPacket | None:
        ports = asked.destination_port, asked.source_port
        backend = self._backends.get(asked.destination_port)
        if asked.chunk is Chunk.HEARTBEAT and backend:
            return SctpPacket(*ports, asked.tag, Chunk.HEARTBEAT_ACK, asked.value)
        if asked.chunk is not Chunk.INIT:
            return None
        tag = packets.init_tag(asked.value)
        if backend is None:
            return SctpPacket(*ports, tag, Chunk.ABORT)
        self._arrivals.note(tag, backend, client)
        # The server uses the client's tag, so that it need not store any.
        return SctpPacket(*ports, tag, Chunk.INIT_ACK, packets.init_value(tag, identity(backend, client)))


def _bound(namespace: str, kind: socket.SocketKind, port: int, protocol: int = 0) -> socket.socket:
    """One socket for both families; an IPv4 client has a mapped address."""
    sock = sockets.opened(namespace, Family.IPV6, kind, protocol)
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind is socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections may be in TIME_WAIT
        if protocol == packets.SCTP:
            sock.setsockopt(packets.SCTP, sockets.SCTP_NODELAY, 1)
        sock.bind(("::", port))
    except OSError:
        sock.close()
        raise
    return sock
