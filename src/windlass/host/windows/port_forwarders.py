"""NodePorts at the addresses of a Windows host, for clients whose packets do not come through the switch.

Those are the host itself, at any of its addresses and at 127.0.0.1, and clients of its other NICs. Windows does not
translate their packets, so this process accepts their connections and opens its own. `forwarded_clients` decides where
each goes. The endpoint sees the gateway or the Node IP as its client. The switch serves all other
clients at the Node IP.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from windlass.host.forwarded_clients import Admission, ForwardedClient, Refusal
from windlass.host.windows.client_limits import MOST_CLIENTS, LimitWarning
from windlass.host.windows.udp_forwarders import Admit, UdpForwarder, client_of
from windlass.model.families import IPAddress
from windlass.model.services import Protocol

PROTOCOLS = (Protocol.TCP, Protocol.UDP)  # Windows has no SCTP
_CHUNK = 65536
_TOO_MANY = "a NodePort has too many TCP connections at once, and new ones are refused"

UdpSocket = Callable[[IPAddress, int], socket.socket]


@dataclass(frozen=True, slots=True)
class Listener:
    protocol: Protocol
    address: IPAddress
    port: int

    def __str__(self) -> str:
        return f"{self.address}, port {self.port}/{self.protocol.name}"


def udp_socket(address: IPAddress, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        bound.bind((str(address), port))
    except OSError:
        bound.close()
        raise
    return bound


class PortForwarders:
    def __init__(
        self, admit: Callable[[Listener, ForwardedClient], Admission | None], open_udp_socket: UdpSocket = udp_socket
    ) -> None:
        """`admit` returns the destination of a client of a listener, or None to refuse the client."""
        self._admit = admit
        self._open_udp_socket = open_udp_socket
        self._open: dict[Listener, Callable[[], None]] = {}  # how to close each
        self._changing = asyncio.Lock()

    async def listen(self, wanted: Collection[Listener]) -> tuple[str, ...]:
        """Listen at these and no others. Returns a sentence for each that fails; the next call tries it again."""
        async with self._changing:
            for gone in self._open.keys() - set(wanted):
                self._open.pop(gone)()
            problems = []
            for listener in sorted(set(wanted) - self._open.keys(), key=str):
                try:
                    self._open[listener] = await self._opened(listener)
                except OSError as error:
                    problems.append(f"NodePort at {listener} cannot be opened: {error.strerror or error}")
            return tuple(problems)

    async def close(self) -> None:
        await self.listen(())

    async def _opened(self, listener: Listener) -> Callable[[], None]:
        admit = partial(self._admit, listener)
        if listener.protocol is Protocol.TCP:
            return await _open_tcp(listener, admit)
        bound = self._open_udp_socket(listener.address, listener.port)
        bound.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: UdpForwarder(str(listener), admit), sock=bound)
        return transport.close


async def _open_tcp(listener: Listener, admit: Admit) -> Callable[[], None]:
    connections: set[asyncio.Task[None]] = set()
    too_many = LimitWarning(str(listener), _TOO_MANY)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
            task.add_done_callback(connections.discard)
        peer = writer.get_extra_info("peername")  # None if the client has closed the connection
        admission = admit(client_of(peer)) if peer else None
        if admission is not None and len(connections) > MOST_CLIENTS:
            admission.fail(Refusal.FULL)
            too_many.note(MOST_CLIENTS)
            admission = None
        if admission is None:
            writer.transport.abort()  # a reset, as from a port without an endpoint
        else:
            await _forward(reader, writer, admission)

    server = await asyncio.start_server(accept, str(listener.address), listener.port)

    def close() -> None:
        server.close()
        for task in connections:
            task.cancel()

    return close


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, admission: Admission) -> None:
    address, port = admission.destination
    try:
        onward_reader, onward_writer = await asyncio.open_connection(str(address), port)
    except OSError:
        admission.fail(Refusal.UNREACHABLE)
        writer.transport.abort()
        return
    try:
        await asyncio.gather(_pump(reader, onward_writer, admission), _pump(onward_reader, writer, admission))
    except OSError:
        writer.transport.abort()
        onward_writer.transport.abort()
    finally:
        writer.close()
        onward_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, admission: Admission) -> None:
    while data := await reader.read(_CHUNK):
        if not admission.holds():
            admission.fail(Refusal.POLICY)
            raise ConnectionAbortedError("a policy denies the connection now")
        writer.write(data)
        await writer.drain()
    with suppress(OSError):  # the other side is gone
        writer.write_eof()
