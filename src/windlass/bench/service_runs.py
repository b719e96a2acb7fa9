"""The measurements of `windlass bench services`. Each runs in a new process, so that nothing else is in its memory.

An event is an object that the source of the cluster's state has decoded.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from windlass.agent.agents import Agent
from windlass.agent.serving import Serving
from windlass.agent.slices import run_in_slices
from windlass.agent.switching import ProgrammedSwitch
from windlass.bench import agent_runs, bare_agents, bare_changes, metronomes
from windlass.bench import service_states as states
from windlass.bench.bare_agents import TIMEOUT, Events
from windlass.cluster.objects import EndpointSlice
from windlass.cluster.sources import ClusterChange
from windlass.host.linux import namespaces
from windlass.lab.sandbox.labs import LabError
from windlass.model.nodes import NodeState
from windlass.nodes.config import Config
from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import groups as group_wire
from windlass.program import program


class ServiceColdSync(Struct, frozen=True):
    """Seconds. The parts are measured separately; in the whole they overlap with the work of the switch."""

    flows: int  # that the switch holds afterwards
    whole: float
    serving: float  # from Kubernetes' objects to Services
    working_out: float  # from Services to flows and groups
    encoding: float


class ServiceChangePlan(Struct, frozen=True):
    """The timing of changes."""

    settling: float  # seconds after the start in which the agent checks everything again, and saves its state
    count: int
    gap: float  # seconds between changes that do not wait for one another


class ServiceChangeTimes(Struct, frozen=True):
    """Milliseconds from each event until the switch has confirmed the result."""

    start: float  # seconds until everything was in the switch and the Node was ready
    alone: list[float]  # one after the other
    alone_floor: list[float]
    apart: list[float]  # each at its time, also if the one before is not done
    apart_floor: list[float]
    rss: float  # MB, with all Services
    peak: float  # MB, the maximum


def cold_sync(socket: Path, services: int, endpoints: int) -> ServiceColdSync:
    """From decoded objects until the switch has confirmed all flows and groups."""
    bare_agents.configure_process()
    return asyncio.run(_cold_sync(socket, services, endpoints))


def changes(
    config: Config, namespace: str, services: int, endpoints: int, plan: ServiceChangePlan
) -> ServiceChangeTimes:
    """A whole agent in the Node's namespace, with a source that reports one changed EndpointSlice at a time."""
    bare_agents.configure_process()
    with namespaces.entered(namespaces.path_of(namespace)):
        return asyncio.run(_changes(config, services, endpoints, plan))


# ---- a cold sync


async def _cold_sync(socket: Path, services: int, endpoints: int) -> ServiceColdSync:
    cluster = states.cluster(services, endpoints)
    problems: list[object] = []
    serving = Serving()
    switch = ProgrammedSwitch(str(socket), lambda _, found: problems.extend(found), problems.append)
    gc.collect()
    async with asyncio.TaskGroup() as tasks:
        began = time.perf_counter()
        await run_in_slices(serving.following(ClusterChange(cluster), states.SERVING_NODE))
        served = time.perf_counter()
        state = NodeState(states.LOCAL_NODE, services=serving.services)
        switch.update(state, ())
        await switch.start(tasks)
        ended = time.perf_counter()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    if problems:
        raise LabError(f"the figures are invalid, because the switch has problems: {problems[0]}")
    return ServiceColdSync(switch.flow_count, ended - began, served - began, *_parts(state))


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


async def _changes(config: Config, services: int, endpoints: int, plan: ServiceChangePlan) -> ServiceChangeTimes:
    count = plan.count
    changed = [states.changed_slice(states.spread(number, services), endpoints, number) for number in range(2 * count)]
    events = Events(states.cluster(services, endpoints))
    async with agent_runs.running(config, events) as (agent, start):
        await asyncio.sleep(plan.settling)
        alone = [
            await bare_agents.milliseconds_of_change(agent, events, "slices", {one.key: one}) for one in changed[:count]
        ]
        apart = await _changes_apart(agent, events, changed[count:], plan.gap)
        if agent.view.problems:
            raise LabError(f"the figures are invalid, because the agent has problems: {agent.view.problems}")
        rss, peak = agent_runs.rss(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        messages = bare_changes.messages(
            (group for part in agent.view.switch.program.values() for group in part.groups), count
        )
    # After the agent has ended: it would revert changes to its groups.
    alone_floor = bare_changes.alone(str(config.openflow_socket), messages)
    apart_floor = bare_changes.apart(str(config.openflow_socket), messages, plan.gap)
    return ServiceChangeTimes(start, alone, alone_floor, apart, apart_floor, rss, peak)


def _publish(events: Events, changed: EndpointSlice) -> int:
    return events.publish("slices", {changed.key: changed})


async def _changes_apart(agent: Agent, events: Events, changed: list[EndpointSlice], gap: float) -> list[float]:
    """Each starts at its time, also if the one before is not done, so that the time in the queue counts.

    The times come from another process, as from an API server: timers of this event loop are up to a millisecond late.
    """
    loop = asyncio.get_running_loop()
    published: list[tuple[float, int]] = []  # the time, and the revision of the cluster
    async with _metronome(len(changed), gap) as ticks:

        def on_ticks() -> None:
            times = metronomes.read(ticks)
            for when in times:
                published.append((when, _publish(events, changed[len(published)])))
            if not times:  # it has ended
                loop.remove_reader(ticks)

        loop.add_reader(ticks, on_ticks)
        try:
            return [await _confirmed(agent, published, number) for number in range(len(changed))]
        finally:
            loop.remove_reader(ticks)


async def _confirmed(agent: Agent, published: list[tuple[float, int]], number: int) -> float:
    def is_confirmed() -> bool:
        return len(published) > number and int(agent.status.revision) >= published[number][1]

    if not await agent.status.wait_until(is_confirmed, TIMEOUT):
        raise LabError(f"a changed EndpointSlice is not in the switch after {TIMEOUT:.0f} s: {agent.view.problems}")
    return 1000 * (time.perf_counter() - published[number][0])


@asynccontextmanager
async def _metronome(count: int, gap: float) -> AsyncIterator[int]:
    """Yields the file descriptor of its ticks."""
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
