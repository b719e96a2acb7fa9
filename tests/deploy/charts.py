"""The chart, rendered by a real Helm as its users do; and where that Helm is."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
API_SERVER = "apiServer=https://10.0.0.1:6443"


def _where() -> Path:
    command = [str(ROOT / "tools" / "build-helm"), "--where"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


HELM = _where()
needs_helm = pytest.mark.skipif(
    not HELM.exists(), reason=f"{HELM}: not there; tools/build-helm builds it, once for a machine"
)

Object = dict[str, Any]


def helm(*settings: str) -> subprocess.CompletedProcess[str]:
    command = [str(HELM), "template", "windlass", str(CHART), "--namespace=windlass"]
    command += [f"--set={setting}" for setting in settings]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(*settings: str) -> dict[tuple[str, str], Object]:
    """By kind and name."""
    done = helm(API_SERVER, *settings)
    assert done.returncode == 0, done.stderr
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def refusal(*settings: str) -> str:
    done = helm(*settings)
    assert done.returncode != 0, f"{settings} was accepted"
    return done.stderr


def containers(daemon_set: Object) -> dict[str, Object]:
    """All of a DaemonSet's, also those that only prepare, by name."""
    spec = daemon_set["spec"]["template"]["spec"]  # type: ignore[index]
    return {one["name"]: one for one in (*spec["initContainers"], *spec["containers"])}
