"""The scripts for Windows name what the agent expects. PowerShell itself does not run here: a parser reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_powershell

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


def syntax_errors(text: str) -> list[str]:
    """The parser has no run-time checks: it knows the language, not the commands and their parameters."""
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))
    found, nodes = [], [parser.parse(text.encode()).root_node]
    while nodes:
        node = nodes.pop()
        if node.is_error or node.is_missing:
            found.append(f"line {node.start_point.row + 1}: {(node.text or b'').decode()[:60]!r}")
        nodes.extend(node.children)
    return found


@pytest.mark.parametrize("name", ["install.ps1", "verify.ps1"])
def test_the_script_has_no_syntax_error(name):
    assert syntax_errors(script(name)) == []


@pytest.mark.parametrize("removed", ["{\n", "'", "(-not "])
def test_a_damaged_script_has_syntax_errors(removed):
    """So that a parser that accepts everything is noticed."""
    text = script("install.ps1") + script("verify.ps1").partition(")\n")[2]
    assert syntax_errors(text) == []
    assert removed in text
    assert syntax_errors(text.replace(removed, "", 1)) != []
