"""What Unix sockets and named pipes have in common."""

from __future__ import annotations

from asyncio import BaseProtocol
from collections.abc import Callable

ProtocolFactory = Callable[[], BaseProtocol]

CONNECTIONS = 256  # that wait to be accepted
BUFFER = 64 * 1024  # bytes that a reader holds unread; asyncio's own default


class ServedError(OSError):
    """Another process listens at this path."""
