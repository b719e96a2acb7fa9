"""NodePorts at the addresses of a Windows host, for clients whose packets do not come through the switch.

Those are the host itself, at any of its addresses and at 127.0.0.1, and clients of its other NICs. Windows does not
translate their packets, so this process accepts their connections and opens its own to the switch, which chooses the
endpoint. The endpoint sees the gateway as its client. At the Node IP the switch serves all others, without this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from windlass.model.families import IPAddress
from windlass.model.services import Protocol

_CHUNK = 65536
_SECONDS_IDLE = 60.0  # after which a UDP client is forgotten, as the datapath does
_MOST_CLIENTS = 4096  # of UDP, for each address and port


@dataclass(frozen=True, slots=True)
class Listener:
    protocol: Protocol
    address: IPAddress
    port: int

    def __str__(self) -> str:
        return f"{self.address}, port {self.port}/{self.protocol.name}"


class PortForwarders:
    def __init__(self, target: Callable[[Listener], tuple[str, int]]) -> None:
        """`target`: where the connections to a listener go."""
        self._target = target
        self._open: dict[Listener, Callable[[], None]] = {}  # how to close each
        self._changing = asyncio.Lock()

    async def listen(self, wanted: Collection[Listener]) -> tuple[str, ...]:
        """At these and no others. Returns a sentence for each that cannot be opened; the next call tries it again."""
        async with self._changing:
            for gone in self._open.keys() - set(wanted):
                self._open.pop(gone)()
            problems = []
            for listener in sorted(set(wanted) - self._open.keys(), key=str):
                try:
                    self._open[listener] = await OPENERS[listener.protocol](listener, self._target(listener))
                except OSError as error:
                    problems.append(f"NodePort at {listener} cannot be opened: {error.strerror or error}")
            return tuple(problems)

    async def close(self) -> None:
        await self.listen(())


async def _open_tcp(listener: Listener, target: tuple[str, int]) -> Callable[[], None]:
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
            task.add_done_callback(connections.discard)
        try:
            onward_reader, onward_writer = await asyncio.open_connection(*target)
        except OSError:
            writer.transport.abort()  # a reset, as from a port without an endpoint
            return
        try:
            await asyncio.gather(_pump(reader, onward_writer), _pump(onward_reader, writer))
        except OSError:
            writer.transport.abort()
            onward_writer.transport.abort()
        finally:
            writer.close()
            onward_writer.close()

    server = await asyncio.start_server(accept, str(listener.address), listener.port)

    def close() -> None:
        server.close()
        for task in connections:
            task.cancel()

    return close


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):  # the other side is gone
        writer.write_eof()


async def _open_udp(listener: Listener, target: tuple[str, int]) -> Callable[[], None]:
    loop = asyncio.get_running_loop()
    address = (str(listener.address), listener.port)
    transport, _ = await loop.create_datagram_endpoint(lambda: _UdpServer(target), local_addr=address)
    return transport.close


class _UdpServer(asyncio.DatagramProtocol):
    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._clients: dict[tuple[str, int], _UdpClient] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        client = self._clients.get(address)
        if client is not None:
            client.send(data)
        elif self._transport is not None and len(self._clients) < _MOST_CLIENTS:
            self._clients[address] = client = _UdpClient(
                self._transport, address, lambda: self._clients.pop(address, None)
            )
            client.send(data)
            task = asyncio.get_running_loop().create_task(client.open(self._target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the protocol
        for client in list(self._clients.values()):
            client.end()


class _UdpClient(asyncio.DatagramProtocol):
    """The socket by which the datagrams of one client go on."""

    def __init__(self, back: asyncio.DatagramTransport, client: tuple[str, int], forget: Callable[[], object]) -> None:
        self._back = back
        self._client = client
        self._forget = forget
        self._waiting: list[bytes] = []  # until the socket is open
        self._onward: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, target: tuple[str, int]) -> None:
        try:
            self._onward, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: self, remote_addr=target
            )
        except OSError:
            self.end()
            return
        for data in self._waiting:
            self._onward.sendto(data)
        self._waiting.clear()

    def send(self, data: bytes) -> None:
        self._rest()
        if self._onward is None:
            self._waiting.append(data)
        else:
            self._onward.sendto(data)

    def datagram_received(self, data: bytes, _address: tuple[str, int]) -> None:
        self._rest()
        self._back.sendto(data, self._client)

    def end(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._forget()
        if self._onward:
            self._onward.close()

    def _rest(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_SECONDS_IDLE, self.end)


_Opener = Callable[[Listener, tuple[str, int]], Awaitable[Callable[[], None]]]
# Windows has no SCTP.
OPENERS: dict[Protocol, _Opener] = {Protocol.TCP: _open_tcp, Protocol.UDP: _open_udp}
