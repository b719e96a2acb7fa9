"""`windlass bench continuity`: is a client ever refused while the agent dies, endpoints come and go, Services change?

Two Nodes with real Open vSwitch and real agents. All the time new connections go to a ClusterIP from a Pod and to a
NodePort from outside, at the rate at which other proxies were measured, beside held ones. The floor is the same load on
the same cluster with nothing happening: what a starved machine loses by itself. docs/continuity.md tells the method.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import structlog

from windlass.bench import continuity_clusters as objects
from windlass.bench.load_processes import LoadProcess, loading
from windlass.bench.loads import Frontend, Plan, Server, prefer
from windlass.bench.reports import Figure, Report, this_machine
from windlass.bench.tallies import Failure, Tally
from windlass.lab.orchestration.agents import Agents, Programs
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.runner import runs
from windlass.lab.runner.probes import ProbeRunner
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.processes import program
from windlass.lab.scenarios.directives import Action, ActionSpec, ProbeSource
from windlass.lab.scenarios.objects import KubernetesObject, LabMetadata
from windlass.lab.scenarios.scenario_files import Step

PER_SECOND = 200  # new connections to each frontend
HELD = 4  # connections to each frontend
KILLS = 5
SECONDS_AFTER_A_KILL = 2.0
SECONDS_TO_CONVERGE = 180.0
SECONDS_OF_QUIET = 20.0
SECONDS_OF_CHANGES = 40.0
PACE = 1.3  # seconds between two changes
SERVICES = (1_000, 10_000)  # beside the one that is asked, at the kills
FAILURES_TOLD = 20

CLUSTER_IP, NODE_PORT = "cluster-ip", "node-port"
BOTH = (CLUSTER_IP, NODE_PORT)
Say = Callable[[str], None]

_KILL = Action(LabMetadata("kill"), ActionSpec(kill_agent=objects.NODE))


def run(say: Say = print) -> Report:
    """Takes about five minutes. `say` hears of the progress."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    runs.check_machine(Programs())
    return asyncio.run(_run(say))


async def _run(say: Say) -> Report:
    scenario = objects.scenario()
    ((step, desired),) = scenario.states()
    async with runs.standing(scenario, lambda lab: Agents(lab, Programs())) as cluster:
        await cluster.reach(desired, step.actions)
        async with loading(_plan(cluster), cluster.lab.folder) as load:
            _prefer(cluster)
            await _warm_up(cluster, step)
            figures = await Bench(cluster, load, say).figures()
    return Report("continuity", this_machine(), (*figures, *summary(figures)))


def _prefer(cluster: RunningCluster) -> None:
    """The switches go before all else that runs here: a datapath in a kernel would not wait for its turn either."""
    for node in cluster.desired.nodes:
        pid = (cluster.lab.node_folder(node) / "ovs" / "ovs-vswitchd.pid").read_text().strip()
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # one that just ended
                prefer(int(thread.name))


async def _warm_up(cluster: RunningCluster, step: Step) -> None:
    """By probes that wait longer than the load does: the first packets of a tunnel wait for its neighbours."""
    for verdict in await ProbeRunner(cluster).send(step):
        if not verdict.passed:
            raise LabError(f"before anything was done, {verdict.probe}: {'; '.join(verdict.reasons)}")


# What is said of it -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time under load, with what was done to the cluster meanwhile."""

    name: str
    seconds: float
    tally: Tally
    events: tuple[tuple[float, str], ...] = ()  # by the monotonic clock


class Resync(NamedTuple):
    """From the kill until the new agent had converged."""

    seconds: float
    cpu: float  # seconds that the new agent ran: on a busy machine it mostly waits

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s (it ran {self.cpu:.1f} s)"


def figures_of(stretch: Stretch, quiet: Stretch) -> list[Figure]:
    """Beside what was lost while nothing happened."""
    ours, floor = stretch.tally, quiet.tally
    return [
        _figure(f"{stretch.name}-attempted", ours.attempted, "connections"),
        _figure(f"{stretch.name}-failed", len(ours.failures), "connections", len(floor.failures)),
        _figure(f"{stretch.name}-longest-wait", 1000 * ours.longest_wait, "ms", 1000 * floor.longest_wait),
        _figure(f"{stretch.name}-held-broken", len(ours.broken), "connections", len(floor.broken)),
        _figure(f"{stretch.name}-held-longest-gap", 1000 * ours.longest_gap, "ms", 1000 * floor.longest_gap),
    ]


def summary(figures: Sequence[Figure]) -> list[Figure]:
    """The worst of all stretches."""
    gaps = [figure for figure in figures if figure.name.endswith("-held-longest-gap")]
    failed = [figure for figure in figures if figure.name.endswith("-failed")]
    return [
        _figure("failed", sum(each.value for each in failed), "connections", sum(each.floor or 0 for each in failed)),
        _figure("held-longest-gap", max(each.value for each in gaps), "ms", max(each.floor or 0 for each in gaps)),
    ]


def sentences(stretch: Stretch) -> Iterator[str]:
    tally = stretch.tally
    answered = ", ".join(f"{who} {count}" for who, count in sorted(tally.answered.items()))
    yield (
        f"{stretch.name}: {len(tally.failures)} of {tally.attempted} new connections failed in {stretch.seconds:.0f} s "
        f"(longest wait {1000 * tally.longest_wait:.0f} ms; {answered}); {len(tally.broken)} held ones broke "
        f"(longest gap {1000 * tally.longest_gap:.0f} ms); the load was late by {1000 * tally.longest_lag:.0f} ms"
    )
    failures = (*tally.broken, *tally.failures)  # the fewer first: not all are told
    yield from (f"  {_sentence(failure, stretch)}" for failure in failures[:FAILURES_TOLD])
    if len(failures) > FAILURES_TOLD:
        yield f"  and {len(failures) - FAILURES_TOLD} more"


def _sentence(failure: Failure, stretch: Stretch) -> str:
    """With the last thing that was done before it began: the likely reason."""
    at, what = max((event for event in stretch.events if event[0] <= failure.began), default=(0.0, ""))
    after = f"; it began {failure.began - at:.3f} s after: {what}" if what else ""
    return (
        f"{failure.frontend} from port {failure.port}: {failure.what} "
        f"after {failure.ended - failure.began:.3f} s{after}"
    )


def _figure(name: str, value: float, unit: str, floor: float | None = None) -> Figure:
    """A ratio to a floor of nothing would say nothing."""
    ratio = round(value / floor, 3) if floor else None
    return Figure(name, round(value, 3), unit, None if floor is None else round(floor, 3), ratio)


# What is done -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Bench:
    cluster: RunningCluster
    load: LoadProcess
    say: Say
    events: list[tuple[float, str]] = field(default_factory=list)

    async def figures(self) -> list[Figure]:
        quiet = await self._quiet()
        figures = [
            *figures_of(await self._under_load("endpoints", self._endpoints()), quiet),
            *figures_of(await self._under_load("policies", self._policies()), quiet),
        ]
        floor: Resync | None = None  # what a start takes with one Service to look after
        for services in (0, *SERVICES):
            if services:
                await self._fill(services)
                quiet = await self._quiet()
            resyncs: list[Resync] = []
            killed = await self._under_load(f"killed-{services}", self._kills(resyncs))
            self.say(f"  converged again after {', '.join(map(str, resyncs))}")
            typical = Resync(*map(statistics.median, zip(*resyncs, strict=True)))
            figures += figures_of(killed, quiet)
            figures.append(_figure(f"killed-{services}-resync-p50", typical.seconds, "s", floor and floor.seconds))
            figures.append(_figure(f"killed-{services}-resync-cpu-p50", typical.cpu, "s", floor and floor.cpu))
            floor = floor or typical
        return figures

    async def _quiet(self) -> Stretch:
        return await self._under_load("nothing happens", asyncio.sleep(SECONDS_OF_QUIET))

    async def _fill(self, services: int) -> None:
        began = time.monotonic()
        objects.add_fillers(self.cluster.lab.manifests, services)
        await self._reach()
        took, flows = time.monotonic() - began, await _flow_count(self.cluster)
        if flows < services:
            raise LabError(f"the switch of {objects.NODE} holds {flows} flows, too few for {services} Services")
        self.say(f"{services:,} Services beside the one that is asked: {flows:,} flows after {took:.1f} s")

    async def _kills(self, resyncs: list[Resync]) -> None:
        for number in range(1, KILLS + 1):
            began = self._note(f"kill {number}")
            await self._reach(_KILL)
            resyncs.append(Resync(time.monotonic() - began, _cpu_seconds(self.cluster)))
            self._note(f"converged again after kill {number}")
            await asyncio.sleep(SECONDS_AFTER_A_KILL)

    async def _reach(self, *actions: Action) -> None:
        """The lab's patience is for scenarios: so many Services may take longer on a machine that is busy."""
        deadline = time.monotonic() + SECONDS_TO_CONVERGE
        while True:
            try:
                return await self.cluster.reach(self.cluster.desired, actions)
            except LabError:
                if time.monotonic() > deadline:
                    raise
                actions = ()  # they are done

    async def _endpoints(self) -> None:
        """One of two is taken out of the slice and put back; its server goes on serving."""
        both = objects.SERVERS
        rest = cycle([both[:1], both, both[1:], both])
        async for _ in _paced():
            left = next(rest)
            await self._apply(f"endpoints {' and '.join(left)}", objects.endpoint_slice(left))
        await self._apply("both endpoints", objects.endpoint_slice(both))

    async def _policies(self) -> None:
        """The ClusterIP is asked all the time, the NodePort as long as the Service's type has one."""
        turns = cycle(objects.TURNS)
        async for _ in _paced():
            turn = next(turns)
            if not turn.has_node_port:
                await self.load.on([CLUSTER_IP])
            await self._apply(str(turn), objects.service(turn))
            if turn.has_node_port:
                await self.load.on(BOTH)
        await self._apply("as at first", objects.service(objects.AT_FIRST))

    async def _under_load(self, name: str, doing: Awaitable[None]) -> Stretch:
        self.events.clear()
        began = time.monotonic()
        await self.load.on(BOTH)
        await doing
        tally = await self.load.off()
        stretch = Stretch(name, time.monotonic() - began, tally, tuple(self.events))
        for sentence in sentences(stretch):
            self.say(sentence)
        return stretch

    async def _apply(self, what: str, changed: KubernetesObject) -> None:
        self._note(what)
        await self.cluster.reach(self.cluster.desired.after([changed], [], []), ())
        self._note(f"converged: {what}")

    def _note(self, what: str) -> float:
        now = time.monotonic()
        self.events.append((now, what))
        return now


async def _paced() -> AsyncIterator[None]:
    began = due = time.monotonic()
    while due < began + SECONDS_OF_CHANGES:
        due += PACE
        await asyncio.sleep(due - time.monotonic())
        yield


def _cpu_seconds(cluster: RunningCluster) -> float:
    """What the agent has used since its start."""
    configuration = f"{cluster.lab.node_folder(objects.NODE)}/windlass.yaml".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end while we look
            if configuration in (process / "cmdline").read_bytes().split(b"\0"):
                user, system = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
                return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


async def _flow_count(cluster: RunningCluster) -> int:
    bridge = f"unix:{cluster.lab.node_folder(objects.NODE)}/ovs/br-int.mgmt"
    process = await asyncio.create_subprocess_exec(
        *(program("ovs-ofctl"), "-O", "OpenFlow15", "dump-aggregate", bridge), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    found = re.search(rb"flow_count=(\d+)", said)
    return int(found[1]) if found else 0


def _plan(cluster: RunningCluster) -> Plan:
    inside, outside = (cluster.namespace_of(source) for source in (objects.INSIDE, objects.OUTSIDE))
    return Plan(
        servers=tuple(
            Server(name, cluster.namespace_of(ProbeSource(pod=f"default/{name}")), objects.TARGET_PORT)
            for name in objects.SERVERS
        ),
        frontends=(
            Frontend(CLUSTER_IP, inside, objects.CLUSTER_IP, objects.PORT),
            Frontend(NODE_PORT, outside, objects.NODE_IP, objects.NODE_PORT),
        ),
        per_second=PER_SECOND,
        held=HELD,
    )
