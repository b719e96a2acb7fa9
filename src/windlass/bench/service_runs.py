"""What `windlass bench services` measures in a process of its own, so that nothing else is in its memory.

Each function here runs in a fresh process. What is called an event is an object that the source of the cluster's state
has decoded.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import structlog
from msgspec import Struct

from windlass.agent.agents import Agent
from windlass.agent.collector import relax
from windlass.agent.serving import Serving, unhurried
from windlass.agent.switching import Switch
from windlass.bench import bare_changes, metronomes
from windlass.bench import service_states as states
from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import EndpointSlice
from windlass.cluster.sources import ClusterChange, WatchHealth
from windlass.host.linux import namespaces
from windlass.host.linux.hosts import LinuxHost
from windlass.lab.sandbox.labs import LabError
from windlass.model.mappings import Patched
from windlass.model.nodes import NodeState
from windlass.nodes.config import Config
from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import groups as group_wire
from windlass.program import program
from windlass.switch.ovsdb import open_database

PATIENCE = 60.0  # seconds
_PRIME = 7919  # so that changes that follow one another are of Services that do not


class ColdSync(Struct, frozen=True):
    """Seconds. The parts are measured by themselves; within the whole they go on while the switch works."""

    flows: int  # that the switch then holds
    whole: float
    serving: float  # from Kubernetes' objects to Services
    working_out: float  # from Services to flows and groups
    encoding: float


class Course(Struct, frozen=True):
    """How changes come."""

    settling: float  # seconds after the start, in which the agent looks through everything once more, and saves it
    count: int
    gap: float  # seconds between those that do not wait for one another


class Changes(Struct, frozen=True):
    """Milliseconds from each event to the switch's word that packets meet what came of it."""

    start: float  # seconds until all was in the switch, and the Node ready
    alone: list[float]  # one after the other
    alone_floor: list[float]
    apart: list[float]  # each when it is its time
    apart_floor: list[float]
    rss: float  # MB, with all of it in memory
    peak: float  # the most it ever was


def cold_sync(socket: Path, services: int, endpoints: int) -> ColdSync:
    """From parsed objects to the switch's answer that it has all that comes of them."""
    _as_an_agent()
    return asyncio.run(_cold_sync(socket, services, endpoints))


def changes(config: Config, namespace: str, services: int, endpoints: int, course: Course) -> Changes:
    """A whole agent in the Node's namespace, with a source that tells of one changed EndpointSlice at a time."""
    _as_an_agent()
    with namespaces.entered(namespaces.path_of(namespace)):
        return asyncio.run(_changes(config, services, endpoints, course))


def _as_an_agent() -> None:
    relax()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


# ---- a cold sync


async def _cold_sync(socket: Path, services: int, endpoints: int) -> ColdSync:
    cluster = states.cluster(services, endpoints)
    problems: list[str] = []
    serving = Serving()
    switch = Switch(str(socket), lambda _, found: problems.extend(found), problems.append)
    gc.collect()
    async with asyncio.TaskGroup() as tasks:
        began = time.perf_counter()
        serving.hear(ClusterChange(cluster))
        await unhurried(serving.following(states.SERVING_NODE))
        served = time.perf_counter()
        state = NodeState(states.LOCAL_NODE, services=serving.services)
        await switch.hold(state, tasks)
        ended = time.perf_counter()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    if problems:
        raise LabError(f"the figures are worthless, for the switch has problems: {problems[0]}")
    return ColdSync(switch.flow_count, ended - began, served - began, *_parts(state))


def _parts(state: NodeState) -> tuple[float, float]:
    began = time.perf_counter()
    parts = [(part.flows, part.groups) for part in program(state).values()]
    worked_out = time.perf_counter()
    for flows, groups in parts:
        for flow in flows:
            flow_wire.encode(flow)
        for group in groups:
            group_wire.encode(group)
    return worked_out - began, time.perf_counter() - worked_out


# ---- one change


class _Events:
    """A source of the cluster's state that is told by hand."""

    watches: tuple[WatchHealth, ...] = ()

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._slices = Patched(cluster.slices)
        self._changes: asyncio.Queue[ClusterChange] = asyncio.Queue()

    async def changes(self) -> AsyncGenerator[ClusterChange, None]:
        yield ClusterChange(self.cluster)
        while True:
            yield await self._changes.get()

    def tell(self, changed: EndpointSlice) -> int:
        """The number of the state that the cluster is in by that."""
        number = int(self.cluster.revision) + 1
        self._slices = self._slices.patched({changed.key: changed})
        self.cluster = replace(self.cluster, revision=str(number), slices=self._slices)
        self._changes.put_nowait(ClusterChange(self.cluster, ChangeSet.of({EndpointSlice: {changed.key}})))
        return number


async def _changes(config: Config, services: int, endpoints: int, course: Course) -> Changes:
    count = course.count
    changed = [states.changed_slice(_PRIME * number % services, endpoints, number) for number in range(2 * count)]
    events = _Events(states.cluster(services, endpoints))
    async with _agent(config, events) as (agent, start):
        await asyncio.sleep(course.settling)
        alone = [await _change(agent, events, one, time.perf_counter()) for one in changed[:count]]
        apart = await _changes_apart(agent, events, changed[count:], course.gap)
        if agent.problems:
            raise LabError(f"the figures are worthless, for the agent has problems: {agent.problems}")
        rss, peak = _rss(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        messages = bare_changes.messages((group for part in agent.program.values() for group in part.groups), count)
    # Without the agent: it would look after what others do to its groups.
    alone_floor = bare_changes.alone(str(config.openflow_socket), messages)
    apart_floor = bare_changes.apart(str(config.openflow_socket), messages, course.gap)
    return Changes(start, alone, alone_floor, apart, apart_floor, rss, peak)


async def _change(agent: Agent, events: _Events, changed: EndpointSlice, began: float) -> float:
    number = events.tell(changed)
    if not await agent.status.wait_until(lambda: int(agent.status.revision) >= number, PATIENCE):
        raise LabError(f"a changed EndpointSlice is not in the switch after {PATIENCE:.0f} s: {agent.problems}")
    return 1000 * (time.perf_counter() - began)


async def _changes_apart(agent: Agent, events: _Events, changed: list[EndpointSlice], gap: float) -> list[float]:
    """They come when it is their time, whether the one before is through or not: also what had to wait is counted.

    From another process, as from an API server: an event loop's own timers are late by up to a millisecond.
    """
    loop = asyncio.get_running_loop()
    told: list[tuple[float, int]] = []  # when, and the number of the state that the cluster is in by that
    async with _metronome(len(changed), gap) as ticks:

        def hear() -> None:
            came = metronomes.read(ticks)
            for when in came:
                told.append((when, events.tell(changed[len(told)])))
            if not came:  # it has ended
                loop.remove_reader(ticks)

        loop.add_reader(ticks, hear)
        try:
            return [await _through(agent, told, number) for number in range(len(changed))]
        finally:
            loop.remove_reader(ticks)


async def _through(agent: Agent, told: list[tuple[float, int]], number: int) -> float:
    def is_so() -> bool:
        return len(told) > number and int(agent.status.revision) >= told[number][1]

    if not await agent.status.wait_until(is_so, PATIENCE):
        raise LabError(f"a changed EndpointSlice is not in the switch after {PATIENCE:.0f} s: {agent.problems}")
    return 1000 * (time.perf_counter() - told[number][0])


@asynccontextmanager
async def _metronome(count: int, gap: float) -> AsyncIterator[int]:
    """The file descriptor that its ticks can be read from."""
    ticks, theirs = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(*metronomes.command(count, gap), stdout=theirs)
    finally:
        os.close(theirs)
    try:
        yield ticks
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ticks)


@asynccontextmanager
async def _agent(config: Config, events: _Events) -> AsyncIterator[tuple[Agent, float]]:
    """An agent whose Node is ready, and after how many seconds it was."""
    host = LinuxHost(Path(config.state_directory))
    agent = Agent(config, host, events)
    began = time.perf_counter()
    async with open_database(str(config.ovsdb_socket), patience=PATIENCE) as database:
        work = asyncio.create_task(agent.serve(database))
        ready = asyncio.create_task(agent.status.wait_until(lambda: agent.status.ready, PATIENCE))
        try:
            await asyncio.wait([work, ready], return_when=asyncio.FIRST_COMPLETED)
            if not agent.status.ready:
                why = work.exception() if work.done() else f"it waits for {agent.status.waiting_for}"
                raise LabError(f"the agent does not become ready: {why}")
            yield agent, time.perf_counter() - began
        finally:
            work.cancel()
            ready.cancel()
            await asyncio.wait([work, ready])
            await host.close()


def _rss() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
