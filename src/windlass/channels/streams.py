"""What Unix sockets and named pipes have in common."""

from __future__ import annotations

from asyncio import BaseProtocol
from collections.abc import Callable
from io import BufferedIOBase
from typing import Protocol

ProtocolFactory = Callable[[], BaseProtocol]

CONNECTIONS = 256  # that wait to be accepted
BUFFER = 64 * 1024  # bytes that a reader holds unread; asyncio's own default


class ServedError(OSError):
    """Another process listens at this path."""


class BlockingStream(Protocol):
    """A stream without an event loop: the part of `socket.socket` that clients use."""

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size: int, /) -> bytes:
        """Some bytes; none at the end of the stream."""

    def makefile(self, mode: str) -> BufferedIOBase: ...

    def close(self) -> None: ...
