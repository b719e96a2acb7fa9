"""`windlass bench watch`: the time from a write to a real API server until the switch has confirmed the result.

One endpoint of one EndpointSlice is replaced, with many Services present. The floor is the time until a client that
does nothing but watch receives the event of the same write. Both times end in this process, which writes. The second
part does the same with Pods of other Nodes that policies select.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec import structs

from windlass.bench import service_states as states
from windlass.bench import watch_clusters, watch_policies
from windlass.bench.reports import BenchReport, Figure, percentiles, this_machine
from windlass.bench.watch_clusters import (
    AgentClient,
    APIServerClient,
    digest,
    run_concurrently,
    settled,
    time_write,
    watching,
)
from windlass.cluster.clusters import Cluster
from windlass.cluster.kinds import kinds_of
from windlass.cluster.objects import EndpointSlice
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.progress import Say

SIZES = (1_000, 10_000)  # Services
ENDPOINTS = 10  # per Service
COUNT = 500  # writes at each size
SETTLING = 3.0  # seconds in which the agent saves its state and checks it again

_SLICES = kinds_of(Cluster)["slices"]
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
_OWN = 1  # the cluster's own Service, default/kubernetes
_FIRST = 100  # the number of our first Service: the cluster itself uses the first addresses


async def run(say: Say = print) -> BenchReport:
    """Takes about ten minutes, most of them to create Services and Pods in the API server."""
    figures: list[Figure] = []
    with labs.opened() as lab:
        async with watch_clusters.standing(lab) as (server, agent):
            made = 0
            for turn, size in enumerate(SIZES):
                say(f"creating {size - made} Services with {ENDPOINTS} endpoints each in the API server")
                await _make_services(server, range(_FIRST + made, _FIRST + size))
                made = size
                await settled(server, agent)
                say(f"an agent with {size} Services: {COUNT} writes of one endpoint")
                await asyncio.sleep(SETTLING)
                figures += await _measure(server, agent, size, range(turn * COUNT, (turn + 1) * COUNT))
                await agent.serves(size + _OWN)
    return BenchReport("watch", this_machine(), (*figures, *await watch_policies.measure(say)))


async def _make_services(server: APIServerClient, numbers: Iterable[int]) -> None:
    async def make(number: int) -> None:
        pods = range(number * ENDPOINTS, (number + 1) * ENDPOINTS)
        await server.write("POST", SERVICES, _document("v1", states.service(number)))
        await server.write("POST", SLICES, _slice_document(states.endpoint_slice(number, pods)))

    await run_concurrently(map(make, numbers))


# ---- one write


async def _measure(server: APIServerClient, agent: AgentClient, size: int, writes: range) -> list[Figure]:
    """`writes` are numbers that no other call has: a write that changes nothing is no event."""
    cluster = await settled(server, agent)
    slices, revision = dict(cluster.slices), int(cluster.revision, 16)
    taken: list[tuple[float, float]] = []
    async with watching(server, _SLICES) as arrivals:
        for times in writes:
            changed = states.changed_slice(_FIRST + states.spread(times, size), ENDPOINTS, times)
            before = slices[changed.key]
            after = slices[changed.key] = structs.replace(before, endpoints=changed.endpoints)
            revision ^= digest(_SLICES, before) ^ digest(_SLICES, after)
            write = server.write("PUT", f"{SLICES}/{changed.metadata.name}", _slice_document(changed))
            taken.append(await time_write(write, agent, revision, arrivals, _new_address(after)))
    switch, watch = zip(*taken, strict=True)
    return percentiles(f"watch-{size}", switch, "ms", watch)


def _new_address(changed: EndpointSlice) -> bytes:
    """The new address as it is in the event. No other write has it."""
    *_, last = changed.endpoints or ()
    return msgspec.json.encode(last.addresses)


# ---- objects


def _slice_document(one: EndpointSlice) -> dict[str, object]:
    return _document("discovery.k8s.io/v1", one)


def _document(version: str, one: object) -> dict[str, object]:
    return {"apiVersion": version, **msgspec.to_builtins(one)}
