"""NodePorts at a Windows host's own addresses: connections are accepted and go on to the switch's address.

The forwarder is plain asyncio: it runs here, with 127.0.0.9 as the address of the switch, and in Windows' Python.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from windlass.host.forwarded_clients import ForwardedClient, ForwardedDestination, Refusal
from windlass.host.windows import port_forwarders, udp_forwarders
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


class Decision:
    """What the agent decides about clients: it admits them to the switch, until it changes its mind."""

    def __init__(self) -> None:
        self.denies = False
        self.udp_port = free_port(socket.SOCK_DGRAM)  # of the switch: Wine binds 127.0.0.9 as if it were all addresses
        self.asked: asyncio.Queue[ForwardedClient] = asyncio.Queue()
        self.failed: asyncio.Queue[Refusal] = asyncio.Queue()

    def admit(self, listener: Listener, client: ForwardedClient) -> Admission | None:
        self.asked.put_nowait(client)
        if self.denies:
            return None
        if listener.protocol is Protocol.UDP:
            return Admission(self, ForwardedDestination(HERE[0], self.udp_port))
        return Admission(self, ForwardedDestination(ip_address(SWITCH), listener.port))


@dataclass
class Admission:
    decision: Decision
    destination: ForwardedDestination

    def holds(self) -> bool:
        return not self.decision.denies

    def fail(self, reason: Refusal) -> None:
        self.decision.failed.put_nowait(reason)


@asynccontextmanager
async def forwarders(decision: Decision | None = None) -> AsyncIterator[PortForwarders]:
    made = PortForwarders((decision or Decision()).admit)
    try:
        yield made
    finally:
        await made.close()


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(b"answer to " + data, address)


class UdpClient(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, _address):
        self.answers.put_nowait(data)


@asynccontextmanager
async def udp_clients(decision: Decision, port: int, count: int) -> AsyncIterator[list[UdpClient]]:
    """With an echo server in place of the switch."""
    loop = asyncio.get_running_loop()
    server, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", decision.udp_port))
    opened = [await loop.create_datagram_endpoint(UdpClient, remote_addr=("127.0.0.1", port)) for _ in range(count)]
    try:
        yield [client for _, client in opened]
    finally:
        for transport in (server, *(transport for transport, _ in opened)):
            transport.close()


async def asked(address: str, port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(data)
    writer.write_eof()
    try:
        return await reader.read()
    finally:
        writer.close()


async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Returns when the other side has ended, too."""
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


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


async def test_a_client_that_is_refused_gets_a_reset_and_reaches_nothing():
    port = free_port(socket.SOCK_STREAM)
    reached = []
    server = await asyncio.start_server(lambda *_: reached.append(1), SWITCH, port)
    decision = Decision()
    decision.denies = True
    async with forwarders(decision) as ports, server:
        await ports.listen([Listener(Protocol.TCP, HERE[0], port)])
        with suppress(ConnectionResetError):
            assert await asked("127.0.0.1", port, b"hello") == b""
    assert not reached
    assert (await decision.asked.get()).address == ip_address("127.0.0.1")


async def test_a_denial_ends_an_open_connection_with_its_next_bytes():
    port = free_port(socket.SOCK_STREAM)
    received = []

    async def serve(reader, writer):
        while data := await reader.read(100):
            received.append(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, SWITCH, port)
    decision = Decision()
    async with forwarders(decision) as ports, server:
        await ports.listen([Listener(Protocol.TCP, HERE[0], port)])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"before")
        assert await reader.read(100) == b"before"
        decision.denies = True
        writer.write(b"after")
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    assert received == [b"before"]
    assert await decision.failed.get() is Refusal.POLICY


async def test_udp_goes_to_the_switch_and_replies_return_to_their_clients():
    port = free_port(socket.SOCK_DGRAM)
    decision = Decision()
    async with forwarders(decision) as ports, udp_clients(decision, port, 3) as clients:
        assert not await ports.listen([Listener(Protocol.UDP, HERE[0], port)])
        for number, client in enumerate(clients):
            for word in (b"first", b"second"):
                client.transport.sendto(word + b" of %d" % number)
        for number, client in enumerate(clients):
            said = {await client.answers.get() for _ in range(2)}
            assert said == {b"answer to first of %d" % number, b"answer to second of %d" % number}


async def test_a_denial_ends_a_udp_client_and_an_allowance_brings_it_back():
    port = free_port(socket.SOCK_DGRAM)
    decision = Decision()
    async with forwarders(decision) as ports, udp_clients(decision, port, 1) as (client,):
        assert not await ports.listen([Listener(Protocol.UDP, HERE[0], port)])
        client.transport.sendto(b"before")
        assert await client.answers.get() == b"answer to before"
        await decision.asked.get()
        decision.denies = True
        client.transport.sendto(b"denied")
        await decision.asked.get()  # it was judged again, and refused
        decision.denies = False
        client.transport.sendto(b"after")
        assert await client.answers.get() == b"answer to after"


async def test_beyond_the_limit_the_idlest_udp_client_is_forgotten_counted_and_said(monkeypatch):
    monkeypatch.setattr(udp_forwarders, "MOST_CLIENTS", 2)
    port = free_port(socket.SOCK_DGRAM)
    decision = Decision()
    with capture_logs() as logs:
        async with forwarders(decision) as ports, udp_clients(decision, port, 4) as clients:
            assert not await ports.listen([Listener(Protocol.UDP, HERE[0], port)])
            for number in (0, 1, 0, 2, 3):  # 1 is idler than 0, then 0 is idler than 2
                clients[number].transport.sendto(b"hello")
                assert await clients[number].answers.get() == b"answer to hello"
            assert [await decision.failed.get() for _ in range(2)] == [Refusal.EVICTED] * 2
            clients[3].transport.sendto(b"again")
            assert await clients[3].answers.get() == b"answer to again"
            assert decision.asked.qsize() == 4  # 3 was still known
    (said,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (said["limit"], said["node_port"]) == (2, f"127.0.0.1, port {port}/UDP")


async def test_beyond_the_limit_a_new_tcp_connection_is_refused_counted_and_said(monkeypatch):
    monkeypatch.setattr(port_forwarders, "MOST_CLIENTS", 2)
    port = free_port(socket.SOCK_STREAM)
    decision = Decision()

    async def echo(reader, writer):
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, SWITCH, port)
    with capture_logs() as logs:
        async with forwarders(decision) as ports, server:
            await ports.listen([Listener(Protocol.TCP, HERE[0], port)])
            first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for reader, writer in (first, second):
                writer.write(b"hello")
                assert await reader.read(100) == b"hello"
            for _ in range(2):
                with suppress(OSError):
                    assert await asked("127.0.0.1", port, b"hello") == b""
                assert await decision.failed.get() is Refusal.FULL
            first[1].write(b"still")
            assert await first[0].read(100) == b"still"
            await end(*second)
            assert await asked("127.0.0.1", port, b"again") == b"again"  # there is room again
            await end(*first)
    (said,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (said["limit"], said["node_port"]) == (2, f"127.0.0.1, port {port}/TCP")


async def test_a_udp_client_whose_endpoint_refuses_gets_another_socket_for_its_next_datagram():
    port = free_port(socket.SOCK_DGRAM)
    decision = Decision()
    async with forwarders(decision) as ports:
        assert not await ports.listen([Listener(Protocol.UDP, HERE[0], port)])
        transport, client = await asyncio.get_running_loop().create_datagram_endpoint(
            UdpClient, remote_addr=("127.0.0.1", port)
        )
        transport.sendto(b"to nobody")
        assert await decision.failed.get() is Refusal.UNREACHABLE
        async with udp_clients(decision, port, 0):
            transport.sendto(b"again")
            assert await client.answers.get() == b"answer to again"
        transport.close()


async def test_a_udp_client_that_is_silent_is_forgotten(monkeypatch):
    monkeypatch.setattr(udp_forwarders, "_SECONDS_IDLE", 0.05)
    port = free_port(socket.SOCK_DGRAM)
    forgotten = asyncio.Event()
    forget = udp_forwarders.UdpForwarder.forget

    def watched(*arguments):
        forget(*arguments)
        forgotten.set()

    monkeypatch.setattr(udp_forwarders.UdpForwarder, "forget", watched)
    decision = Decision()
    async with forwarders(decision) as ports, udp_clients(decision, port, 1) as (client,):
        assert not await ports.listen([Listener(Protocol.UDP, HERE[0], port)])
        client.transport.sendto(b"hello")
        await forgotten.wait()


def test_a_client_of_a_socket_for_both_families_has_its_ipv4_address():
    assert udp_forwarders.client_of(("::ffff:203.0.113.9", 5)) == ForwardedClient(ip_address("203.0.113.9"), 5)
    assert udp_forwarders.client_of(("2001:db8::1", 5)) == ForwardedClient(ip_address("2001:db8::1"), 5)


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
