"""`windlass bench cni`: how long a container runtime waits for ADD and DEL, and where that time goes.

The floor is the reference `bridge` plugin with the same `host-local` behind it, on the same Node in the same run: what
attaching a Pod costs without a switch that guards and routes.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.bench.reports import Figure, Report, figure, this_machine
from windlass.host.linux import namespaces
from windlass.lab.orchestration.agents import Agents, Programs
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.runner import runs
from windlass.lab.sandbox.labs import LabError
from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.directives import ProbeSource

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 100
PLUGINS = Path("/usr/lib/cni")
NODE = """
apiVersion: v1
kind: Node
metadata: {name: bench}
spec: {podCIDRs: [172.16.1.0/24]}
status: {addresses: [{type: InternalIP, address: 10.176.25.11}]}
"""


def run(say: Callable[[str], None] = print) -> Report:
    return asyncio.run(_run(say))


async def _run(say: Callable[[str], None]) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "node.yaml").write_text(NODE)
        scenario = scenario_files.find_one(Path(folder)).read()
    async with runs.standing(scenario, lambda lab: Agents(lab, Programs())) as cluster:
        for step, desired in scenario.states():
            await cluster.reach(desired, step.actions)
        say(f"attaching and detaching a Pod {ROUNDS} times by each plugin")
        # In a thread: the lab's own event loop must not wait while its Node is measured.
        figures = await asyncio.to_thread(_measure, cluster)
    return Report("cni", this_machine(), tuple(figures))


def _measure(cluster: RunningCluster) -> list[Figure]:
    node = cluster.namespace_of(ProbeSource(node="bench"))
    socket = cluster.lab.node_folder("bench") / "run" / "cni.sock"
    ours = {"type": "windlass-cni", "agentSocket": str(socket)}
    addresses = {
        "type": "host-local",
        "subnet": "172.17.0.0/16",
        "dataDir": str(cluster.lab.folder / "bridge-addresses"),
    }
    theirs = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": addresses}
    windlass = _attach_and_detach(node, Programs().cni.resolve(), ours)
    bridge = _attach_and_detach(node, PLUGINS / "bridge", theirs)
    starts = _timed([[str(Programs().cni.resolve())]] * ROUNDS, {"CNI_COMMAND": "VERSION"})
    interpreter = _timed([[sys.executable, "-I", "-S", "-c", "pass"]] * ROUNDS, {})
    add = statistics.median(windlass["ADD"])
    return [
        *(
            figure(f"{verb.lower()}-{name}", value(windlass[verb]), "ms", value(bridge[verb]))
            for verb in ("ADD", "DEL")
            for name, value in (("p50", statistics.median), ("p99", _p99))
        ),
        figure("plugin-start-up-p50", statistics.median(starts), "ms"),
        figure("plugin-start-up-share-of-add", 100 * statistics.median(starts) / add, "%"),
        # The plugin is a C program, so no interpreter starts. What one would have cost, had it been written in Python:
        figure("python-start-up-p50", statistics.median(interpreter), "ms"),
        figure("python-start-up-share-of-add", 100 * statistics.median(interpreter) / add, "%"),
    ]


def _attach_and_detach(node: str, plugin: Path, network: Mapping[str, object]) -> dict[str, list[float]]:
    configuration = json.dumps({"cniVersion": "1.0.0", "name": "bench", **network}).encode()
    times: dict[str, list[float]] = {"ADD": [], "DEL": []}
    for number in range(ROUNDS):
        with _pod_namespace() as pod:
            for verb in times:
                environment = {
                    "CNI_COMMAND": verb,
                    "CNI_CONTAINERID": f"bench-{plugin.name}-{number}",
                    "CNI_NETNS": str(pod),
                    "CNI_IFNAME": "eth0",
                    "CNI_PATH": str(PLUGINS),
                    "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod-{number}",
                }
                with namespaces.entered(namespaces.path_of(node)):
                    times[verb] += _timed([[str(plugin)]], environment, configuration)
    return times


def _timed(commands: list[list[str]], environment: Mapping[str, str], stdin: bytes = b"") -> list[float]:
    """Milliseconds from the start of each process to its end."""
    taken = []
    for command in commands:
        started = time.perf_counter()
        done = subprocess.run(command, input=stdin, env={**os.environ, **environment}, capture_output=True, check=False)
        taken.append((time.perf_counter() - started) * 1000)
        if done.returncode:
            raise LabError(f"{command[0]} failed: {done.stdout.decode()} {done.stderr.decode()}")
    return taken


@contextmanager
def _pod_namespace() -> Iterator[Path]:
    name = f"windlass-bench-{os.getpid()}"
    path = namespaces.create(name)
    try:
        yield path
    finally:
        namespaces.delete(name)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
