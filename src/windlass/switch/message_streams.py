"""A stream of OpenFlow messages to and from a bridge: framing, back-pressure, and detection of a dead peer.

It knows message headers only; `connection` handles requests, replies and events.
"""

from __future__ import annotations

import asyncio
import struct
from asyncio import BaseTransport, WriteTransport
from collections.abc import Callable, Iterable

from windlass.openflow.wire import messages as wire
from windlass.openflow.wire.messages import HEADER_SIZE, Header, MalformedMessage, Type

NO_REPLY = 0  # the xid of messages without a waiting caller

_WRITE = 1 << 16  # bytes to encode before they are written: the switch works on them while we encode the next
_OF_ANY_VERSION = (Type.HELLO, Type.ERROR)  # these come before the version is agreed on


class ConnectionLostError(ConnectionError):
    """The connection is gone, and the replies that were awaited will not come. Connect again."""


class MessageStream(asyncio.Protocol):
    """A protocol handles a reply when it arrives. A task that reads would do so one turn of the event loop later."""

    def __init__(self, path: str, handle: Callable[[Header, bytes], None], on_loss: Callable[[str], None]) -> None:
        """`handle` is called with the header and the body of each message that arrives."""
        self.path = path
        self._handle = handle
        self._on_loss = on_loss
        self._transport = WriteTransport()  # until `connection_made`
        self._unread = b""  # the start of a message that is not complete yet
        self._heard = True  # something has arrived since the last check
        self._loss = ""  # why the connection is gone; empty while it works
        self._writable = asyncio.Event()
        self._closed = asyncio.Event()

    def check(self) -> None:
        """Raises ConnectionLostError if the connection is gone."""
        if self._loss:
            raise ConnectionLostError(self._loss)

    # --- called by the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream can be written to
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            self._unread = self._handle_whole_messages(self._unread + data)
        except (ValueError, IndexError, struct.error) as error:  # a malformed message
            self.lose(f"the peer sent something that is not OpenFlow 1.5: {error}")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()
        self.lose(str(error or "the switch closed it; ovs-vswitchd has stopped, or the bridge was deleted"))

    # --- called by the owner --------------------------------------------------------------------------------------

    async def probe(self, interval: float) -> None:
        """Sends an echo request to a silent peer. A peer that does not answer it is lost."""
        while not self._loss:
            self._heard = False
            await asyncio.sleep(interval)
            if self._heard:
                continue
            await self.send((wire.echo_request(NO_REPLY),))
            await asyncio.sleep(interval)
            if not self._heard:
                self.lose(f"the switch has not answered for {interval:g} s; ovs-vswitchd is stuck or stopped")

    async def send(self, messages: Iterable[bytes]) -> None:
        """Writes as fast as the switch reads, and encodes no further ahead than that."""
        chunk: list[bytes] = []
        size = 0
        for message in messages:
            chunk.append(message)
            size += len(message)
            if size >= _WRITE:
                await self._write(b"".join(chunk))
                chunk.clear()
                size = 0
                await asyncio.sleep(0)  # let other tasks run during a long list
        await self._write(b"".join(chunk))

    def send_now(self, message: bytes) -> None:
        """For a short message from within `handle`: it waits for nothing."""
        self._transport.write(message)

    def lose(self, reason: str) -> None:
        """End the connection. Everything that waits for it fails, now and later."""
        if self._loss:
            return
        self._loss = f"{self.path}: the connection was lost: {reason}"
        self._on_loss(self._loss)
        self._transport.close()
        self._writable.set()

    async def closed(self) -> None:
        await self._closed.wait()

    async def _write(self, data: bytes) -> None:
        self.check()
        self._transport.write(data)
        if not self._writable.is_set():
            await self._writable.wait()
            self.check()

    def _handle_whole_messages(self, data: bytes) -> bytes:
        """Returns the start of the message that is not complete yet."""
        offset, end = 0, len(data)
        while end - offset >= HEADER_SIZE:
            header = wire.parse_header(data, offset)
            following = offset + header.length
            if header.version != wire.VERSION and header.type not in _OF_ANY_VERSION:
                raise MalformedMessage(f"a message of version {header.version}")
            if following > end:
                break
            self._handle(header, data[offset + HEADER_SIZE : following])
            offset = following
        return data[offset:]
