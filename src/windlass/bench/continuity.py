"""`windlass bench continuity`: is a client ever refused while the agent is killed, endpoints change, Services change?

Two Nodes with real Open vSwitch and real agents. Throughout, new connections go to a ClusterIP from a Pod and to a
NodePort from outside, at the rate at which other proxies were measured, beside held ones. The floor is the same load on
the same cluster while nothing happens: what a busy machine loses by itself. docs/continuity.md describes the method.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from windlass.bench import continuity_clusters as objects
from windlass.bench import lab_clusters
from windlass.bench.bridges import ofctl_output
from windlass.bench.load_generators import prefer
from windlass.bench.loaded_runs import LoadedPhase, LoadedRun, figures_of, loading, summary
from windlass.bench.loads import LoadPlan, LoadServer, LoadTarget
from windlass.bench.reports import BenchReport, Figure, figure, this_machine
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.runner.probes import ProbeRunner
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.progress import Say
from windlass.lab.scenarios.directives import ActionSpec, ProbeSource, StepAction
from windlass.lab.scenarios.objects import KubernetesObject, LabMetadata
from windlass.lab.scenarios.scenario_files import Step

PER_SECOND = 200  # new connections to each target
HELD = 4  # connections to each target
KILLS = 5
SECONDS_AFTER_A_KILL = 2.0
SECONDS_TO_CONVERGE = 180.0
SECONDS_OF_QUIET = 20.0
SECONDS_OF_CHANGES = 40.0
PACE = 1.3  # seconds between two changes
SERVICES = (1_000, 10_000)  # beside the loaded one, during the kills

CLUSTER_IP, NODE_PORT = "cluster-ip", "node-port"
BOTH = (CLUSTER_IP, NODE_PORT)

_KILL = StepAction(LabMetadata("kill"), ActionSpec(kill_agent=objects.NODE))


async def run(say: Say = print) -> BenchReport:
    """Takes about five minutes."""
    scenario = objects.scenario()
    (step,) = scenario.steps
    async with lab_clusters.standing(scenario) as cluster, loading(_plan(cluster), cluster.lab.folder) as load:
        _prefer_switches(cluster)
        await _warm_up(cluster, step)
        figures = await ContinuityBench(cluster, LoadedRun(load, BOTH, say)).figures()
    return BenchReport("continuity", this_machine(), (*figures, *summary(figures)))


def _prefer_switches(cluster: RunningCluster) -> None:
    """Schedule the switches before all else: a datapath in the kernel would not wait for a processor either."""
    for node in cluster.desired.nodes:
        pid = (cluster.lab.node_folder(node) / "ovs" / "ovs-vswitchd.pid").read_text().strip()
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # it has just ended
                prefer(int(thread.name))


async def _warm_up(cluster: RunningCluster, step: Step) -> None:
    """Sends probes, which wait longer than the load: the first packets of a tunnel wait for its neighbour entries."""
    for verdict in await ProbeRunner(cluster).send(step):
        if not verdict.passed:
            raise LabError(f"before anything was done, probe {verdict.probe} failed: {'; '.join(verdict.reasons)}")


class Resync(NamedTuple):
    """From the kill until the new agent had converged."""

    seconds: float
    cpu: float  # CPU seconds of the new agent: on a busy machine it mostly waits

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s ({self.cpu:.1f} s of a CPU)"


@dataclass(slots=True)
class ContinuityBench:
    cluster: RunningCluster
    run: LoadedRun

    async def figures(self) -> list[Figure]:
        quiet = await self._quiet()
        figures = [
            *figures_of(await self.run.phase("endpoints", self._change_endpoints()), quiet),
            *figures_of(await self.run.phase("policies", self._change_policies()), quiet),
            *figures_of(await self.run.phase("network-policies", self._change_network_policies()), quiet),
        ]
        floor: Resync | None = None  # a start with one Service
        for services in (0, *SERVICES):
            if services:
                await self._add_services(services)
                quiet = await self._quiet()
            resyncs: list[Resync] = []
            killed = await self.run.phase(f"killed-{services}", self._kill_agent(resyncs))
            self.run.say(f"  converged again after {', '.join(map(str, resyncs))}")
            typical = Resync(*map(statistics.median, zip(*resyncs, strict=True)))
            figures += figures_of(killed, quiet)
            figures.append(figure(f"killed-{services}-resync-p50", typical.seconds, "s", floor and floor.seconds))
            figures.append(figure(f"killed-{services}-resync-cpu-p50", typical.cpu, "s", floor and floor.cpu))
            floor = floor or typical
        return figures

    async def _quiet(self) -> LoadedPhase:
        return await self.run.phase("nothing happens", asyncio.sleep(SECONDS_OF_QUIET))

    async def _add_services(self, services: int) -> None:
        began = time.monotonic()
        objects.add_services(self.cluster.lab.manifests, services)
        await self._reach()
        took, flows = time.monotonic() - began, await _flow_count(self.cluster)
        if flows < services:
            raise LabError(f"the switch of {objects.NODE} holds {flows} flows, too few for {services} Services")
        self.run.say(f"{services:,} Services beside the loaded one: {flows:,} flows after {took:.1f} s")

    async def _kill_agent(self, resyncs: list[Resync]) -> None:
        for number in range(1, KILLS + 1):
            began = self.run.note(f"kill {number}")
            await self._reach(_KILL)
            resyncs.append(Resync(time.monotonic() - began, _cpu_seconds(self.cluster)))
            self.run.note(f"converged again after kill {number}")
            await asyncio.sleep(SECONDS_AFTER_A_KILL)

    async def _reach(self, *actions: StepAction) -> None:
        """Waits longer than the lab does: so many Services may take their time on a busy machine."""
        deadline = time.monotonic() + SECONDS_TO_CONVERGE
        while True:
            try:
                return await self.cluster.reach(self.cluster.desired, actions)
            except LabError:
                if time.monotonic() > deadline:
                    raise
                actions = ()  # they have been performed

    async def _change_endpoints(self) -> None:
        """Remove one of two endpoints from the slice and add it again; its server keeps running."""
        both = objects.SERVERS
        choices = cycle([both[:1], both, both[1:], both])
        async for _ in _paced():
            endpoints = next(choices)
            await self._apply(f"endpoints {' and '.join(endpoints)}", objects.endpoint_slice(endpoints))
        await self._apply("both endpoints", objects.endpoint_slice(both))

    async def _change_policies(self) -> None:
        """The ClusterIP is loaded throughout, the NodePort while the Service's type has one."""
        forms = cycle(objects.FORMS)
        async for _ in _paced():
            form = next(forms)
            if not form.has_node_port:
                await self.run.load.on([CLUSTER_IP])
            await self._apply(str(form), objects.service(form))
            if form.has_node_port:
                await self.run.load.on(BOTH)
        await self._apply("as at first", objects.service(objects.FIRST_FORM))

    async def _change_network_policies(self) -> None:
        """What the load uses stays allowed; the rules of both policies change beside it."""
        choices = cycle([(objects.TARGET_PORT, 9090), (objects.TARGET_PORT,), (443, objects.TARGET_PORT)])
        async for _ in _paced():
            ports = next(choices)
            await self._apply(f"policies allow ports {', '.join(map(str, ports))}", *objects.network_policies(*ports))
        await self._apply("policies as at first", *objects.network_policies(objects.TARGET_PORT))

    async def _apply(self, what: str, *changed: KubernetesObject) -> None:
        self.run.note(what)
        await self.cluster.reach(self.cluster.desired.after([*changed], [], []), ())
        self.run.note(f"converged: {what}")


async def _paced() -> AsyncIterator[None]:
    began = due = time.monotonic()
    while due < began + SECONDS_OF_CHANGES:
        due += PACE
        await asyncio.sleep(due - time.monotonic())
        yield


def _cpu_seconds(cluster: RunningCluster) -> float:
    """CPU time of the agent since its start."""
    configuration = f"{cluster.lab.node_folder(objects.NODE)}/windlass.yaml".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process may end meanwhile
            if configuration in (process / "cmdline").read_bytes().split(b"\0"):
                user, system = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
                return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


async def _flow_count(cluster: RunningCluster) -> int:
    bridge = cluster.lab.node_folder(objects.NODE) / "ovs" / "br-int.mgmt"
    found = re.search(r"flow_count=(\d+)", await ofctl_output("dump-aggregate", bridge))
    return int(found[1]) if found else 0


def _plan(cluster: RunningCluster) -> LoadPlan:
    inside, outside = (cluster.namespace_of(source) for source in (objects.INSIDE, objects.OUTSIDE))
    return LoadPlan(
        servers=tuple(
            LoadServer(name, cluster.namespace_of(ProbeSource(pod=f"default/{name}")), objects.TARGET_PORT)
            for name in objects.SERVERS
        ),
        targets=(
            LoadTarget(CLUSTER_IP, inside, objects.CLUSTER_IP, objects.PORT),
            LoadTarget(NODE_PORT, outside, objects.NODE_IP, objects.NODE_PORT),
        ),
        per_second=PER_SECOND,
        held=HELD,
    )
