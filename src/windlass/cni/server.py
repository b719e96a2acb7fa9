"""The agent's server for the CNI plugin: socket, connections, timeouts and an orderly stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import structlog

from windlass.channels import local
from windlass.cni import results, wire
from windlass.cni.configurations import NEWEST_VERSION
from windlass.cni.errors import Code, RequestError

log = structlog.get_logger(__name__)

_REQUEST_SECONDS = 10  # the plugin sends a request in one piece
_ANSWER_SECONDS = 10
_STOP_SECONDS = 10  # for requests in progress; afterwards they are cancelled, and roll back
_CONNECTIONS = 256  # each may take a megabyte; kubelet uses a few at a time
_PIECE = 64 * 1024

RequestHandler = Callable[[wire.PluginRequest], Awaitable[wire.PluginReply]]
RefusalObserver = Callable[[Code], object]


class SocketError(Exception):
    """The socket cannot be served. The message says why, and what to do."""


@asynccontextmanager
async def serving(
    path: Path, answering: RequestHandler, on_refusal: RefusalObserver = lambda _: None
) -> AsyncIterator[None]:
    """Serve the plugin at `path` within the block. Replaces a stale socket, but not one that an agent serves.

    `on_refusal` is called for requests that are refused before they reach `answering`.
    """
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= _CONNECTIONS:
            reply = _refused(on_refusal, Code.TRY_AGAIN_LATER, "the agent is busy with other CNI requests")
            writer.write(wire.encode(reply))
            writer.close()
            return
        task = asyncio.create_task(_converse(reader, writer, answering, on_refusal))
        connections.add(task)
        task.add_done_callback(connections.discard)

    def protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), connected)

    try:
        async with _listening(path, protocol):
            yield
    finally:
        await _stop(connections)


@asynccontextmanager
async def _listening(path: Path, protocol: Callable[[], asyncio.BaseProtocol]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(local.listening(path, protocol))
        except local.ServedError:
            raise SocketError(
                f"{path}: another agent uses this socket; stop it, or set a different runDirectory"
            ) from None
        except OSError as error:
            raise SocketError(f"{path}: the agent cannot listen there: {error}; see runDirectory") from error
        yield


async def _stop(connections: set[asyncio.Task[None]]) -> None:
    if not connections:
        return
    _, late = await asyncio.wait(connections, timeout=_STOP_SECONDS)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answering: RequestHandler, on_refusal: RefusalObserver
) -> None:
    try:
        answer = await _answer(reader, answering, on_refusal)
        writer.write(wire.encode(answer))
        async with asyncio.timeout(_ANSWER_SECONDS):
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError) as error:
        # Nothing is rolled back: the runtime will repeat ADD or send DEL.
        log.warning("the CNI plugin closed the connection early", error=repr(error))
    finally:
        writer.transport.abort()


async def _answer(
    reader: asyncio.StreamReader, answering: RequestHandler, on_refusal: RefusalObserver
) -> wire.PluginReply:
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            request = await _request(reader)
    except wire.WireError as error:
        return _refused(on_refusal, Code.UNDECODABLE, "the agent cannot read the plugin's request", f"{error}.")
    except TimeoutError:
        late = f"the request of the plugin was incomplete after {_REQUEST_SECONDS} s"
        return _refused(on_refusal, Code.IO_FAILURE, late)
    return await answering(request)


async def _request(reader: asyncio.StreamReader) -> wire.PluginRequest:
    parser = wire.RequestReader()
    while piece := await reader.read(_PIECE):
        if (request := parser.feed(piece)) is not None:
            return request
    raise parser.cut_off()


def _refused(on_refusal: RefusalObserver, code: Code, msg: str, details: str = "") -> wire.PluginReply:
    on_refusal(code)
    log.warning("cni request refused", code=int(code), error=f"{msg}; {details}")
    return wire.PluginReply(1, results.failed(NEWEST_VERSION, RequestError(code, msg, details)))
