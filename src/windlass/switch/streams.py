"""Opens the byte stream to a daemon of Open vSwitch: a unix socket, or a named pipe on Windows."""

from __future__ import annotations

import asyncio
import sys
from asyncio import StreamReader, StreamWriter

PIPES = "\\\\.\\pipe\\"

# A flow dump or the first view of a database has megabytes: the default of 64 KiB would pause reading often.
_BUFFER = 1 << 20


class SwitchUnreachableError(ConnectionError):
    """No daemon answers at this path. The text says why, and what to do."""


async def open_stream(path: str) -> tuple[StreamReader, StreamWriter]:
    """Connect to a socket of Open vSwitch by its path (`db.sock`, `<bridge>.mgmt`), on either operating system."""
    try:
        if sys.platform == "win32":
            return await _open_pipe(pipe_name(path))
        return await asyncio.open_unix_connection(path, limit=_BUFFER)
    except OSError as error:
        raise SwitchUnreachableError(f"{path}: {_what_to_do(error)}") from error


def pipe_name(path: str) -> str:
    """The named pipe for a socket path: Open vSwitch on Windows drops every slash of it."""
    if path.startswith(PIPES):
        return path
    return PIPES + path.replace("\\", "").replace("/", "")


def _what_to_do(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return (
                "no such socket; start Open vSwitch (ovsdb-server, ovs-vswitchd), or set ovsRunDirectory "
                "to the directory of its sockets"
            )
        case ConnectionRefusedError():
            return "the socket exists but no daemon listens; start Open vSwitch again"
        case PermissionError():
            return "permission denied; run as root (on Windows: as SYSTEM)"
        case _:
            return f"cannot be opened ({error.strerror or error}); is it a socket of Open vSwitch?"


if sys.platform == "win32":

    async def _open_pipe(name: str) -> tuple[StreamReader, StreamWriter]:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.ProactorEventLoop):
            raise OSError(0, "only the Proactor event loop of asyncio opens named pipes")
        reader = StreamReader(limit=_BUFFER, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_pipe_connection(lambda: protocol, name)
        return reader, StreamWriter(transport, protocol, reader, loop)
