"""Unix sockets. See `local`."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    raise ImportError("asyncio has no Unix sockets on Windows")

import asyncio
import os
import socket
from asyncio import BaseProtocol, StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from windlass.channels.streams import BUFFER, CONNECTIONS, ProtocolFactory, ServedError


def address(path: Path) -> str:
    return str(path)


async def connect(path: Path, limit: int = BUFFER) -> tuple[StreamReader, StreamWriter]:
    return await asyncio.open_unix_connection(path, limit=limit)


async def attach(path: Path, protocol: BaseProtocol) -> None:
    await asyncio.get_running_loop().create_unix_connection(lambda: protocol, str(path))


def dial(path: Path, seconds: float | None) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(seconds)
    try:
        stream.connect(str(path))
    except OSError:
        stream.close()
        raise
    return stream


@asynccontextmanager
async def listening(path: Path, factory: ProtocolFactory) -> AsyncIterator[None]:
    """Replaces a stale socket atomically, but not one that a process serves. Connections outlive the block."""
    listener = _bound(path)
    inode = os.stat(path).st_ino  # noqa: PTH116 - the file was just created
    server = await asyncio.get_running_loop().create_unix_server(factory, sock=listener)
    try:
        yield
    finally:
        _remove_own(path, inode)
        server.close()


def is_served(path: Path) -> bool:
    """Raises OSError if that cannot be known. A server with a full backlog counts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:
            pass
    return True


def _bound(path: Path) -> socket.socket:
    """A listening socket that only root can connect to."""
    if is_served(path):
        raise ServedError(f"{path}: another process serves this socket")
    new = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # on Linux, the file that bind creates has the mode of the socket
        new.unlink(missing_ok=True)
        listener.bind(str(new))
        listener.listen(CONNECTIONS)
        new.rename(path)
    except OSError:
        listener.close()
        new.unlink(missing_ok=True)
        raise
    return listener


def _remove_own(path: Path, inode: int) -> None:
    """Unless a successor has replaced the socket with its own."""
    with suppress(FileNotFoundError):
        if path.stat().st_ino == inode:
            path.unlink()
