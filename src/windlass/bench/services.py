"""`windlass bench services`: 10,000 Services into a switch, and one endpoint of them changed.

The floor of the first is `ovs-ofctl` loading the same flows and groups from text files, which somebody must have made
before. The second is measured with a whole agent on a Node of its own; each change is one EndpointSlice. Its floor is
the message that comes of it, encoded beforehand, over a bare socket: what the switch and the machine take themselves.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from ipaddress import ip_interface
from typing import ParamSpec, TypeVar

from windlass.agent.serving import Serving
from windlass.bench import bridges, service_runs
from windlass.bench import service_states as states
from windlass.bench.reports import Figure, Report, figure, this_machine
from windlass.bench.service_runs import Changes, ColdSync, Course
from windlass.cluster.sources import ClusterChange
from windlass.lab.network import ovs
from windlass.lab.network.underlays import Underlay
from windlass.lab.sandbox import labs
from windlass.lab.scenarios.segments import UPLINK, Machine, Nic, segments
from windlass.model.nodes import NodeState
from windlass.nodes.config import Config, DatapathType
from windlass.program import Program, program

MANY, FEW = 10_000, 100  # Services
ENDPOINTS = 10  # of a Service
ROUNDS = 5
COURSE = Course(settling=3.0, count=1000, gap=0.005)

P = ParamSpec("P")
R = TypeVar("R")


def run(say: Callable[[str], None] = print) -> Report:
    """Takes about two minutes. `say` hears of the progress."""
    return asyncio.run(_run(say))


async def _run(say: Callable[[str], None]) -> Report:
    many = await _changes(say, MANY)
    few = await _changes(say, FEW)
    return Report(
        "services",
        this_machine(),
        (
            *await _cold_sync(say),
            figure(f"agent-start-{MANY}x{ENDPOINTS}", many.start, "s"),
            *_percentiles(f"one-change-{MANY}", many.alone, many.alone_floor),
            *_percentiles(f"one-change-{MANY}-5ms-apart", many.apart, many.apart_floor),
            *_percentiles(f"one-change-{FEW}", few.alone, few.alone_floor),
            *_percentiles(f"one-change-{FEW}-5ms-apart", few.apart, few.apart_floor),
            figure("rss", many.rss, "MB"),
            figure("rss-peak", many.peak, "MB"),
        ),
    )


# ---- a cold sync


async def _cold_sync(say: Callable[[str], None]) -> list[Figure]:
    """Ours and the floor take turns, so that what disturbs the machine disturbs both."""
    desired = _program(MANY)
    flows = sum(len(part.flows) for part in desired.values())
    ours: list[ColdSync] = []
    with labs.opened() as lab:
        floor = bridges.floor(desired, lab.folder)
        async with bridges.empty_bridge(lab) as socket:
            for turn in range(1, ROUNDS + 1):
                theirs = await floor.measure(socket)
                await bridges.empty(socket)
                ours.append(await _in_a_process(service_runs.cold_sync, socket, MANY, ENDPOINTS))
                if ours[-1].flows != flows:
                    raise labs.LabError(
                        f"the figures are worthless: the switch holds {ours[-1].flows} flows of {flows}"
                    )
                say(f"{MANY} Services, round {turn} of {ROUNDS}: {ours[-1].whole:.2f} s; {theirs}")
    return [
        figure(
            f"cold-sync-{MANY}x{ENDPOINTS}",
            statistics.median(one.whole for one in ours),
            "s",
            statistics.median(floor.seconds),
        ),
        figure("cold-sync-serving", statistics.median(one.serving for one in ours), "s"),
        figure("cold-sync-working-out", statistics.median(one.working_out for one in ours), "s"),
        figure("cold-sync-encoding", statistics.median(one.encoding for one in ours), "s"),
        figure("flows", flows, "flows"),
        figure("groups", sum(len(part.groups) for part in desired.values()), "groups"),
    ]


def _program(services: int) -> Program:
    serving = Serving()
    serving.hear(ClusterChange(states.cluster(services, ENDPOINTS)))
    for _ in serving.following(states.SERVING_NODE):
        pass
    return program(NodeState(states.LOCAL_NODE, services=serving.services))


# ---- one change


async def _changes(say: Callable[[str], None], services: int) -> Changes:
    machine = Machine("node", states.NODE, (Nic(UPLINK, (ip_interface(f"{states.NODE_IP}/24"),)),))
    with labs.opened() as lab:
        underlay = Underlay(lab, segments([machine]))
        await asyncio.to_thread(underlay.create)
        namespace = await asyncio.to_thread(underlay.plug, machine)
        folder = lab.node_folder(states.NODE)
        switch = ovs.SwitchProcesses(states.NODE, namespace, folder / "ovs")
        config = Config(
            node_name=states.NODE,
            datapath_type=DatapathType(ovs.datapath_type()),
            run_directory=str(folder),
            state_directory=str(folder / "state"),
            ovs_run_directory=str(switch.folder),
        )
        say(f"an agent with {services} Services, and {2 * COURSE.count} changes of one endpoint")
        try:
            await switch.start()
            return await _in_a_process(service_runs.changes, config, namespace, services, ENDPOINTS, COURSE)
        finally:
            await switch.end()


def _percentiles(name: str, milliseconds: list[float], floor: list[float]) -> list[Figure]:
    ours, theirs = statistics.quantiles(milliseconds, n=100), statistics.quantiles(floor, n=100)
    return [figure(f"{name}-p{n}", ours[n - 1], "ms", theirs[n - 1]) for n in (50, 99)]


async def _in_a_process(work: Callable[P, R], *arguments: P.args, **_: P.kwargs) -> R:
    """In a fresh one, which is gone afterwards."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as processes:
        return await asyncio.get_running_loop().run_in_executor(processes, work, *arguments)
