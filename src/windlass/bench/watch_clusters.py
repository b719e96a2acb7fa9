"""What `windlass bench watch` measures on: a real control plane, and a Node with a switch and an agent that follows it.

The agent is a process of its own, as on a Node. It measures nothing.
"""

from __future__ import annotations

import asyncio
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
from windlass.cluster.clusters import Cluster
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused, Unreachable
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.sources import SourceAway
from windlass.lab.control.api_servers import ADDRESSES
from windlass.lab.control.control_planes import ADMINISTRATOR, ControlPlane
from windlass.lab.network import ovs
from windlass.lab.network.underlays import Underlay
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.sandbox.processes import Child
from windlass.lab.scenarios.segments import UPLINK, Machine, Nic, segments

PATIENCE = 120.0  # seconds for whatever takes long
CONTROL_PLANE = Machine("control", "plane", (Nic(UPLINK, ADDRESSES),))
NODE = Machine("node", states.NODE, (Nic(UPLINK, (ip_interface(f"{states.NODE_IP}/24"),)),))


class _State(msgspec.Struct, rename="camel"):
    problems: dict[str, list[str]]
    service_count: int = 0


class Agent:
    """By its local API."""

    def __init__(self, session: aiohttp.ClientSession, process: Child) -> None:
        self._session = session
        self._process = process

    async def holds(self, revision: str) -> None:
        """Returns when the Node holds this state of the cluster: the switch has answered that it does."""
        parameters = {"revision": revision, "timeout": str(PATIENCE)}
        status, content = await self._get("/v1/convergence", parameters)
        if status != HTTPStatus.OK:
            what = f"does not hold what was written after {PATIENCE:.0f} s: {content.decode()}"
            raise LabError(self._process.complaint(what))

    async def serves(self, services: int) -> None:
        """An error if it does not serve that many, or if anything is wrong."""
        _, content = await self._get("/v1/state", {})
        state = msgspec.json.decode(content, type=_State)
        if state.problems or state.service_count != services:
            raise LabError(
                f"the figures are worthless: the agent serves {state.service_count} Services of {services}, "
                f"with the problems {state.problems}"
            )

    async def _get(self, path: str, parameters: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            async with self._session.get(f"http://agent{path}", params=parameters) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LabError(self._process.complaint(f"does not answer: {error}")) from None


class Server:
    """The API server, as somebody who may do everything."""

    def __init__(self, plane: ControlPlane, connection: APIConnection) -> None:
        self.connection = connection
        self._plane = plane

    async def write(self, method: str, path: str, document: object, content_type: str = "application/json") -> None:
        try:
            await self.connection.request(method, path, body=msgspec.json.encode(document), content_type=content_type)
        except (RequestRefused, Unreachable) as error:
            raise LabError(f"{method} {path}: {error}") from None

    async def cluster(self) -> Cluster:
        """As an agent reads it; all that was written before is in it."""
        access = self._plane.access(ADMINISTRATOR)
        source = APIServer(lambda: access, states.NODE, self._plane.socket_factory)
        try:
            async with aclosing(source.changes()) as changes:
                return (await anext(changes)).cluster
        except SourceAway as error:
            raise LabError(str(error)) from None


@asynccontextmanager
async def standing(lab: Lab) -> AsyncIterator[tuple[Server, Agent]]:
    """With the Node's object and nothing else in the cluster; the Node is about to become ready."""
    underlay = Underlay(lab, segments([CONTROL_PLANE, NODE]))
    await asyncio.to_thread(underlay.create)
    plane_namespace = await asyncio.to_thread(underlay.plug, CONTROL_PLANE)
    node_namespace = await asyncio.to_thread(underlay.plug, NODE)
    plane = ControlPlane(plane_namespace, lab.folder / "control-plane", [one.ip for one in ADDRESSES])
    switch = ovs.SwitchProcesses(states.NODE, node_namespace, lab.node_folder(states.NODE) / "ovs")
    try:
        await plane.start()
        await switch.start()
        access = plane.access(ADMINISTRATOR)  # read once: there will be many requests
        async with APIConnection(lambda: access, plane.socket_factory) as connection:
            server = Server(plane, connection)
            await _make_node(server)
            async with _agent(lab, plane, node_namespace, switch) as agent:
                yield server, agent
    finally:
        await switch.end()
        await plane.end()


async def _make_node(server: Server) -> None:
    node = msgspec.to_builtins(states.cluster(0, 0).nodes[states.NODE]) | {"apiVersion": "v1"}
    await server.write("POST", "/api/v1/nodes", node)
    await server.write(
        "PATCH", f"/api/v1/nodes/{states.NODE}/status", {"status": node["status"]}, "application/merge-patch+json"
    )


@asynccontextmanager
async def _agent(lab: Lab, plane: ControlPlane, namespace: str, switch: ovs.SwitchProcesses) -> AsyncIterator[Agent]:
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
        patience = aiohttp.ClientTimeout(total=PATIENCE + 10)
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket)), timeout=patience) as session:
            yield Agent(session, process)
    finally:
        await process.kill()
