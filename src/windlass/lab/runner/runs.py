"""Runs scenarios from start to cleanup: reads them, brings each cluster up, sends its probes, reports the verdicts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console

from windlass.lab.control.publishers import ManifestFolder, Publisher
from windlass.lab.network import ovs
from windlass.lab.orchestration.agents import Agents
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.probing.verdicts import ProbeVerdict
from windlass.lab.runner import results
from windlass.lab.runner.probes import ProbeRunner
from windlass.lab.runner.results import ScenarioResult
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.sandbox.processes import program
from windlass.lab.sandbox.progress import Say
from windlass.lab.scenarios import scenario_files, segments
from windlass.lab.scenarios.scenario_files import Scenario, ScenarioError

FabricOf = Callable[[Lab], Agents]
PublisherOf = Callable[[Lab], Publisher]
INTERRUPTED = 130  # the exit status that shells use
WIDTH_OF_A_FILE = 160


# The implementations of the dataplane, by their names in `windlass lab run --dataplane`.
FABRICS: dict[str, type[Agents]] = {"auto": Agents, "ovs": Agents}


def run(
    paths: Sequence[Path],
    *,
    json_file: Path | None = None,
    programs: Programs | None = None,
    jobs: int = 1,
    fabric: type[Agents] = Agents,
    publisher_of: PublisherOf = ManifestFolder,
) -> int:
    """Implements `windlass lab run`: prints progress and results, and returns the exit status."""
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
    nodes = programs or Programs()
    started = time.monotonic()
    fabric_of: FabricOf = lambda lab: fabric(lab, nodes, publisher_of(lab))  # noqa: E731 - one, for all scenarios
    outcome = supervised(console, nodes, _run(paths, fabric_of, console.print, jobs))
    if isinstance(outcome, int):
        return outcome
    console.print(results.table(outcome))
    for line in results.failed(outcome):
        console.print(line, soft_wrap=True)
    console.print(f"{results.summary(outcome)} in {time.monotonic() - started:.1f} s")
    if json_file:
        json_file.write_bytes(results.to_json(outcome))
    return results.status(outcome)


def supervised(
    console: Console, nodes: Programs, job: Coroutine[None, None, Sequence[ScenarioResult]]
) -> Sequence[ScenarioResult] | int:
    """Runs the job. Returns an exit status instead if this machine cannot run it, or if it is interrupted."""
    try:
        check_machine(nodes)
        console.print(f"Nodes use {ovs.datapath_in_words()}.")
        return asyncio.run(interruptible(job))
    except LabError as error:
        console.print(str(error), style="bold red")
        return results.TROUBLE
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; everything was cleaned up")
        return INTERRUPTED
    finally:
        job.close()


async def run_scenario(scenario: Scenario, fabric_of: FabricOf, say: Say) -> ScenarioResult:
    """Runs one scenario in its own lab."""
    started = time.monotonic()
    verdicts: list[ProbeVerdict] = []
    error = dataplane = ""
    try:
        async with empty_cluster(scenario, fabric_of) as cluster:
            dataplane = cluster.fabric.dataplane
            rounds = ProbeRunner(cluster)
            try:
                for step, desired in scenario.states():
                    await cluster.reach(desired, step.actions)
                    say(f"  {scenario.name}: {step.name} is ready after {time.monotonic() - started:.1f} s")
                    verdicts += await rounds.send(step)
            finally:
                verdicts += await rounds.end()
    except LabError as trouble:
        error = str(trouble)
    declared = [(step.name, probe.name) for step in scenario.steps for probe in step.probes]
    verdicts.sort(key=lambda verdict: declared.index((verdict.step, verdict.probe)))
    return ScenarioResult(scenario.name, dataplane, time.monotonic() - started, tuple(verdicts), error)


@asynccontextmanager
async def empty_cluster(scenario: Scenario, fabric_of: FabricOf) -> AsyncIterator[RunningCluster]:
    """An empty cluster in its own lab, with network segments for all machines of all steps of the scenario."""
    machines = dict.fromkeys(machine for _, desired in scenario.states() for machine in segments.machines(desired))
    with labs.opened() as lab:
        cluster = RunningCluster(lab, fabric_of(lab), machines)
        try:
            await cluster.start()
            yield cluster
        finally:
            await cluster.end()


@asynccontextmanager
async def at_last_step(scenario: Scenario, fabric_of: FabricOf) -> AsyncIterator[RunningCluster]:
    """A cluster that went through all steps of the scenario, without sending its probes."""
    async with empty_cluster(scenario, fabric_of) as cluster:
        for step, desired in scenario.states():
            await cluster.reach(desired, step.actions)
        yield cluster


def read(paths: Sequence[Path]) -> Iterator[Scenario | ScenarioResult]:
    """Every scenario below the paths, or a result with the error if it cannot be read."""
    for path in paths:
        try:
            found = scenario_files.find(path)
        except ScenarioError as error:
            yield ScenarioResult(str(path), "", 0, error=str(error))
            continue
        for one in found:
            try:
                yield one.read()
            except ScenarioError as error:
                yield ScenarioResult(one.name, "", 0, error=str(error))


def check_machine(programs: Programs) -> None:
    """Raises LabError if this machine cannot run a lab."""
    if os.geteuid() != 0:
        raise LabError("the lab creates network namespaces, which needs root: run it with sudo")
    if not Path("/proc/sys/net/ipv6").exists():
        raise LabError("IPv6 is disabled in this kernel, and the lab needs it: boot without ipv6.disable=1")
    for name in ("ovsdb-server", "ovs-vswitchd", "ovsdb-tool", "nsenter", "setpriv"):
        program(name)
    if not programs.cni.exists():
        raise LabError(f"{programs.cni}: the CNI plugin does not exist; `make setup` builds it")
    if programs.windows:
        programs.windows.check()


async def interruptible(job: Coroutine[None, None, Sequence[ScenarioResult]]) -> Sequence[ScenarioResult]:
    """Makes SIGTERM cancel the job, as Ctrl-C does."""
    task = asyncio.ensure_future(job)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


async def _run(paths: Sequence[Path], fabric_of: FabricOf, say: Say, jobs: int) -> Sequence[ScenarioResult]:
    slots = asyncio.Semaphore(jobs)

    async def one(scenario: Scenario | ScenarioResult) -> ScenarioResult:
        if isinstance(scenario, ScenarioResult):
            return scenario
        async with slots:
            say(scenario.name)
            for warning in scenario.warnings:
                say(f"  {scenario.name}: warning: {warning}")
            return await run_scenario(scenario, fabric_of, say)

    return await asyncio.gather(*map(one, read(paths)))
