"""`windlass bench cluster`: what do clients notice when a part of a real cluster is killed and comes back?

A lab's kubelet cluster of two Nodes, with Windlass from its chart. Throughout, a Pod opens new connections to a
ClusterIP and a Node to a NodePort, both served by a Pod on the other Node, beside held ones. The floor is the same load
while nothing is killed. docs/continuity.md says what must not be lost, and why the rest is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from windlass.bench import cluster_parts as parts
from windlass.bench.cluster_parts import AGENT, SWITCH, ContainerInstance
from windlass.bench.loaded_runs import LoadedRun, figures_of, loading, summary
from windlass.bench.loads import Failure, LoadPlan, LoadServer, LoadTarget, Tally
from windlass.bench.reports import BenchReport, Figure, figure, this_machine
from windlass.lab.kubelets import clusters
from windlass.lab.kubelets.clusters import KubeletCluster, Shape
from windlass.lab.sandbox.progress import Say

PER_SECOND = 100  # new connections to each target
HELD = 1  # connection to each target
SECONDS_OF_QUIET = 20.0
SECONDS_AFTER = 5.0  # under load after a part is back: its work then counts, too

NEAR, FAR = "node-1", "node-2"  # the Node of the clients (and of the API server), and that of the server
TARGETS = ("cluster-ip", "node-port")
CLUSTER_IP, PORT, NODE_PORT, TARGET_PORT = "10.96.100.10", 80, 30080, 8080


async def run(say: Say = print) -> BenchReport:
    """Takes about five minutes, two of them to start the cluster."""
    async with clusters.running(Shape(nodes=2), say) as cluster, loaded(cluster, say) as bench:
        figures = await bench.figures()
    return BenchReport("cluster", this_machine(), (*figures, *summary(figures)))


@asynccontextmanager
async def loaded(cluster: KubeletCluster, say: Say) -> AsyncIterator[ClusterBench]:
    """The cluster with the Pods and the Service of the load, which has not started."""
    client = (await parts.make_pod(cluster, "client", NEAR)).container("main")
    server = (await parts.make_pod(cluster, "web", FAR)).container("main")
    await cluster.kubectl("apply", "-f", "-", content=msgspec.json.encode(_service()).decode())
    try:
        async with loading(await _plan(cluster, client, server), cluster.lab.folder) as load:
            await parts.prefer_switches(cluster)
            bench = ClusterBench(cluster, LoadedRun(load, TARGETS, say))
            await bench.warm_up()
            yield bench
    finally:
        await cluster.kubectl("delete", "service/web", "pod/client", "pod/web", "--ignore-not-found")


@dataclass(slots=True)
class ClusterBench:
    cluster: KubeletCluster
    run: LoadedRun

    async def figures(self) -> list[Figure]:
        """Kills each part in turn; the switch is last, because its end breaks connections."""
        quiet = await self.run.phase("nothing happens", asyncio.sleep(SECONDS_OF_QUIET))
        figures: list[Figure] = []
        for name, work in {
            "apiserver": self.kill_api_server,
            "agent": self.kill_agents,
            "rollout": self.roll_out_agents,
            "containerd": self.kill_containerd,
            "vswitchd": self.kill_switch,
        }.items():
            phase = await self.run.phase(name, work())
            figures += [*figures_of(phase, quiet), figure(f"{name}-outage", outage(phase.tally), "s")]
        return figures

    async def warm_up(self) -> None:
        """Until both targets answer: the flows of a new Service, and neighbour entries of tunnels, take a moment."""
        async with asyncio.timeout(parts.SECONDS_TO_RETURN):
            while True:
                await self.run.load.on(TARGETS)
                await asyncio.sleep(0.5)
                tally = await self.run.load.off()
                if tally.attempted and not tally.failures and not tally.broken:
                    return

    async def kill_api_server(self) -> None:
        await self._noted("the API server", parts.restart_api_server(self.cluster))

    async def kill_agents(self) -> None:
        """Kills the agent on the clients' Node, then on the server's."""
        for node in (NEAR, FAR):
            agent = await parts.part_on(self.cluster, node, AGENT, "agent")
            await self._noted(f"the agent of {node}", parts.kill_container(self.cluster, agent))

    async def roll_out_agents(self) -> None:
        await self._noted("all agents, in a rolling restart", parts.roll_out(self.cluster, AGENT))

    async def kill_containerd(self) -> None:
        for node in (NEAR, FAR):
            await self._noted(f"containerd of {node}", parts.restart_containerd(self.cluster, node))

    async def kill_switch(self) -> None:
        """Kills the switch of the server's Node, which forwards every packet of that Node."""
        switch = await parts.part_on(self.cluster, FAR, SWITCH, "ovs-vswitchd")
        await self._noted(f"ovs-vswitchd of {FAR}", parts.kill_container(self.cluster, switch))
        await parts.prefer_switches(self.cluster)

    async def _noted(self, what: str, work: Awaitable[None]) -> None:
        self.run.note(f"killing {what}")
        await work
        self.run.note(f"the return of {what}")
        await asyncio.sleep(SECONDS_AFTER)


def outage(tally: Tally) -> float:
    """Seconds from the first failed connection to the last one, of the target with the longest such time."""
    by_target: dict[str, list[Failure]] = {}
    for failure in tally.failures:
        by_target.setdefault(failure.target, []).append(failure)
    spans = ([failure.began for failure in failures] for failures in by_target.values())
    return max((max(times) - min(times) + 1 / PER_SECOND for times in spans), default=0.0)


async def _plan(cluster: KubeletCluster, client: ContainerInstance, server: ContainerInstance) -> LoadPlan:
    client_network, server_network = [await parts.network_of(cluster, one) for one in (client, server)]
    node_network = cluster.machines[NEAR].namespace
    return LoadPlan(
        servers=(LoadServer("web", server_network, TARGET_PORT),),
        targets=(
            LoadTarget("cluster-ip", client_network, CLUSTER_IP, PORT),
            LoadTarget("node-port", node_network, str(cluster.shape.address(FAR)), NODE_PORT),
        ),
        per_second=PER_SECOND,
        held=HELD,
    )


def _service() -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "type": "NodePort",
            "clusterIP": CLUSTER_IP,
            "selector": {"app": "web"},
            "ports": [{"port": PORT, "targetPort": TARGET_PORT, "nodePort": NODE_PORT}],
        },
    }
