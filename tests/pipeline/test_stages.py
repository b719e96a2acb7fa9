"""A table can be added to any stage of the pipeline: the flows of its neighbours follow, and no module changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from windlass.pipeline.layout import LAYOUT


class Report(msgspec.Struct):
    wrong: list[str]
    next_tables: dict[int, set[int]]


@pytest.fixture(scope="module")
def report() -> Report:
    """From a process of its own, because tables are declared at import."""
    script = Path(__file__).with_name("pipeline_with_more_tables.py")
    # Windows' embeddable Python does not add the script's folder itself.
    paths = os.pathsep.join(filter(None, (str(script.parent), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    ran = subprocess.run([sys.executable, script], check=True, capture_output=True, timeout=120, env=environment)
    return msgspec.json.decode(ran.stdout, type=Report)


def test_no_flow_names_a_table_of_another_stage(report: Report):
    """It would bypass the new table at the beginning of that stage, and so lead where its table does not declare."""
    assert report.wrong == []


def test_policy_tables_come_between_routing_and_commit(report: Report):
    """The main path: what leads onward from the last table of each look-up is the same as from the first."""
    aside = {76, 78, 91, 93, 100}
    path = [70]
    while path[-1] != 110:
        (following,) = report.next_tables[path[-1]] - aside
        path.append(following)
    assert path == [70, 71, 74, 75, 80, 89, 90, 94, 103, 104, 105, 106, 109, 110]


def test_packets_enter_a_stage_by_its_new_first_table(report: Report):
    assert report.next_tables[0] == {5, 9, 20, 24}
    assert report.next_tables[31] == {40, 60, 69}
    assert report.next_tables[40] == {41}


def test_a_new_table_between_two_of_a_stage_is_not_bypassed(report: Report):
    assert report.next_tables[25] == {26, 28, 69}
    assert report.next_tables[28] == {30}


def test_the_stages_are_those_that_the_docs_name():
    main = ["classify", "spoof guard", "conntrack", "service", "route"]
    main += ["egress policy", "ingress policy", "commit", "output"]
    beside = {"neighbours", "SCTP ports", "policy denials"}
    assert [stage.name for stage in LAYOUT.stages if stage.name not in beside] == main
