"""Stands in for HCN: the Windows agent asks the host stack, on Linux, to attach Pods. Both sides are here.

A request and its answer are pickled, each after four bytes with its length. Both ends are this package, on the loopback
of the Node's namespace.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any, Protocol

from windlass.host.protocol import AttachedLink, HostError, HostPods, PodLink
from windlass.lab.wine.pipe_relays import kept

PORT = 10998
_LENGTH = 4


class PodCalls(HostPods):
    """The agent's side."""

    async def attach(self, link: PodLink) -> None:
        await _ask("attach", link)

    async def detach(self, host_interface: str) -> None:
        await _ask("detach", host_interface)

    async def check(self, link: PodLink) -> tuple[str, ...]:
        found: tuple[str, ...] = await _ask("check", link)
        return found

    async def links(self) -> tuple[AttachedLink, ...]:
        found: tuple[AttachedLink, ...] = await _ask("links")
        return found


class LocalPods(Protocol):
    """What the host stack does; the methods are those of HostPods."""

    def attach(self, link: PodLink) -> None: ...
    def detach(self, host_interface: str) -> None: ...
    def check(self, link: PodLink) -> tuple[str, ...]: ...
    def links(self) -> tuple[AttachedLink, ...]: ...


async def serve(pods: LocalPods) -> asyncio.Server:
    """The side of the host stack."""
    calls: dict[str, Callable[..., object]] = {
        "attach": pods.attach,
        "detach": pods.detach,
        "check": pods.check,
        "links": pods.links,
    }

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, arguments = await _read(reader)
        try:
            result: object = calls[name](*arguments)
        except (HostError, OSError) as error:
            result = HostError(str(error))
        _write(writer, result)
        writer.close()

    return await asyncio.start_server(kept(answer), "127.0.0.1", PORT)


async def _ask(name: str, *arguments: object) -> Any:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        _write(writer, (name, arguments))
        result = await _read(reader)
        writer.close()
    except OSError as error:
        raise HostError(f"the lab does not attach Pods: {error}") from error
    if isinstance(result, HostError):
        raise result
    return result


def _write(writer: asyncio.StreamWriter, content: object) -> None:
    data = pickle.dumps(content)
    writer.write(len(data).to_bytes(_LENGTH) + data)


async def _read(reader: asyncio.StreamReader) -> Any:
    length = int.from_bytes(await reader.readexactly(_LENGTH))
    return pickle.loads(await reader.readexactly(length))  # noqa: S301 - from this package
