"""The scenarios and tests in the lists of tools/test-kernel exist."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from windlass.lab.scenarios import scenario_files

REPOSITORY = Path(__file__).parents[2]
sys.path.append(str(REPOSITORY / "tools"))  # where the tool finds its modules
TOOL = runpy.run_path(str(REPOSITORY / "tools" / "test-kernel"))


@pytest.mark.parametrize("path", [path for paths in TOOL["LISTS"].values() for path in paths])
def test_each_scenario_exists(path):
    assert scenario_files.find(REPOSITORY / path)


@pytest.mark.parametrize("path", TOOL["TESTS"])
def test_each_file_of_tests_exists(path):
    assert (REPOSITORY / path).is_file()
