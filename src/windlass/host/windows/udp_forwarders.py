"""Forwards datagrams between clients of a NodePort and their endpoints. Each active client has its own socket."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import cast

from windlass.host.forwarded_clients import Admission, ForwardedClient, Refusal
from windlass.host.windows.client_limits import MOST_CLIENTS, LimitWarning

_SECONDS_IDLE = 60.0  # seconds without a datagram until the socket of a client is closed

PeerName = tuple[str, int]  # address and port; an IPv6 socket reports more items
Admit = Callable[[ForwardedClient], Admission | None]
_TOO_MANY = "a NodePort has too many UDP clients at once, and the longest idle ones are evicted"


def client_of(peer: PeerName) -> ForwardedClient:
    address = ip_address(peer[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None  # of a socket for both families
    return ForwardedClient(mapped or address, peer[1])


class UdpForwarder(asyncio.DatagramProtocol):
    def __init__(self, name: str, admit: Admit) -> None:
        """`name`: of the NodePort, for the log."""
        self._admit = admit
        self._clients: OrderedDict[PeerName, _UdpClient] = OrderedDict()  # the longest idle one first
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None
        self._too_many = LimitWarning(name, _TOO_MANY)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: PeerName) -> None:
        client = self._clients.get(address)
        if client is not None and not client.admission.holds():
            client.end()
            client = None  # the datagram opens another one, perhaps to another endpoint
        client = client or self._new_client(address)
        if client is not None:
            client.send(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the protocol
        self._transport = None
        for client in list(self._clients.values()):
            client.end()

    def reply(self, data: bytes, address: PeerName) -> None:
        if self._transport is not None:
            self._transport.sendto(data, address)

    def note_use(self, address: PeerName) -> None:
        self._clients.move_to_end(address)

    def forget(self, address: PeerName) -> None:
        self._clients.pop(address, None)

    def _new_client(self, address: PeerName) -> _UdpClient | None:
        admission = self._admit(client_of(address))
        if admission is None:
            return None
        if len(self._clients) >= MOST_CLIENTS:
            self._evict()
        self._clients[address] = client = _UdpClient(self, address, admission)
        task = asyncio.get_running_loop().create_task(client.open())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return client

    def _evict(self) -> None:
        idlest = next(iter(self._clients.values()))
        idlest.admission.fail(Refusal.EVICTED)
        idlest.end()
        self._too_many.note(MOST_CLIENTS)


class _UdpClient(asyncio.DatagramProtocol):
    """The socket that sends the datagrams of one client to its endpoint."""

    def __init__(self, forwarder: UdpForwarder, client: PeerName, admission: Admission) -> None:
        self.admission = admission
        self._forwarder = forwarder
        self._client = client
        self._waiting: list[bytes] = []  # until the socket is open
        self._onward: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    async def open(self) -> None:
        address, port = self.admission.destination
        try:
            onward, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: self, remote_addr=(str(address), port)
            )
        except OSError as error:
            self.error_received(error)
            return
        self._onward = onward
        if self._ended:
            onward.close()
        for data in self._waiting:
            onward.sendto(data)
        self._waiting.clear()

    def send(self, data: bytes) -> None:
        self._note_use()
        if self._onward is None:
            self._waiting.append(data)
        else:
            self._onward.sendto(data)

    def datagram_received(self, data: bytes, _address: PeerName) -> None:
        if self.admission.holds():
            self._note_use()
            self._forwarder.reply(data, self._client)
        else:
            self.end()

    def error_received(self, exc: Exception) -> None:  # noqa: ARG002 - of the protocol
        """The endpoint refused a datagram. On Windows the socket is useless then: the next datagram opens another."""
        if not self._ended:
            self.admission.fail(Refusal.UNREACHABLE)
            self.end()

    def end(self) -> None:
        self._ended = True
        self._waiting.clear()
        if self._timer:
            self._timer.cancel()
        self._forwarder.forget(self._client)
        if self._onward:
            self._onward.close()

    def _note_use(self) -> None:
        self._forwarder.note_use(self._client)
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_SECONDS_IDLE, self.end)
