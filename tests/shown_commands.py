"""The commands that README and docs show, and where each of them is run: every one is run by a test or listed here.

A command is a line of a code block marked `console` (after the prompt `$` or `#`) or `sh`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Run by tests/lab/test_shown_commands_here.py, on this machine as it is.
ALONE = (
    "make demo",
    "windlass render scenarios/tour --node node-1 --why",
    "windlass lab fuzz --seed 117 --count 1 --write scenarios/found/117",
)
# Run by tests/policy/test_explanations.py, which compares their output with the page.
WITH_OUTPUT = (
    "windlass policy explain shop/web docs/examples/shop",
    "windlass policy explain shop/cart docs/examples/shop --peer monitoring/prometheus",
    "windlass policy diff docs/examples/shop docs/examples/shop-change",
)
# Run by tests/lab/test_shown_commands_here.py, in this order, with one lab. Exit status 1 of `preflight` is a finding.
WITH_A_LAB = (
    "windlass lab up scenarios/tour --detach",
    "windlass lab exec node-1 ovs-ofctl -O OpenFlow15 dump-flows br-int",
    "windlass preflight",
    "windlass lab down",
)
# Run by tests/kubelets/test_commands_on_a_cluster.py, in this order, on a whole cluster. NODE and SWITCH are names.
ON_A_CLUSTER = (
    "windlass lab up --cluster kubelet --nodes 3 --mode noEncap --detach",
    "windlass lab exec node-2 ctr -n k8s.io containers ls",
    "kubectl -n windlass rollout status daemonset/windlass-agent",
    "kubectl -n windlass exec daemonset/windlass-agent -- windlass status",
    "kubectl windlass status",
    "kubectl get events -A --field-selector reason=NotUsable",
    "kubectl -n windlass logs daemonset/windlass-agent",
    (
        "kubectl -n windlass exec SWITCH -c ovs-vswitchd -- ovs-appctl ofproto/trace br-int "
        "'in_port=4,tcp,nw_src=172.16.1.5,nw_dst=10.96.0.10,tp_dst=80,dl_src=0a:58:ac:10:01:05,dl_dst=aa:bb:cc:dd:ee:ff'"
    ),
    "kubectl windlass flows NODE --cookie 0x1f2e3d4c5b6a7988",
    "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data",
    "kubectl -n windlass delete pod -l app.kubernetes.io/component=switch --field-selector spec.nodeName=NODE",
    (
        "kubectl -n windlass wait pod -l app.kubernetes.io/component=switch --field-selector spec.nodeName=NODE "
        "--for=condition=Ready"
    ),
    "kubectl uncordon NODE",
)

_HELM = "tests/kubelets applies the same chart with `helm template`: there is no registry to pull an image from"
_PODMAN = "there is neither podman nor a registry here"
_WINDOWS = "minutes under Wine: `make test-windows`"
_KERNEL = "minutes in an emulated machine: `make test-kernel`"
# By the beginning of the command: why no test runs it.
NOT_RUN = {
    "kubectl get pods,nodes,namespaces,networkpolicies,": "tests/policy/test_explanations.py reads standard input",
    "make test ": "the tests themselves",
    "windlass lab run scenarios/": "six minutes: `make scenarios`",
    "windlass bench sync": "a minute of measuring; tests/bench runs the same code with fewer flows",
    "windlass lab up --cluster kubelet --detach": "tests/kubelets runs it with three Nodes",
    "windlass lab fuzz --seed 100": "minutes; tests/lab runs fewer",
    "windlass lab fuzz --count 50": "minutes; tests/lab runs fewer",
    "windlass release": "ends the network of a Node: tests/agent/test_release.py runs it on a Node of its own",
    "musl-gcc ": "tests/cni compiles the plugin with these options",
    "x86_64-w64-mingw32-gcc ": "tests/cni compiles the plugin with these options, where the compiler is installed",
    "podman ": _PODMAN,
    "kubectl create namespace windlass": "tests/deploy/test_chart_on_apiserver.py creates it",
    "kubectl label namespace windlass": _HELM,
    "helm ": _HELM,
    "sed 's|https://set-apiServer": "tests/deploy/test_chart_on_apiserver.py applies these manifests",
    "kubectl -n windlass rollout status daemonset/windlass-release": "tests/kubelets/test_uninstall.py runs it",
    "kubectl -n kube-system patch daemonset kube-proxy": "there is no kube-proxy to patch",
    "make test-kernel": _KERNEL,
    "tools/test-kernel": _KERNEL,
    "make test-windows": _WINDOWS,
    "tools/test-windows": _WINDOWS,
    "tools/build-windows": _WINDOWS,
    "windlass lab run --windows wine": _WINDOWS,
    "cp build/cni/windlass-cni /opt": "changes this machine; tests/deploy/test_install_cni.py installs the plugin",
    "cat /etc/cni/net.d/10-windlass.conflist": "needs an installed Node",
    "install -m 755 src/windlass/switch/start-ovs-vswitchd.sh": "changes this machine; tests/switch runs the script",
    "mkdir -p /etc/systemd": "changes this machine",
    "cat > /etc/systemd": "changes this machine",
    "systemctl ": "there is no systemd here",
}


class Shown(NamedTuple):
    page: str
    line: int
    command: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.command}"


def shown() -> Iterator[Shown]:
    for page in PAGES:
        text = page.read_text()
        for block in re.finditer(r"^```(console|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            first = text[: block.start()].count("\n") + 2
            for offset, command in _commands(block[2].splitlines(), has_prompt=block[1] == "console"):
                yield Shown(str(page.relative_to(ROOT)), first + offset, command)


def _commands(lines: list[str], *, has_prompt: bool) -> Iterator[tuple[int, str]]:
    position = 0
    while position < len(lines):
        start, line = position, lines[position]
        position += 1
        if has_prompt and not line.startswith(("$ ", "# ")):
            continue  # output
        command = line[2:] if has_prompt else line
        while command.endswith("\\") or command.count("'") % 2:  # it continues on the next line
            command = f"{command.removesuffix(chr(92)).rstrip()} {lines[position].strip()}"
            position += 1
        if command := re.sub(r"\s+#\s.*$", "", command):
            yield start, command


def run(
    command: str, folder: Path = ROOT, *, expected: tuple[int, ...] = (0,), environment: dict[str, str] | None = None
) -> str:
    """Run the command as a reader would, with `windlass` and `kubectl windlass` in the path. Returns its output."""
    path = f"{Path(sys.executable).parent}:{ROOT / 'deploy'}:{os.environ['PATH']}:/usr/sbin:/sbin"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode in expected, f"{command}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout
