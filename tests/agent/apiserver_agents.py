"""Agents that follow a real kube-apiserver, and the objects of that server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from fed_agents import NODE_IP, FedAgent, fed_node

from windlass.agent.agents import Agent
from windlass.agent.areas import Area
from windlass.agent.cluster_writers import ClusterWriter
from windlass.cluster import lastgood
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused
from windlass.cluster.kubernetes.credentials import Access, Reader
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.kubernetes.writing import CONTROLLER
from windlass.lab.control.control_planes import AGENT, ControlPlane, apply
from windlass.switch.ovsdb import open_database

PATIENCE = 60.0  # the timeout of all waits
NODES, NODE = "/api/v1/nodes", "/api/v1/nodes/node-1"
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
RBAC = "rbac.authorization.k8s.io"


@dataclass
class APICluster:
    plane: ControlPlane
    connection: APIConnection  # the administrator's

    async def get(self, path: str, **parameters: str) -> dict:
        return msgspec.json.decode(await self.connection.request("GET", path, parameters))

    async def put(self, path: str, **document: object) -> None:
        kind = {NODES: "Node", SERVICES: "Service", SLICES: "EndpointSlice"}[path.rpartition("/")[0]]
        version = "discovery.k8s.io/v1" if kind == "EndpointSlice" else "v1"
        name = path.rpartition("/")[2]
        metadata = {"name": name, **document.pop("metadata", {})}
        await apply(self.connection, {"apiVersion": version, "kind": kind, "metadata": metadata, **document}, path)

    async def patch(self, path: str, content: object, kind: str = "merge-patch") -> None:
        body = msgspec.json.encode(content)
        await self.connection.request("PATCH", path, body=body, content_type=f"application/{kind}+json")

    async def delete(self, path: str, **parameters: str) -> None:
        with suppress(RequestRefused):
            await self.connection.request("DELETE", path, parameters)

    async def put_node(self, name: str = "node-1", cidr: str = "172.16.1.0/24", address: str = NODE_IP) -> None:
        await self.put(f"{NODES}/{name}", spec={"podCIDR": cidr, "podCIDRs": [cidr]} if cidr else {})
        status = {"addresses": [{"type": "InternalIP", "address": address}]}
        await self.patch(f"{NODES}/{name}/status", {"status": status})

    async def put_service(self, name: str, **spec: object) -> None:
        await self.put(f"{SERVICES}/{name}", spec={"ports": [{"name": "http", "port": 80}]} | spec)

    async def put_policy(self, name: str) -> None:
        document = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
        await apply(self.connection, {**document, "spec": {"podSelector": {}}}, f"{POLICIES}/{name}")

    async def taints(self) -> list[dict]:
        return (await self.get(NODE))["spec"].get("taints", [])

    async def annotations(self) -> dict[str, str]:
        return (await self.get(NODE))["metadata"].get("annotations", {})

    async def events(self, kind: str, name: str = "") -> list[dict]:
        """The Events of agents about all objects of the kind, or about one. (The API server writes Events, too.)"""
        found = (await self.get(EVENTS))["items"]
        ours = [event for event in found if event["reportingController"] == CONTROLLER]
        regarded = ((event, event["regarding"]) for event in ours)
        return [event for event, what in regarded if what["kind"] == kind and name in {"", what["name"]}]

    async def allow(self, allowed: list[dict[str, object]]) -> None:
        """Set the permissions of the agents."""
        api = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": "windlass"}}
        path = f"/apis/{RBAC}/v1"
        await apply(self.connection, {**api, "kind": "ClusterRole", "rules": allowed}, f"{path}/clusterroles/windlass")
        binding = {
            **api,
            "kind": "ClusterRoleBinding",
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": AGENT}],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "windlass"},
        }
        await apply(self.connection, binding, f"{path}/clusterrolebindings/windlass")


@dataclass
class RunningAgent:
    agent: Agent
    fed: FedAgent
    requests: int = 0  # of the ClusterWriter

    @property
    def reported(self) -> str:
        return f"{self.agent.status.waiting_for} {self.agent.view.problems}"

    async def becomes_ready(self) -> None:
        assert await self.agent.status.wait_until(lambda: self.agent.status.ready, PATIENCE), self.reported

    async def reports(self, *words: str, area: str = "") -> str:
        def said() -> str:
            return " | ".join(self.agent.view.problems.get(Area(area), ()) if area else [self.reported])

        assert await self.agent.status.wait_until(lambda: all(word in said() for word in words), PATIENCE), (
            self.reported
        )
        return said()

    async def has_no_problems(self) -> None:
        assert await self.agent.status.wait_until(lambda: not self.agent.view.problems, PATIENCE), self.reported


@asynccontextmanager
async def agent_on(fed: FedAgent, plane: ControlPlane, access: Reader | None = None) -> AsyncIterator[RunningAgent]:
    """An agent on this Node that follows the real server, and its ClusterWriter."""
    access = access or (lambda: plane.access(AGENT))
    last_good = partial(lastgood.load, Path(fed._config.state_directory))
    agent = Agent(fed._config, fed.host, APIServer(access, "node-1", plane.socket_factory, last_good=last_good))
    one = RunningAgent(agent, fed)

    def counted() -> Access:
        one.requests += 1
        return access()

    writer = ClusterWriter(counted, "node-1", plane.socket_factory)
    async with open_database(str(fed._config.ovsdb_socket), patience=5) as database:
        tasks = [asyncio.create_task(agent.serve(database)), asyncio.create_task(writer.run(agent.view))]
        try:
            yield one
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


@asynccontextmanager
async def running_agent(
    plane: ControlPlane, access: Reader | None = None, **options: object
) -> AsyncIterator[RunningAgent]:
    async with fed_node(**options) as fed, agent_on(fed, plane, access) as one:
        yield one


async def until(found: Callable[[], Awaitable[Any]], *, accept: Callable[[Any], object] = bool) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not accept(answer := await found()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the server gives no signal
    return answer
