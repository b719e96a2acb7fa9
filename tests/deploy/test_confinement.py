"""The capabilities that the manifests give are enough: a lab whose agents and switches have those and no others."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from charts import ROOT, Object, containers

from windlass.host.linux.settings import SYSCTLS_VARIABLE
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import runs
from windlass.lab.sandbox.labs import LabError

MANIFEST = ROOT / "deploy" / "manifests" / "windlass.yaml"
# Pods made and removed, tunnels, NodePorts at every kind of address: all that the agent does to its host.
SCENARIOS = [ROOT / "scenarios" / "tour", ROOT / "scenarios" / "seed-001"]


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Programs:
    """The lab's, each as a container runtime would start it."""
    try:
        runs.check_machine(Programs())
    except LabError as error:
        pytest.skip(str(error))
    objects = [one for one in yaml.safe_load_all(MANIFEST.read_text()) if one]
    given = {
        name: container["securityContext"]
        for one in objects
        if one["kind"] == "DaemonSet"
        for name, container in containers(one).items()
    }
    for name in ("ovsdb-server", "ovs-vswitchd"):
        real = shutil.which(name, path="/usr/sbin:/usr/bin")
        _script(tmp_path / name, f'exec {_confined(given[name])} {real} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    sysctls = tmp_path / "sysctls"
    sysctls.mkdir()
    agent = " ".join(map(shlex.quote, Programs().agent))
    inside = _script(
        tmp_path / "inside",
        # The Node's settings are where the manifests mount them. The container's own are read-only, as in a container.
        f"mount --bind /proc/sys/net {sysctls}",
        "mount --bind /proc/sys /proc/sys",
        "mount -o remount,bind,ro /proc/sys",
        f'{SYSCTLS_VARIABLE}={sysctls} exec {_confined(given["agent"])} {agent} "$@"',
    )
    # What is mounted on the Node later (a Pod's namespace) appears inside, and nothing of the inside on the Node.
    outside = _script(tmp_path / "outside", f'exec unshare --mount --propagation slave {inside} "$@"')
    return Programs(agent=(str(outside),))


def _confined(security: Object) -> str:
    assert security["privileged"] is False
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"]["drop"] == ["ALL"]
    kept = [f"+{capability.lower()}" for capability in security["capabilities"].get("add", [])]
    return f"setpriv --no-new-privs --inh-caps=-all --bounding-set={','.join(['-all', *kept])}"


def _script(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(["#!/bin/sh -e", *lines, ""]))
    file.chmod(0o755)
    return file


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.name)
def test_the_network_is_made_with_them(programs, scenario, tmp_path, capfd):
    # Without held connections: how long they may be silent is about time, not about what is allowed.
    tried = shutil.copytree(scenario, tmp_path / scenario.name, ignore=shutil.ignore_patterns("*-that-stays.yaml"))
    status = runs.run([tried], programs=programs)
    assert status == 0, capfd.readouterr().out
