"""Starts the cluster of a scenario, and follows one connection of each probe that a page shows."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from case_pages.marks import Case
from windlass.cli.render import state_of
from windlass.lab.orchestration.agents import Agents
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import runs
from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.desired_states import DesiredState
from windlass.lab.scenarios.objects import KubernetesObject, LabPod
from windlass.lab.scenarios.scenario_files import Scenario
from windlass.lab.tracing import journeys
from windlass.lab.tracing.journeys import Journey


@dataclass(frozen=True, slots=True)
class Travelled:
    journey: Journey
    desired: DesiredState
    addresses: Mapping[str, str]  # the first of each Pod


def travel(root: Path, cases: Iterable[Case], say: Callable[[str], None]) -> dict[Case, Travelled]:
    """One cluster for all cases of a scenario."""
    found: dict[Case, Travelled] = {}
    by_scenario: dict[str, list[Case]] = {}
    for case in dict.fromkeys(cases):
        by_scenario.setdefault(case.scenario, []).append(case)
    for scenario, own in by_scenario.items():
        say(f"{scenario}: {len(own)} cases")
        found |= asyncio.run(_travel(root / scenario, own))
    return found


async def _travel(folder: Path, cases: Iterable[Case]) -> dict[Case, Travelled]:
    scenario = pinned(scenario_files.find_one(folder).read())
    probes = {(step.name, probe.name): probe for step in scenario.steps for probe in step.probes}
    found: dict[Case, Travelled] = {}
    async with runs.at_last_step(scenario, lambda lab: Agents(lab, Programs())) as cluster:
        addresses = {key: str(own[0]) for key, own in cluster.addresses.items()}
        for case in cases:
            journey = await journeys.follow(cluster, probes[case.step, case.probe])
            found[case] = Travelled(journey, cluster.desired, addresses)
    return found


def pinned(scenario: Scenario) -> Scenario:
    """With fixed addresses for all Pods, as in `windlass render`; otherwise they depend on the order of starts."""
    *_, (_, desired) = scenario.states()
    addresses = {
        pod.key: [{"ip": str(address)} for address in pod.addresses]
        for node in desired.nodes
        for pod in state_of(desired, node).pods.values()
    }

    def fixed(one: KubernetesObject) -> KubernetesObject:
        if not isinstance(one.view, LabPod) or one.key not in addresses:
            return one
        raw = {**one.raw, "status": {"podIPs": addresses[one.key]}}
        return dataclasses.replace(one, raw=raw, view=msgspec.convert(raw, LabPod))

    steps = (dataclasses.replace(step, objects=tuple(map(fixed, step.objects))) for step in scenario.steps)
    return dataclasses.replace(scenario, steps=tuple(steps))
