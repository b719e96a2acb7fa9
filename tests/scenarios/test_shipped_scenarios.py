"""The scenarios of the repository are valid and complete; running them needs root and Open vSwitch."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest

from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.scenario_files import Scenario
from windlass.model.nodes import TrafficMode

LEDGER = Path(__file__).with_name("probes.txt")  # every probe that the scenarios have had: its name, and a digest
FOLDER = Path(__file__).parents[2] / "scenarios"
FOUND = {found.name: found for found in scenario_files.find(FOLDER)}


def read(name: str) -> Scenario:
    return FOUND[name].read()


@pytest.mark.parametrize("name", FOUND)
def test_it_can_be_read(name):
    scenario = read(name)
    assert scenario.warnings == ()
    probes = [probe for step in scenario.steps for probe in step.probes]
    assert probes
    named = {(step.name, probe.name) for step in scenario.steps for probe in step.probes}
    assert len(named) == len(probes), "the names of a step's probes are to tell them apart"
    # A rule of Kubernetes that is in no design note has no such label.
    assert {probe.metadata.labels.get("seed") for probe in probes} <= {None, "000", "001", "002", "003", "004"}


def test_every_traffic_mode_is_tried_also_with_windows_nodes():
    tried = set()
    for name in FOUND:
        for _, desired in read(name).states():
            systems = {node.metadata.labels.get("kubernetes.io/os", "linux") for node in desired.nodes.values()}
            tried |= {(desired.traffic_mode, system) for system in systems}
    assert tried == {(mode, system) for mode in TrafficMode for system in ("linux", "windows")}


def test_the_scenario_of_the_bar_is_of_its_size():
    *_, (_, desired) = read("speed").states()
    assert (len(desired.nodes), len(desired.pods)) == (3, 12)
    assert sum(len(step.probes) for step in read("speed").steps) == 100


def test_all_scenarios_together_stay_short_enough_to_read():
    """If this fails, share what probes have in common, or use a Matrix: docs/scenarios.md."""
    assert sum(len(file.read_text().splitlines()) for file in FOLDER.rglob("*.yaml")) <= 12_000


def test_the_tour_is_short_enough_to_watch():
    assert sum(len(step.probes) for step in read("tour").steps) <= 40


def test_no_probe_is_lost():
    """A scenario may be rewritten, but its probes must stay. `make goldens` accepts an intended change."""
    now = sorted(
        {f"{probe.name} {_digest(probe)}" for name in FOUND for step in read(name).steps for probe in step.probes}
    )
    if os.environ.get("WINDLASS_UPDATE_GOLDENS"):
        LEDGER.write_text("".join(f"{line}\n" for line in now))
    assert set(LEDGER.read_text().splitlines()) - set(now) == set()


def _digest(probe):
    return blake2b(msgspec.json.encode(probe.spec, order="deterministic"), digest_size=6).hexdigest()
