"""`windlass bench cni`: how long a container runtime waits for ADD and DEL, and how long the plugin takes to start.

The floor is the reference `bridge` plugin with the same `host-local`, on the same Node in the same run: what attaching
a Pod costs without Open vSwitch.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from windlass.bench import lab_clusters
from windlass.bench.reports import BenchReport, Figure, figure, percentiles, this_machine
from windlass.host.linux import namespaces
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.progress import Say
from windlass.lab.scenarios.directives import ProbeSource

ROUNDS = 100
PLUGINS = Path("/usr/lib/cni")
NODE = """
apiVersion: v1
kind: Node
metadata: {name: bench}
spec: {podCIDRs: [172.16.1.0/24]}
status: {addresses: [{type: InternalIP, address: 10.176.25.11}]}
"""


async def run(say: Say = print) -> BenchReport:
    """Takes about half a minute."""
    if not (PLUGINS / "bridge").exists():
        raise LabError(f"{PLUGINS}/bridge: no such file; install the CNI plugins (containernetworking-plugins)")
    async with lab_clusters.standing(lab_clusters.scenario_of("cni", NODE)) as cluster:
        say(f"attaching and detaching {ROUNDS} Pods with each plugin")
        # In a thread: the lab's own event loop must not block meanwhile.
        figures = await asyncio.to_thread(_measure, cluster)
    return BenchReport("cni", this_machine(), tuple(figures))


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
        *percentiles("add", windlass["ADD"], "ms", bridge["ADD"]),
        *percentiles("del", windlass["DEL"], "ms", bridge["DEL"]),
        figure("plugin-start-up-p50", statistics.median(starts), "ms"),
        figure("plugin-start-up-share-of-add", 100 * statistics.median(starts) / add, "%"),
        # For comparison: the plugin is a C program, and this is what starting a Python interpreter would cost.
        figure("python-start-up-p50", statistics.median(interpreter), "ms"),
        figure("python-start-up-share-of-add", 100 * statistics.median(interpreter) / add, "%"),
    ]


def _attach_and_detach(node: str, plugin: Path, network: Mapping[str, object]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"ADD": [], "DEL": []}
    for number in range(ROUNDS):
        with pod_namespace() as pod:
            for verb, taken in times.items():
                with namespaces.entered(namespaces.path_of(node)):
                    taken.append(call_plugin(plugin, network, verb, pod, number))
    return times


def call_plugin(plugin: Path, network: Mapping[str, object], verb: str, namespace: Path, number: int) -> float:
    """Milliseconds of a request for Pod `number`. To be called in the Node's namespace."""
    environment = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": f"bench-{plugin.name}-{number}",
        "CNI_NETNS": str(namespace),
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(PLUGINS),
        "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod-{number}",
    }
    configuration = json.dumps({"cniVersion": "1.0.0", "name": "bench", **network}).encode()
    (taken,) = _timed([[str(plugin)]], environment, configuration)
    return taken


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
def pod_namespace() -> Iterator[Path]:
    """A new one; one at a time."""
    name = f"windlass-bench-{os.getpid()}"
    path = namespaces.create(name)
    try:
        yield path
    finally:
        namespaces.delete(name)
