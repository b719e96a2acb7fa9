"""A connection to a peer that is slow, silent, or no OpenFlow switch."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stream_servers import serving_streams
from windlass.openflow.actions import Output
from windlass.openflow.flows import Flow
from windlass.openflow.wire import flows, messages
from windlass.openflow.wire.messages import Type
from windlass.switch import connection as connections
from windlass.switch.connection import connected
from windlass.switch.message_streams import ConnectionLostError
from windlass.switch.streams import SwitchUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from windlass.openflow.wire.flows import EncodedFlow


@asynccontextmanager
async def peer(
    path: Path, behave: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[str]:
    """A server at a socket with this behaviour; the exceptions that it raises are raised here."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behave(reader, writer)
            ended.set_result(None)
        except Exception as error:  # noqa: BLE001 (any failure of the server must fail the test)
            ended.set_exception(error)
        finally:
            writer.close()

    async with serving_streams(path, meet):
        yield str(path)
        async with asyncio.timeout(30):
            await ended


async def receive(reader: asyncio.StreamReader, kind: Type) -> tuple[messages.Header, bytes]:
    """The next message of this type."""
    while True:
        header = messages.parse_header(await reader.readexactly(8))
        body = await reader.readexactly(header.length - 8)
        if header.type == kind:
            return header, body


async def test_a_silent_peer_gets_echo_requests_and_its_own_are_answered(tmp_path: Path):
    echoed = asyncio.Event()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in messages.hello(1) + messages.echo_request(42, b"are you there"):
            writer.write(bytes([byte]))  # byte by byte: a read may return a part of a message
            await writer.drain()
        header, body = await receive(reader, Type.ECHO_REPLY)
        assert (header.xid, body) == (42, b"are you there")
        for _ in range(3):
            header, body = await receive(reader, Type.ECHO_REQUEST)
            writer.write(messages.echo_reply(header.xid, body))
        echoed.set()
        header, _ = await receive(reader, Type.BARRIER_REQUEST)
        writer.write(messages.message(Type.BARRIER_REPLY, header.xid))
        await reader.read()  # until the connection ends

    async with peer(tmp_path / "s", behave) as path, connected(path, probe_interval=0.1) as connection:
        await echoed.wait()
        await connection.deliver((), flows.add)


async def test_a_peer_that_sends_no_hello_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "HELLO_TIMEOUT", 0.05)

    async def behave(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with peer(tmp_path / "s", behave) as path:
        with pytest.raises(SwitchUnreachableError, match=rf"{re.escape(path)}: the peer sent no OpenFlow hello within"):
            async with connected(path):
                pass


@pytest.mark.parametrize(
    "malformed",
    [
        bytes.fromhex("06 05 0004 00000001"),  # a message shorter than its header
        messages.message(Type.MULTIPART_REPLY, 0, b"\x00\x10" + bytes(6) + b"\xff" * 8),  # an update past its end
        messages.message(Type.MULTIPART_REPLY, 0, b"\x00"),
        messages.message(Type.ERROR, 0),
        b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(0x3200),
    ],
)
async def test_a_malformed_message_ends_the_connection(tmp_path: Path, malformed: bytes):
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(messages.hello(1))
        await receive(reader, Type.BARRIER_REQUEST)
        writer.write(malformed)
        await writer.drain()
        await reader.read()

    async with peer(tmp_path / "s", behave) as path, connected(path) as connection:
        with pytest.raises(ConnectionLostError, match=r"something that is not OpenFlow 1.5"):
            await connection.deliver((), flows.add)


async def test_a_slow_peer_slows_the_sender_down(tmp_path: Path):
    """Messages are not encoded further ahead than the peer reads."""
    read = asyncio.Event()
    encoded = 0

    def add(each: EncodedFlow, xid: int) -> bytes:
        nonlocal encoded
        encoded += 1
        return flows.add(each, xid)

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(messages.hello(1))
        await read.wait()
        header, _ = await receive(reader, Type.BARRIER_REQUEST)
        writer.write(messages.message(Type.BARRIER_REPLY, header.xid))
        await reader.read()

    many = 100_000
    async with peer(tmp_path / "s", behave) as path, connected(path) as connection:
        flow = flows.encode(Flow(0, 100, (), (Output(1),), ""))
        delivery = asyncio.create_task(connection.deliver([flow] * many, add))
        before = -1
        while encoded != before:  # until back-pressure stops it
            before = encoded
            for _ in range(100):
                await asyncio.sleep(0)
        assert encoded < many / 2
        read.set()
        assert len((await delivery).accepted) == many
