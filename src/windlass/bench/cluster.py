"""`windlass bench cluster`: what do clients notice when a part of a real cluster is killed and comes back?

A lab's kubelet cluster of two Nodes, with Windlass from its chart. All the time new connections go from a Pod to a
ClusterIP and from a Node to a NodePort, both of a Pod on the other Node, beside held ones. The floor is the same load
with nothing happening. docs/continuity.md tells what must not be lost, and why the rest is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from windlass.bench import cluster_parts as parts
from windlass.bench.cluster_parts import AGENT, SWITCH, Container
from windlass.bench.continuity import Stretch, figures_of, sentences, summary
from windlass.bench.load_processes import LoadProcess, loading
from windlass.bench.loads import Frontend, Plan, Server
from windlass.bench.reports import Figure, Report, this_machine
from windlass.bench.tallies import Failure, Tally
from windlass.lab.kubelets import clusters
from windlass.lab.kubelets.clusters import KubeletCluster, Shape

PER_SECOND = 100  # new connections to each frontend
HELD = 1  # connection to each frontend
SECONDS_OF_QUIET = 20.0
SECONDS_AFTER = 5.0  # a part is back: what it does then shall be seen, too

NEAR, FAR = "node-1", "node-2"  # of the clients (and of the API server), and of the server
FRONTENDS = ("cluster-ip", "node-port")
CLUSTER_IP, PORT, NODE_PORT, TARGET_PORT = "10.96.100.10", 80, 30080, 8080

Say = Callable[[str], None]


def run(say: Say = print) -> Report:
    """Takes about five minutes, two of them to bring the cluster up. `say` hears of the progress."""
    return asyncio.run(_run(say))


async def _run(say: Say) -> Report:
    async with clusters.standing(Shape(nodes=2), say) as cluster, loaded(cluster, say) as bench:
        figures = await bench.figures()
    return Report("cluster", this_machine(), (*figures, *summary(figures)))


@asynccontextmanager
async def loaded(cluster: KubeletCluster, say: Say) -> AsyncIterator[Bench]:
    """With the Pods and the Service of the load, which is off."""
    client = (await parts.make_pod(cluster, "client", NEAR)).container("main")
    server = (await parts.make_pod(cluster, "web", FAR)).container("main")
    await cluster.kubectl("apply", "-f", "-", content=msgspec.json.encode(_service()).decode())
    try:
        async with loading(await _plan(cluster, client, server), cluster.lab.folder) as load:
            await parts.prefer_switches(cluster)
            bench = Bench(cluster, load, say)
            await bench.warm_up()
            yield bench
    finally:
        await cluster.kubectl("delete", "service/web", "pod/client", "pod/web", "--ignore-not-found")


@dataclass(slots=True)
class Bench:
    cluster: KubeletCluster
    load: LoadProcess
    say: Say
    _events: list[tuple[float, str]] = field(default_factory=list)

    async def figures(self) -> list[Figure]:
        """Each part in turn; last those that take connections with them."""
        quiet = await self.under_load("nothing happens", asyncio.sleep(SECONDS_OF_QUIET))
        figures: list[Figure] = []
        for name, doing in {
            "apiserver": self.kill_api_server,
            "agent": self.kill_agents,
            "rollout": self.roll_out_agents,
            "containerd": self.kill_containerd,
            "vswitchd": self.kill_switch,
        }.items():
            stretch = await self.under_load(name, doing())
            figures += [*figures_of(stretch, quiet), Figure(f"{name}-outage", round(outage(stretch.tally), 3), "s")]
        return figures

    async def under_load(self, name: str, doing: Awaitable[None]) -> Stretch:
        self._events.clear()
        began = time.monotonic()
        await self.load.on(FRONTENDS)
        try:
            await doing
        finally:
            tally = await self.load.off()
        stretch = Stretch(name, time.monotonic() - began, tally, tuple(self._events))
        for sentence in sentences(stretch):
            self.say(sentence)
        return stretch

    async def warm_up(self) -> None:
        """Until both frontends answer: flows follow a Service that was just made, and tunnels ask for neighbours."""
        async with asyncio.timeout(parts.SECONDS_TO_RETURN):
            while True:
                await self.load.on(FRONTENDS)
                await asyncio.sleep(0.5)
                tally = await self.load.off()
                if tally.attempted and not tally.failures and not tally.broken:
                    return

    async def kill_api_server(self) -> None:
        await self._noted("the API server", parts.restart_api_server(self.cluster))

    async def kill_agents(self) -> None:
        """On the clients' Node, then on the server's."""
        for node in (NEAR, FAR):
            agent = await parts.part_on(self.cluster, node, AGENT, "agent")
            await self._noted(f"the agent of {node}", parts.kill_container(self.cluster, agent))

    async def roll_out_agents(self) -> None:
        await self._noted("all agents, in a rolling restart", parts.roll_out(self.cluster, AGENT))

    async def kill_containerd(self) -> None:
        for node in (NEAR, FAR):
            await self._noted(f"containerd of {node}", parts.restart_containerd(self.cluster, node))

    async def kill_switch(self) -> None:
        """The server's: all that there is to carry on that Node goes through it."""
        switch = await parts.part_on(self.cluster, FAR, SWITCH, "ovs-vswitchd")
        await self._noted(f"ovs-vswitchd of {FAR}", parts.kill_container(self.cluster, switch))
        await parts.prefer_switches(self.cluster)

    async def _noted(self, what: str, doing: Awaitable[None]) -> None:
        self._events.append((time.monotonic(), f"killing {what}"))
        await doing
        self._events.append((time.monotonic(), f"the return of {what}"))
        await asyncio.sleep(SECONDS_AFTER)


def outage(tally: Tally) -> float:
    """Seconds in which a frontend answered no new connection, from the first lost one to the last, of the worst one."""
    by_frontend: dict[str, list[Failure]] = {}
    for failure in tally.failures:
        by_frontend.setdefault(failure.frontend, []).append(failure)
    spans = ([failure.began for failure in failures] for failures in by_frontend.values())
    return max((max(times) - min(times) + 1 / PER_SECOND for times in spans), default=0.0)


async def _plan(cluster: KubeletCluster, client: Container, server: Container) -> Plan:
    client_network, server_network = [await parts.network_of(cluster, one) for one in (client, server)]
    node_network = cluster.machines[NEAR].namespace
    return Plan(
        servers=(Server("web", server_network, TARGET_PORT),),
        frontends=(
            Frontend("cluster-ip", client_network, CLUSTER_IP, PORT),
            Frontend("node-port", node_network, str(cluster.shape.address(FAR)), NODE_PORT),
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
