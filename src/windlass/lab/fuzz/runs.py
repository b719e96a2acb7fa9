"""Runs random clusters and reports each; those that fail are kept as scenarios."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from windlass.lab.fuzz.random_scenarios import RandomScenario
from windlass.lab.orchestration.agents import Agents
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import results, runs
from windlass.lab.runner.results import ScenarioResult
from windlass.lab.sandbox.progress import Say
from windlass.lab.scenarios.scenario_files import ScenarioError, ScenarioFiles

KEEP = Path("fuzz-failures")


def run(scripts: Iterable[RandomScenario], *, keep: Path = KEEP, jobs: int = 1, json_file: Path | None = None) -> int:
    """Implements `windlass lab fuzz`, and returns the exit status. Each scenario is made when its turn comes."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    started = time.monotonic()
    nodes = Programs()
    outcome: list[ScenarioResult] = []
    try:
        ended = runs.supervised(console, nodes, _run(iter(scripts), jobs, nodes, keep, console.print, outcome))
    finally:
        if outcome:
            console.print(summary(outcome, time.monotonic() - started))
        if json_file:
            json_file.write_bytes(results.to_json(outcome))
    return ended if isinstance(ended, int) else results.status(outcome)


def summary(outcome: Iterable[ScenarioResult], seconds: float) -> str:
    seen = list(outcome)
    failed = [r.name for r in seen if r.error or not all(v.passed for v in r.verdicts)]
    verdicts = [verdict for result in seen for verdict in result.verdicts]
    clusters = f"{len(seen)} {'cluster' if len(seen) == 1 else 'clusters'}"
    whole = f"{clusters} in {seconds:.0f} s, {len(verdicts)} probes, {sum(not v.passed for v in verdicts)} failed"
    return f"{whole}; failures in {', '.join(failed)}" if failed else f"{whole}; all clusters passed"


async def _run(
    scripts: Iterator[RandomScenario], jobs: int, nodes: Programs, keep: Path, say: Say, outcome: list[ScenarioResult]
) -> Sequence[ScenarioResult]:
    """Appends to `outcome` as scenarios end, so that an interrupted run can be reported."""

    async def worker() -> None:
        for made in scripts:
            result = await _try(made, nodes)
            outcome.append(result)
            _report(made, result, keep, say)

    await asyncio.gather(*(worker() for _ in range(jobs)))
    return outcome


async def _try(made: RandomScenario, nodes: Programs) -> ScenarioResult:
    with tempfile.TemporaryDirectory(prefix="windlass-fuzz-") as folder:
        try:
            scenario = ScenarioFiles(made.name, made.write(Path(folder))).read()
        except ScenarioError as error:
            return ScenarioResult(made.name, "", 0, error=f"the generator wrote an invalid scenario: {error}")
    return await runs.run_scenario(scenario, lambda lab: Agents(lab, nodes), lambda _: None)


def _report(made: RandomScenario, result: ScenarioResult, keep: Path, say: Say) -> None:
    bad = [verdict for verdict in result.verdicts if not verdict.passed]
    judged = "could not run" if result.error else f"{len(bad)} FAILED" if bad else "passed"
    say(f"{made.title}: {made.probes} probes, steps: {len(made.parts)}, {judged} in {result.seconds:.1f} s")
    if not bad and not result.error:
        return
    for verdict in bad:
        say(f"  {verdict.step} {verdict.probe}: {'; '.join(verdict.reasons)}")
    if result.error:
        say(f"  {result.error}")
    made.write(keep / made.name)
    say(f"  kept in {keep / made.name}; reproduce with: {made.command}")
