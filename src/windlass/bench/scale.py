"""`windlass bench scale`: what it costs that agents know the Pods of other Nodes; docs/scale.md draws the conclusions.

The agent's part: a simulated API server sends Pods of 6 KB to the agent's own watch, and changes of them. The API
server's part: a real one sends each change of a Pod to many watches; its CPU time is as it reports it.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack

from windlass.bench import pod_documents, scale_runs
from windlass.bench.agent_runs import in_new_process
from windlass.bench.reports import BenchReport, Figure, figure, this_machine
from windlass.bench.watch_clusters import APIServerClient, bare_server, watched
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.progress import Say

NODES = (100, 1_000, 5_000)
PODS_OF_A_NODE = 30
CHANGES = 3_000
WATCHES = 100  # on one API server
WRITES = 300
SERVED_PODS = 200


async def run(say: Say = print) -> BenchReport:
    """Takes about three minutes."""
    figures: list[Figure] = []
    for nodes in NODES:
        say(f"the Pods of {nodes} Nodes, and {CHANGES} changes of them")
        known = await in_new_process(scale_runs.known_pods, nodes * PODS_OF_A_NODE, CHANGES)
        figures += [
            figure(f"agent-{nodes}-nodes-list", known.seconds, "s"),
            figure(f"agent-{nodes}-nodes-list-cpu", known.cpu, "s"),
            figure(f"agent-{nodes}-nodes-rss", known.rss, "MB"),
            figure(f"agent-{nodes}-nodes-cpu-of-a-change", known.cpu_of_change, "ms"),
        ]
    say(f"an API server with {WATCHES} watches: {WRITES} changes of a Pod, with and without the watches")
    return BenchReport("scale", this_machine(), (*figures, *await _served()))


async def _served() -> list[Figure]:
    with labs.opened() as lab:
        async with bare_server(lab) as server:
            await server.write("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "team-0"}})
            for number in range(SERVED_PODS):
                await server.write("POST", _path(number), pod_documents.pod(number * 100))
            without = await _cpu_of_writes(server, 1)
            async with AsyncExitStack() as watching:
                watches = [_CountedWatch() for _ in range(WATCHES)]
                for watch in watches:
                    await watching.enter_async_context(watched(server, "/api/v1/pods", {}, watch.take))
                beside = await _cpu_of_writes(server, 2)
                received = [await watch.all_received() for watch in watches]
    deliveries, size = WRITES * WATCHES, sum(received) / (WRITES * WATCHES)
    return [
        figure("server-cpu-of-a-write", 1000 * without / WRITES, "ms"),
        figure("server-cpu-of-a-delivery", 1000 * (beside - without) / deliveries, "ms"),
        figure("server-bytes-of-a-delivery", size, "bytes"),
    ]


def _path(number: int) -> str:
    return f"/api/v1/namespaces/{pod_documents.namespace_of(number * 100)}/pods"


async def _cpu_of_writes(server: APIServerClient, turn: int) -> float:
    """CPU seconds of the API server."""
    before = await _cpu(server)
    for number in range(WRITES):
        path = f"{_path(0)}/{pod_documents.name_of(number % SERVED_PODS * 100)}"
        label = {"metadata": {"labels": {"turn": f"{turn}-{number}"}}}
        await server.write("PATCH", path, label, "application/merge-patch+json")
    return await _cpu(server) - before


async def _cpu(server: APIServerClient) -> float:
    metrics = (await server.connection.request("GET", "/metrics")).decode()
    found = re.search(r"^process_cpu_seconds_total (\S+)$", metrics, re.MULTILINE)
    if found is None:
        raise labs.LabError("the API server does not tell its CPU time: /metrics has no process_cpu_seconds_total")
    return float(found[1])


class _CountedWatch:
    def __init__(self) -> None:
        self._events = self._bytes = 0
        self._all = asyncio.Event()

    def take(self, lines: list[bytes]) -> None:
        self._events += len(lines)
        self._bytes += sum(map(len, lines))
        if self._events >= WRITES:
            self._all.set()

    async def all_received(self) -> int:
        """Bytes of all events."""
        await asyncio.wait_for(self._all.wait(), 60)
        return self._bytes
