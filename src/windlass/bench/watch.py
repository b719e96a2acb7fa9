"""`windlass bench watch`: from a write to a real API server to the switch's word that packets meet what came of it.

One endpoint of one EndpointSlice is replaced, with many Services present. The floor, of the very same write: until a
client that does nothing but watch has the event. Both are told to this process, which writes; so both have the way of
that word in them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import msgspec
from msgspec import Raw, structs

from windlass.bench import service_states as states
from windlass.bench import watch_clusters
from windlass.bench.reports import Figure, Report, figure, this_machine
from windlass.bench.watch_clusters import PATIENCE, Agent, Server
from windlass.cluster.clusters import Cluster
from windlass.cluster.kinds import kinds_of
from windlass.cluster.kubernetes import decoding
from windlass.cluster.kubernetes.stores import ObjectStore
from windlass.cluster.objects import EndpointSlice
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import LabError

SIZES = (1_000, 10_000)  # Services
ENDPOINTS = 10  # of each
COUNT = 500  # writes at each size
PAUSE = 0.02  # seconds between them
SETTLING = 3.0  # seconds in which the agent saves what it knows, and looks through it once more

_SLICES = kinds_of(Cluster)["slices"]
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
_OWN = 1  # the cluster's own Service, default/kubernetes
_FIRST = 100  # the number of the first Service of ours: the first addresses are the cluster's own
_SIDE_BY_SIDE = 20  # writes, while the Services are made
_PRIME = 7919  # so that writes that follow one another are of Services that do not


def run(say: Callable[[str], None] = print) -> Report:
    """Takes some three minutes, most of them for the API server to take the Services. `say` hears of the progress."""
    return asyncio.run(_run(say))


async def _run(say: Callable[[str], None]) -> Report:
    figures: list[Figure] = []
    with labs.opened() as lab:
        async with watch_clusters.standing(lab) as (server, agent):
            made = 0
            for turn, size in enumerate(SIZES):
                say(f"the API server takes {size - made} Services x {ENDPOINTS} endpoints")
                await _make_services(server, range(_FIRST + made, _FIRST + size))
                made = size
                await _settled(server, agent)
                say(f"an agent with {size} Services, and {COUNT} writes of one endpoint")
                await asyncio.sleep(SETTLING)
                figures += await _measure(server, agent, size, range(turn * COUNT, (turn + 1) * COUNT))
                await agent.serves(size + _OWN)
    return Report("watch", this_machine(), tuple(figures))


async def _make_services(server: Server, numbers: Iterable[int]) -> None:
    waiting = iter(numbers)

    async def worker() -> None:
        for number in waiting:
            pods = range(number * ENDPOINTS, (number + 1) * ENDPOINTS)
            await server.write("POST", SERVICES, _document("v1", states.service(number)))
            await server.write("POST", SLICES, _slice_document(states.endpoint_slice(number, pods)))

    await asyncio.gather(*(worker() for _ in range(_SIDE_BY_SIDE)))


async def _settled(server: Server, agent: Agent) -> Cluster:
    """When the Node holds what is in the cluster, and that stays so: the agent itself writes to its Node."""
    while True:
        cluster = await server.cluster()
        await agent.holds(cluster.revision)
        if (await server.cluster()).revision == cluster.revision:
            return cluster


# ---- one write


async def _measure(server: Server, agent: Agent, size: int, writes: range) -> list[Figure]:
    """`writes` are numbers that no other turn has: what says nothing new is no event."""
    cluster = await _settled(server, agent)
    slices, revision = dict(cluster.slices), int(cluster.revision, 16)
    switch: list[float] = []
    watch: list[float] = []
    async with _watching(server) as arrivals:
        for times in writes:
            changed = states.changed_slice(_FIRST + times * _PRIME % size, ENDPOINTS, times)
            before = slices[changed.key]
            after = slices[changed.key] = structs.replace(before, endpoints=changed.endpoints)
            revision ^= _digest(before) ^ _digest(after)
            held = asyncio.create_task(_when(agent.holds(f"{revision:016x}")))
            arrived = asyncio.create_task(arrivals.of(_new_address(after)))
            await asyncio.sleep(PAUSE)  # by now both are waited for
            document = _slice_document(changed)
            began = time.perf_counter()
            await server.write("PUT", f"{SLICES}/{changed.metadata.name}", document)
            switch.append(1000 * (await held - began))
            watch.append(1000 * (await arrived - began))
    ours, floor = (statistics.quantiles(milliseconds, n=100) for milliseconds in (switch, watch))
    return [figure(f"watch-{size}-p{percent}", ours[percent - 1], "ms", floor[percent - 1]) for percent in (50, 99)]


def _digest(one: EndpointSlice) -> int:
    """Its part in the name of the cluster's state: what is changed by a write can be told before."""
    store = ObjectStore(_SLICES)
    store.put(Raw(msgspec.json.encode(one)))
    return store.digest


def _new_address(changed: EndpointSlice) -> bytes:
    """That of no other write, as it is in the event."""
    *_, last = changed.endpoints or ()
    return msgspec.json.encode(last.addresses)


async def _when(awaited: Awaitable[None]) -> float:
    await awaited
    return time.perf_counter()


# ---- the floor


class _Arrivals:
    """The events of a watch, as they come: kept as they are, nothing is made of them."""

    def __init__(self) -> None:
        self._wanted = b""
        self._arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def of(self, words: bytes) -> float:
        """When the event with these words came."""
        self._wanted, self._arrived = words, asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(self._arrived, PATIENCE)
        except TimeoutError:
            raise LabError(f"a watch has not told of a write after {PATIENCE:.0f} s") from None

    async def follow(self, chunks: AsyncIterator[bytes]) -> None:
        async for lines in decoding.line_batches(chunks):
            if self._wanted and any(self._wanted in line for line in lines) and not self._arrived.done():
                self._arrived.set_result(time.perf_counter())


@asynccontextmanager
async def _watching(server: Server) -> AsyncIterator[_Arrivals]:
    """A client of the same objects that an agent asks for, from now on."""
    listed = await server.connection.request("GET", _SLICES.path, {"limit": "1"})
    parameters = {"watch": "true", "resourceVersion": decoding.page(listed).metadata.resource_version}
    arrivals = _Arrivals()
    async with server.connection.stream(_SLICES.path, {**_SLICES.selectors(states.NODE), **parameters}) as chunks:
        following = asyncio.create_task(arrivals.follow(chunks))
        try:
            yield arrivals
        finally:
            following.cancel()
            await asyncio.wait([following])


# ---- objects


def _slice_document(one: EndpointSlice) -> dict[str, object]:
    return _document("discovery.k8s.io/v1", one)


def _document(version: str, one: object) -> dict[str, object]:
    return {"apiVersion": version, **msgspec.to_builtins(one)}
