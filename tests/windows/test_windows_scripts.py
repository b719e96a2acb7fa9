"""The scripts for Windows name what the agent expects. No PowerShell is at hand to run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.nodes.config import Config
from windlass.places import WINDOWS

SCRIPTS = Path(__file__).parents[2] / "deploy" / "windows"


def script(name: str) -> str:
    return (SCRIPTS / name).read_text()


def test_the_services_use_the_folder_in_which_the_agent_looks():
    install = script("install.ps1")
    assert "$OpenVSwitch = 'C:\\openvswitch'" in install
    assert "$run = Join-Path $OpenVSwitch 'var\\run\\openvswitch'" in install
    assert WINDOWS.ovs_run == "C:/openvswitch/var/run/openvswitch"
    assert "-DependsOn 'ovsdb-server'" in install
    assert install.count("--service --service-monitor") == 2


def test_what_is_verified_has_the_agents_names():
    verify = script("verify.ps1")
    defaults = Config(node_name="node-1")
    assert f"$Bridge = '{defaults.bridge}'" in verify
    assert f"$Gateway = '{defaults.gateway}'" in verify
    networks = (Path(__file__).parents[2] / "src/windlass/host/windows/networks.py").read_text()
    assert 'NAME = "windlass"' in networks
    assert 'EXTENSION = "583CC151-73EC-4A6A-8B47-578297AD7623"' in networks
    assert "Where-Object Name -eq 'windlass'" in verify
    assert "583CC151-73EC-4A6A-8B47-578297AD7623" in verify


@pytest.mark.parametrize("name", ["install.ps1", "verify.ps1"])
def test_brackets_and_quotes_are_balanced(name):
    """Not a parser: it finds a forgotten bracket."""
    depth = {"{": 0, "(": 0}
    closes = {"}": "{", ")": "("}
    for number, line in enumerate(script(name).splitlines(), start=1):
        code = line.split("# ")[0] if line.lstrip().startswith("#") else line
        if code.lstrip().startswith("#"):
            continue
        for character in code:
            if character in depth:
                depth[character] += 1
            elif character in closes:
                depth[closes[character]] -= 1
                assert depth[closes[character]] >= 0, f"{name}:{number}"
        assert code.replace('`"', "").count('"') % 2 == 0, f"{name}:{number}"
        assert code.count("'") % 2 == 0, f"{name}:{number}"
    assert depth == {"{": 0, "(": 0}
