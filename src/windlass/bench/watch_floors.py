"""For benchmarks of writes: when an event of a watch arrives, and the cluster's revision after a write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
from msgspec import Raw

from windlass.bench import service_states as states
from windlass.bench.watch_clusters import TIMEOUT, APIServerClient
from windlass.cluster.kinds import WatchedKind
from windlass.cluster.kubernetes import decoding
from windlass.cluster.kubernetes.stores import ObjectStore
from windlass.cluster.objects import APIObject
from windlass.lab.sandbox.labs import LabError


def digest(kind: WatchedKind[APIObject], one: APIObject) -> int:
    """Its part of the cluster's revision, from which the revision after a write is computed beforehand."""
    store = ObjectStore(kind)
    store.put(Raw(msgspec.json.encode(one)))
    return store.digest


async def when(awaited: Awaitable[None]) -> float:
    await awaited
    return time.perf_counter()


@asynccontextmanager
async def watched(
    server: APIServerClient, path: str, selectors: Mapping[str, str], take: Callable[[list[bytes]], None]
) -> AsyncIterator[None]:
    """Watch these objects from now on. `take` gets the events, which are not decoded."""
    listed = await server.connection.request("GET", path, {"limit": "1"})
    parameters = {"watch": "true", "resourceVersion": decoding.page(listed).metadata.resource_version}
    async with server.connection.stream(path, {**selectors, **parameters}) as chunks:

        async def follow() -> None:
            async for lines in decoding.line_batches(chunks):
                take(lines)

        following = asyncio.create_task(follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait([following])


class Arrivals:
    """The arrival times of events of a watch."""

    def __init__(self) -> None:
        self._wanted = b""
        self._arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def of(self, content: bytes) -> float:
        """Wait for the event that contains these bytes. Returns the time of its arrival."""
        self._wanted, self._arrived = content, asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(self._arrived, TIMEOUT)
        except TimeoutError:
            raise LabError(f"a watch has not received the event of a write after {TIMEOUT:.0f} s") from None

    def take(self, lines: list[bytes]) -> None:
        if self._wanted and any(self._wanted in line for line in lines) and not self._arrived.done():
            self._arrived.set_result(time.perf_counter())


@asynccontextmanager
async def watching(server: APIServerClient, kind: WatchedKind[APIObject]) -> AsyncIterator[Arrivals]:
    """A client that watches the same objects as an agent."""
    arrivals = Arrivals()
    async with watched(server, kind.path, kind.selectors(states.NODE), arrivals.take):
        yield arrivals
