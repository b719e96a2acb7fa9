"""For benchmarks of writes: when an event of a watch arrives, and the cluster's revision after a write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager

import msgspec
from msgspec import Raw

from windlass.bench import service_states as states
from windlass.bench.watch_clusters import TIMEOUT, AgentClient, APIServerClient
from windlass.cluster.kinds import WatchedKind
from windlass.cluster.kubernetes import decoding
from windlass.cluster.kubernetes.stores import ObjectStore
from windlass.cluster.objects import APIObject
from windlass.lab.sandbox.labs import LabError

_PAUSE = 0.02  # seconds between writes
_CONCURRENT_WRITES = 20  # while objects are created


def digest(kind: WatchedKind[APIObject], one: APIObject) -> int:
    """Its part of the cluster's revision, from which the revision after a write is computed beforehand."""
    store = ObjectStore(kind)
    store.put(Raw(msgspec.json.encode(one)))
    return store.digest


async def run_concurrently(writes: Iterable[Coroutine[object, object, None]]) -> None:
    waiting = iter(writes)

    async def worker() -> None:
        for write in waiting:
            await write

    await asyncio.gather(*(worker() for _ in range(_CONCURRENT_WRITES)))


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


async def time_write(
    write: Coroutine[object, object, None], agent: AgentClient, revision: int, arrivals: Arrivals, content: bytes
) -> tuple[float, float]:
    """Milliseconds until the agent holds this revision, and until the event with this content has arrived."""

    async def held() -> float:
        await agent.holds(f"{revision:016x}")
        return time.perf_counter()

    holding, arriving = asyncio.create_task(held()), asyncio.create_task(arrivals.of(content))
    await asyncio.sleep(_PAUSE)  # by now both tasks wait
    began = time.perf_counter()
    await write
    return 1000 * (await holding - began), 1000 * (await arriving - began)


@asynccontextmanager
async def watching(server: APIServerClient, kind: WatchedKind[APIObject]) -> AsyncIterator[Arrivals]:
    """A client that watches the same objects as an agent."""
    arrivals = Arrivals()
    async with watched(server, kind.path, kind.selectors(states.NODE), arrivals.take):
        yield arrivals
