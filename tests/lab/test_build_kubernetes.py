"""tools/build-kubernetes if everything is built, or if there is no Go. Other tests use what it builds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from windlass.lab.control.kubernetes_binaries import CONTROL_PLANE, DIRECTORY_VARIABLE, VERSION, missing

TOOL = Path(__file__).parents[2] / "tools" / "build-kubernetes"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(folder), DIRECTORY_VARIABLE: str(folder / "cache")}
    command = [sys.executable, str(TOOL), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_without_go_it_exits_with_status_3_and_a_message(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 3
    assert f"Kubernetes {VERSION} cannot be built: there is no `go` in the PATH" in done.stdout
    assert not (tmp_path / "cache").exists()


def test_existing_programs_are_not_built_again(tmp_path):
    binaries = tmp_path / "cache" / "bin"
    binaries.mkdir(parents=True)
    for program in CONTROL_PLANE:
        (binaries / program).touch()
    done = run(tmp_path)
    assert done.returncode == 0
    assert "already built" in done.stdout


def test_a_program_that_is_not_known(tmp_path):
    done = run(tmp_path, "kube-nonsense")
    assert done.returncode == 2
    assert "kube-nonsense: not one of etcd, kube-apiserver" in done.stderr


def test_missing_programs_are_named_in_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    assert missing("etcd", "kubectl") == (
        f"{tmp_path}: etcd, kubectl not built; tools/build-kubernetes does that, once for a machine"
    )
