"""The agent's end of the plugin's socket: connections, time-outs, an orderly stop; not what a request means."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from windlass.cni import results, wire
from windlass.cni.configurations import NEWEST_VERSION
from windlass.cni.errors import Code, RequestError

log = structlog.get_logger(__name__)

_REQUEST_SECONDS = 10  # the plugin sends all of a request at once
_ANSWER_SECONDS = 10
_STOP_SECONDS = 10  # what is under way may end; after that it is broken off and takes back what it had begun
_CONNECTIONS = 256  # each may cost a megabyte; kubelet asks for a few at a time
_PIECE = 64 * 1024

Answering = Callable[[wire.PluginRequest], Awaitable[wire.PluginReply]]
Refusing = Callable[[Code], object]


class SocketError(Exception):
    """The socket cannot be served; the sentence says why and what to do."""


@asynccontextmanager
async def serving(path: Path, answering: Answering, on_refusal: Refusing = lambda _: None) -> AsyncIterator[None]:
    """Serves the plugin at `path` within the block. A stale socket is replaced, a live one is not.

    `on_refusal` is told of requests that are refused before anybody could read them.
    """
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= _CONNECTIONS:
            on_refusal(Code.TRY_AGAIN_LATER)
            writer.write(wire.encode(_refused(Code.TRY_AGAIN_LATER, "the agent is busy with other CNI requests")))
            writer.close()
            return
        task = asyncio.create_task(_converse(reader, writer, answering, on_refusal))
        connections.add(task)
        task.add_done_callback(connections.discard)

    listener = _listening(path)
    inode = os.stat(path).st_ino  # noqa: PTH116 - of a file that we just made
    server = await asyncio.start_unix_server(connected, sock=listener)
    try:
        yield
    finally:
        _remove_own(path, inode)
        server.close()
        await _stop(connections)
        await server.wait_closed()


def _listening(path: Path) -> socket.socket:
    """Only root may talk to it, from the first moment on; and a plugin never finds the path without a socket."""
    _refuse_served(path)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # on Linux the file that bind makes has the mode of the socket
        new.unlink(missing_ok=True)
        listener.bind(str(new))
        listener.listen(_CONNECTIONS)
        new.rename(path)
    except OSError as error:
        listener.close()
        new.unlink(missing_ok=True)
        raise SocketError(f"{path}: the agent cannot listen there: {error}; see runDirectory") from error
    return listener


def _refuse_served(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except BlockingIOError:
            pass  # so busy that its queue is full
        except OSError as error:
            raise SocketError(f"{path}: the agent cannot listen there: {error}; see runDirectory") from error
    raise SocketError(f"{path}: another agent answers there; stop it, or set another runDirectory")


def _remove_own(path: Path, inode: int) -> None:
    """Not that of a successor, which has put its own in our socket's place."""
    with suppress(FileNotFoundError):
        if path.stat().st_ino == inode:
            path.unlink()


async def _stop(connections: set[asyncio.Task[None]]) -> None:
    if not connections:
        return
    _, late = await asyncio.wait(connections, timeout=_STOP_SECONDS)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answering: Answering, on_refusal: Refusing
) -> None:
    try:
        answer = await _answer(reader, answering, on_refusal)
        writer.write(wire.encode(answer))
        async with asyncio.timeout(_ANSWER_SECONDS):
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError) as error:
        # What was done stays: the runtime will ask for ADD again or for DEL.
        log.warning("the CNI plugin went away", error=repr(error))
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader, answering: Answering, on_refusal: Refusing) -> wire.PluginReply:
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            request = await _request(reader)
    except wire.WireError as error:
        on_refusal(Code.UNDECODABLE)
        return _refused(Code.UNDECODABLE, "the agent cannot read the plugin's request", f"{error}.")
    except TimeoutError:
        on_refusal(Code.IO_FAILURE)
        return _refused(Code.IO_FAILURE, f"the plugin's request did not arrive whole within {_REQUEST_SECONDS} s")
    return await answering(request)


async def _request(reader: asyncio.StreamReader) -> wire.PluginRequest:
    parser = wire.RequestReader()
    while piece := await reader.read(_PIECE):
        if (request := parser.feed(piece)) is not None:
            return request
    raise parser.cut_off()


def _refused(code: Code, msg: str, details: str = "") -> wire.PluginReply:
    log.warning("cni request refused", code=int(code), error=f"{msg}; {details}")
    return wire.PluginReply(1, results.failed(NEWEST_VERSION, RequestError(code, msg, details)))
