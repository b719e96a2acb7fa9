"""The commands that the docs show for a whole cluster, run on one. `make test-corner-cases` runs it: some minutes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import kubelet_marks
import pytest

from shown_commands import ON_A_CLUSTER, run
from windlass.lab.control.kubernetes_binaries import path_of

pytestmark = [
    *kubelet_marks.NEEDS_A_CLUSTER,
    pytest.mark.timeout(900),
]
UP, IN_A_NODE, *KUBECTL = ON_A_CLUSTER


@pytest.fixture(scope="module")
def lab() -> Iterator[tuple[str, dict[str, str]]]:
    """The ID of the lab, and the environment that `lab up` tells its user to set."""
    said = run(UP)
    identity = re.findall(r"lab (\w+) is up", said)[0]
    kubeconfig = re.findall(r"export KUBECONFIG=(\S+)", said)[0]
    path = f"{path_of('kubectl').parent}:{os.environ['PATH']}"
    try:
        yield identity, {"KUBECONFIG": kubeconfig, "PATH": f"{Path(sys.executable).parent}:deploy:{path}"}
    finally:
        run(f"windlass lab down {identity}")


def test_a_command_in_a_node_works(lab):
    identity, _ = lab
    assert "CONTAINER" in run(IN_A_NODE.replace("lab exec", f"lab exec --lab {identity}"))


@pytest.mark.parametrize("command", KUBECTL)
def test_a_kubectl_command_works(lab, command):
    _, environment = lab
    if " SWITCH " in command:
        label = "app.kubernetes.io/component=switch"
        names = run(f"kubectl -n windlass get pods -l {label} -o name", environment=environment).split()
        command = command.replace(" SWITCH ", f" {names[0]} ")
    run(re.sub(r"\bNODE\b", "node-3", command), environment=environment)
