"""NodePorts at a Windows host's own addresses: connections are accepted and go on to the switch's address.

The forwarder is plain asyncio: it runs here, with 127.0.0.9 as the address of the switch, and in Windows' Python.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from windlass.host.windows import port_forwarders
from windlass.host.windows.port_forwarders import Listener, PortForwarders
from windlass.model.services import Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SWITCH = "127.0.0.9"
HERE = [ip_address("127.0.0.1"), ip_address("127.0.0.2")]


def free_port(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("0.0.0.0", 0))  # noqa: S104 - free at every address
        return probe.getsockname()[1]


@asynccontextmanager
async def forwarders() -> AsyncIterator[PortForwarders]:
    made = PortForwarders(lambda listener: (SWITCH, listener.port))
    try:
        yield made
    finally:
        await made.close()


async def asked(address: str, port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(data)
    writer.write_eof()
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_tcp_goes_to_the_switch_whole_and_each_side_may_end_first():
    port = free_port(socket.SOCK_STREAM)

    async def echo(reader, writer):
        writer.write(await reader.read())  # until the client has ended
        writer.close()

    server = await asyncio.start_server(echo, SWITCH, port)
    data = b"x" * 3_000_000
    async with forwarders() as ports, server:
        assert await ports.listen([Listener(Protocol.TCP, ip, port) for ip in HERE]) == ()
        for address in map(str, HERE):
            assert await asked(address, port, data) == data
        # At these and no others.
        assert await ports.listen([Listener(Protocol.TCP, HERE[0], port)]) == ()
        assert await asked("127.0.0.1", port, b"again") == b"again"
        with pytest.raises(OSError):
            await asked("127.0.0.2", port, b"")


async def test_tcp_without_an_endpoint_ends():
    port = free_port(socket.SOCK_STREAM)
    async with forwarders() as ports:
        await ports.listen([Listener(Protocol.TCP, HERE[0], port)])
        with suppress(OSError):
            assert await asked("127.0.0.1", port, b"hello") == b""


async def test_udp_goes_to_the_switch_and_replies_return_to_their_clients():
    port = free_port(socket.SOCK_DGRAM)

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, address):
            self.transport.sendto(b"answer to " + data, address)

    class Client(asyncio.DatagramProtocol):
        def __init__(self) -> None:
            self.answers: asyncio.Queue[bytes] = asyncio.Queue()

        def datagram_received(self, data, _address):
            self.answers.put_nowait(data)

    loop = asyncio.get_running_loop()
    transports = [(await loop.create_datagram_endpoint(Echo, local_addr=(SWITCH, port)))[0]]
    async with forwarders() as ports:
        await ports.listen([Listener(Protocol.UDP, HERE[0], port)])
        clients = []
        for number in range(3):
            transport, client = await loop.create_datagram_endpoint(Client, remote_addr=("127.0.0.1", port))
            transports.append(transport)
            for word in (b"first", b"second"):
                transport.sendto(word + b" of %d" % number)
            clients.append(client)
        for number, client in enumerate(clients):
            said = {await client.answers.get() for _ in range(2)}
            assert said == {b"answer to first of %d" % number, b"answer to second of %d" % number}
        for transport in transports:
            transport.close()


async def test_a_udp_client_that_is_silent_is_forgotten(monkeypatch):
    monkeypatch.setattr(port_forwarders, "_SECONDS_IDLE", 0.05)
    ended = asyncio.Event()
    client = port_forwarders._UdpClient(None, ("127.0.0.1", 9), ended.set)
    client.send(b"never sent")
    await ended.wait()


async def test_a_port_that_another_program_has_is_said_and_tried_again():
    port = free_port(socket.SOCK_STREAM)
    wanted = [Listener(Protocol.TCP, ip, port) for ip in HERE]
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.2", port)
    async with forwarders() as ports:
        (problem,) = await ports.listen(wanted)
        assert problem.startswith(f"NodePort at 127.0.0.2, port {port}/TCP cannot be opened: ")
        taken.close()
        await taken.wait_closed()
        assert await ports.listen(wanted) == ()
