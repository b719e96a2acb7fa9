"""The commands run, up, status, exec and down, with scenarios of hosts only, which need no Open vSwitch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from labnet import needs_root

from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import persistent_labs, runs
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.wine.wine_machines import WindowsPrograms

pytestmark = needs_root

HOSTS = """
{kind: ExternalHost, metadata: {name: left}, spec: {addresses: [10.5.0.5]}}
---
{kind: ExternalHost, metadata: {name: right}, spec: {addresses: [10.6.0.6], ports: [{port: 80}]}}
---
"""
PROBE = """
kind: Probe
metadata: {name: NAME}
spec: {from: {externalHost: left}, to: {address: 10.6.0.6, port: PORT}, expect: {backends: [externalHost/right]}}
---
"""
GOOD = PROBE.replace("NAME", "good").replace("PORT", "80")
BAD = PROBE.replace("NAME", "bad").replace("PORT", "81")

# A person at a terminal: run this in a process of its own, so that signals and forks are real
UP = """
import signal, sys
from pathlib import Path
from windlass.lab.runner import persistent_labs
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background processes ignore it
persistent_labs.up(Path(sys.argv[1]), detach=DETACH)
"""


@pytest.fixture(autouse=True)
def _able():
    """`run` and `up` look first whether this machine can have a lab at all."""
    try:
        runs.check_machine(Programs())
    except LabError as error:
        pytest.skip(str(error))


@pytest.fixture
def folder(tmp_path):
    def make(**files):
        for name, text in files.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "1.yaml").write_text(text)
        return tmp_path

    return make


def test_all_passed_is_status_0_and_the_json_says_so(folder, tmp_path, capsys):
    status = runs.run([folder(a=HOSTS + GOOD, b=HOSTS + GOOD)], json_file=tmp_path / "out.json", jobs=2)
    report = json.loads((tmp_path / "out.json").read_text())
    assert (status, report["passed"], report["failed"]) == (0, 2, 0)
    assert [scenario["name"] for scenario in report["scenarios"]] == ["a", "b"]
    assert report["scenarios"][0]["probes"][0]["backends"] == {"externalHost/right": 10}
    assert "2 passed, 0 failed in" in capsys.readouterr().out


def test_a_failed_probe_is_status_1_and_the_table_says_why(folder, capsys):
    assert runs.run([folder(a=HOSTS + GOOD + BAD)]) == 1
    printed = capsys.readouterr().out
    assert "FAIL: expected Connected, saw Refused; no answer from externalHost/right" in printed


def test_an_unreadable_scenario_is_status_2_and_the_others_run(folder, tmp_path, capsys):
    status = runs.run([folder(a=HOSTS + GOOD, b="- 1"), tmp_path / "nowhere"], json_file=tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text())
    assert (status, report["passed"]) == (2, 1)
    assert "1.yaml: has a list" in report["scenarios"][1]["error"]
    assert "no such file or directory" in report["scenarios"][2]["error"]
    assert "2 scenarios could not run" in capsys.readouterr().out


def test_a_lab_that_is_kept_in_the_background(folder):
    file = folder(hosts=HOSTS + BAD) / "hosts"
    command = [sys.executable, "-c", UP.replace("DETACH", "True"), str(file)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lab = Lab(told.split()[1])
    try:
        assert told.strip() == f"lab {lab.id} is up: externalHost/left, externalHost/right"
        assert lab.id in [description.id for description in labs.running()]
        inside = f"enter('right', ['ip', '-br', 'addr'], {lab.id!r})"
        inside = f"from windlass.lab.runner.persistent_labs import enter; {inside}"
        shown = subprocess.run([sys.executable, "-c", inside], check=True, capture_output=True, text=True).stdout
        assert "10.6.0.6/24" in shown
    finally:
        assert persistent_labs.down(lab.id) == lab.id
    assert not lab.folder.exists()
    assert lab.namespaces == []


def test_a_lab_that_is_kept_in_the_foreground_ends_with_ctrl_c(folder):
    file = folder(hosts=HOSTS) / "hosts"
    command = [sys.executable, "-u", "-c", UP.replace("DETACH", "False"), str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lab = Lab(process.stdout.readline().split()[1])
        assert lab.namespaces
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert lab.namespaces == []


def test_an_error_of_a_detached_lab_is_raised_by_the_caller(folder):
    stop_api = "{kind: Action, metadata: {name: x}, spec: {stopAPIServer: true}}"
    with pytest.raises(LabError, match="there is no API server in this lab"):
        persistent_labs.up(folder(a=HOSTS + stop_api) / "a", detach=True)
    with pytest.raises(LabError, match="contains 2 scenarios"):
        persistent_labs.up(folder(b=HOSTS))


def test_a_machine_without_the_programs_of_a_node_is_an_error(monkeypatch):
    with pytest.raises(LabError, match="nowhere: the CNI plugin does not exist; `make setup` builds it"):
        runs.check_machine(Programs(cni=Path("nowhere")))
    with pytest.raises(LabError, match=r"--windows wine: nowhere/python/python.exe does not exist; `tools"):
        runs.check_machine(Programs(windows=WindowsPrograms(Path("nowhere"))))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root"):
        runs.check_machine(Programs())
