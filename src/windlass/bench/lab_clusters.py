"""A lab's cluster with real agents for a benchmark, from manifests in a string."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from windlass.lab.orchestration.agents import Agents
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import runs
from windlass.lab.scenarios.scenario_files import Scenario, ScenarioFiles


def scenario_of(name: str, manifests: str) -> Scenario:
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.yaml"
        file.write_text(manifests)
        return ScenarioFiles(name, (file,)).read()


def standing(scenario: Scenario) -> AbstractAsyncContextManager[RunningCluster]:
    """The cluster after all steps of the scenario."""
    return runs.at_last_step(scenario, lambda lab: Agents(lab, Programs()))
