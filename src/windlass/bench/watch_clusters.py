"""The cluster of `windlass bench watch`: a real control plane, and a Node with a switch and an agent that watches it.

The agent is a separate process, as on a Node. Nothing is measured here.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from ipaddress import ip_interface
from pathlib import Path

import aiohttp
import msgspec
import yaml

from windlass.bench import service_states as states
from windlass.bench.bench_nodes import plugged
from windlass.cluster.clusters import Cluster
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused, Unreachable
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.sources import SourceAway
from windlass.lab.control.api_servers import ADDRESSES
from windlass.lab.control.control_planes import ADMINISTRATOR, ControlPlane
from windlass.lab.network import ovs
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.sandbox.processes import Child
from windlass.lab.scenarios.segments import UPLINK, Machine, Nic

TIMEOUT = 120.0  # seconds
CONTROL_PLANE = Machine("control", "plane", (Nic(UPLINK, ADDRESSES),))
NODE = Machine("node", states.NODE, (Nic(UPLINK, (ip_interface(f"{states.NODE_IP}/24"),)),))


class _State(msgspec.Struct, rename="camel"):
    problems: dict[str, list[str]]
    service_count: int = 0


class AgentClient:
    """A client of the agent's local API."""

    def __init__(self, session: aiohttp.ClientSession, process: Child) -> None:
        self._session = session
        self._process = process

    async def holds(self, revision: str) -> None:
        """Returns when the switch has confirmed this revision of the cluster."""
        parameters = {"revision": revision, "timeout": str(TIMEOUT)}
        status, content = await self._get("/v1/convergence", parameters)
        if status != HTTPStatus.OK:
            what = f"does not have a write in the switch after {TIMEOUT:.0f} s: {content.decode()}"
            raise LabError(self._process.failure(what))

    async def serves(self, services: int) -> None:
        """Raises LabError if it does not serve that many Services, or has problems."""
        _, content = await self._get("/v1/state", {})
        state = msgspec.json.decode(content, type=_State)
        if state.problems or state.service_count != services:
            raise LabError(
                f"the figures are invalid: the agent serves {state.service_count} Services of {services}, "
                f"with the problems {state.problems}"
            )

    @property
    def rss(self) -> float:
        """MB of the agent."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6

    async def _get(self, path: str, parameters: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            async with self._session.get(f"http://agent{path}", params=parameters) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LabError(self._process.failure(f"does not answer: {error}")) from None


class APIServerClient:
    """A client of the API server with all permissions."""

    def __init__(self, plane: ControlPlane, connection: APIConnection) -> None:
        self.connection = connection
        self.plane = plane

    async def write(self, method: str, path: str, document: object, content_type: str = "application/json") -> None:
        try:
            await self.connection.request(method, path, body=msgspec.json.encode(document), content_type=content_type)
        except (RequestRefused, Unreachable) as error:
            raise LabError(f"{method} {path}: {error}") from None

    async def cluster(self) -> Cluster:
        """As an agent reads it; it includes all earlier writes."""
        access = self.plane.access(ADMINISTRATOR)
        source = APIServer(lambda: access, states.NODE, self.plane.socket_factory)
        try:
            async with aclosing(source.changes()) as changes:
                return (await anext(changes)).cluster
        except SourceAway as error:
            raise LabError(str(error)) from None


async def settled(server: APIServerClient, agent: AgentClient) -> Cluster:
    """Wait until the Node has the cluster's state and nothing follows: the agent itself updates its Node object."""
    while True:
        cluster = await server.cluster()
        await agent.holds(cluster.revision)
        if (await server.cluster()).revision == cluster.revision:
            return cluster


@asynccontextmanager
async def standing(lab: Lab) -> AsyncIterator[tuple[APIServerClient, AgentClient]]:
    """Only the Node's object is in the cluster; its agent has started."""
    plane_namespace, node_namespace = await plugged(lab, CONTROL_PLANE, NODE)
    switch = ovs.SwitchProcesses.on_linux(states.NODE, node_namespace, lab.node_folder(states.NODE) / "ovs")
    try:
        async with _api_server(lab, plane_namespace) as server:
            await switch.start()
            await _make_node(server)
            async with _agent(lab, server.plane, node_namespace, switch) as agent:
                yield server, agent
    finally:
        await switch.end()


@asynccontextmanager
async def bare_server(lab: Lab) -> AsyncIterator[APIServerClient]:
    """An API server alone."""
    (namespace,) = await plugged(lab, CONTROL_PLANE)
    async with _api_server(lab, namespace) as server:
        yield server


@asynccontextmanager
async def _api_server(lab: Lab, namespace: str) -> AsyncIterator[APIServerClient]:
    plane = ControlPlane(namespace, lab.folder / "control-plane", [one.ip for one in ADDRESSES])
    try:
        await plane.start()
        access = plane.access(ADMINISTRATOR)  # read once, for many requests
        async with APIConnection(lambda: access, plane.socket_factory) as connection:
            yield APIServerClient(plane, connection)
    finally:
        await plane.end()


async def _make_node(server: APIServerClient) -> None:
    node = msgspec.to_builtins(states.cluster(0, 0).nodes[states.NODE]) | {"apiVersion": "v1"}
    await server.write("POST", "/api/v1/nodes", node)
    await server.write(
        "PATCH", f"/api/v1/nodes/{states.NODE}/status", {"status": node["status"]}, "application/merge-patch+json"
    )


@asynccontextmanager
async def _agent(
    lab: Lab, plane: ControlPlane, namespace: str, switch: ovs.SwitchProcesses
) -> AsyncIterator[AgentClient]:
    folder = lab.node_folder(states.NODE)
    config = {
        "nodeName": states.NODE,
        "kubeconfig": str(plane.kubeconfig(ADMINISTRATOR)),
        "datapathType": ovs.datapath_type(),
        "uplink": UPLINK,
        "runDirectory": str(folder / "run"),
        "stateDirectory": str(folder / "state"),
        "ovsRunDirectory": str(switch.folder),
        "logFormat": "text",
    }
    file = folder / "windlass.yaml"
    file.write_text(yaml.safe_dump(config))
    process = Child(
        f"the agent of Node {states.NODE}",
        [str(Path(sys.executable).with_name("windlass")), "agent", "--config", str(file)],
        namespace=namespace,
        folder=folder,
        log=folder / "agent.log",
        environment={},
    )
    socket = folder / "run" / "agent.sock"
    try:
        await process.listening(socket)
        patience = aiohttp.ClientTimeout(total=TIMEOUT + 10)
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket)), timeout=patience) as session:
            yield AgentClient(session, process)
    finally:
        await process.kill()
