"""Statements of the README about the code are true."""

from __future__ import annotations

import re
from pathlib import Path

from windlass.lab.scenarios import scenario_files
from windlass.pipeline.layout import LAYOUT

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_counts_the_tables():
    assert re.findall(r"(\d+) tables", README) == [str(len(LAYOUT.tables))]


def test_it_counts_the_probes_of_the_tour():
    tour = scenario_files.find_one(ROOT / "scenarios" / "tour").read()
    assert re.findall(r"tour of (\d+) probes", README) == [str(sum(len(step.probes) for step in tour.steps))]
