"""The commands that README and docs show, run on this machine and in a lab (see tests/shown_commands.py)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shown_commands import ALONE, ROOT, WITH_A_LAB, run
from switches import requires_ovs


@requires_ovs
@pytest.mark.parametrize("command", ALONE)
def test_a_command_works(command: str, tmp_path: Path):
    writes = "--write" in command
    assert run(command, tmp_path if writes else ROOT).strip()


@requires_ovs
def test_commands_with_a_lab_work():
    """They get `--lab`, because other labs may run on this machine, and `preflight` the configuration of the Node."""
    up, look, preflight, down = WITH_A_LAB
    lab = re.findall(r"lab (\w+) is up", run(up))[0]
    inside = f"windlass lab exec --lab {lab} node-1"
    try:
        assert "cookie=" in run(look.replace("windlass lab exec node-1", inside))
        checked = run(f"{inside} {preflight} --config /run/windlass-lab/{lab}/node-1/windlass.yaml", expected=(0, 1))
        assert "is the uplink of br-int" in checked
    finally:
        assert "is removed" in run(f"{down} {lab}")
