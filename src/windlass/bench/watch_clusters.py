"""A real control plane, and a Node with a switch and an agent that watches it; and how long a write to it takes.

The agent is a separate process, as on a Node. The floor of a write is the time until a client that only watches
receives its event.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from ipaddress import ip_interface
from pathlib import Path

import aiohttp
import msgspec
import yaml
from msgspec import Raw

from windlass.bench import service_states as states
from windlass.bench.bench_nodes import plugged
from windlass.cluster.clusters import Cluster
from windlass.cluster.kinds import WatchedKind
from windlass.cluster.kubernetes import decoding
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused, Unreachable
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.kubernetes.stores import ObjectStore
from windlass.cluster.objects import APIObject
from windlass.cluster.sources import SourceAway
from windlass.lab.control.api_servers import ADDRESSES
from windlass.lab.control.control_planes import ADMINISTRATOR, ControlPlane
from windlass.lab.network import ovs
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.sandbox.processes import Child
from windlass.lab.scenarios.segments import UPLINK, Machine, Nic

TIMEOUT = 120.0  # seconds
_PAUSE = 0.02  # seconds between writes
_CONCURRENT_WRITES = 20  # while objects are created
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
        """The cluster as an agent reads it, including all earlier writes."""
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


# ---- one write


def digest(kind: WatchedKind[APIObject], one: APIObject) -> int:
    """Its part of the cluster's revision, from which the revision after a write is computed beforehand."""
    store = ObjectStore(kind)
    store.put(Raw(msgspec.json.encode(one)))
    return store.digest


async def run_concurrently(writes: Iterable[Coroutine[object, object, None]]) -> None:
    waiting = iter(writes)

    async def worker() -> None:
        for write in waiting:
            await write

    await asyncio.gather(*(worker() for _ in range(_CONCURRENT_WRITES)))


@asynccontextmanager
async def watched(
    server: APIServerClient, path: str, selectors: Mapping[str, str], take: Callable[[list[bytes]], None]
) -> AsyncIterator[None]:
    """Watch these objects from now on. `take` gets the events, which are not decoded."""
    listed = await server.connection.request("GET", path, {"limit": "1"})
    parameters = {"watch": "true", "resourceVersion": decoding.page(listed).metadata.resource_version}
    async with server.connection.stream(path, {**selectors, **parameters}) as chunks:

        async def follow() -> None:
            async for lines in decoding.line_batches(chunks):
                take(lines)

        following = asyncio.create_task(follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait([following])


class WatchArrivals:
    """The arrival times of events of a watch."""

    def __init__(self) -> None:
        self._wanted = b""
        self._arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def of(self, content: bytes) -> float:
        """Wait for the event that contains these bytes. Returns the time of its arrival."""
        self._wanted, self._arrived = content, asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(self._arrived, TIMEOUT)
        except TimeoutError:
            raise LabError(f"a watch has not received the event of a write after {TIMEOUT:.0f} s") from None

    def take(self, lines: list[bytes]) -> None:
        if self._wanted and any(self._wanted in line for line in lines) and not self._arrived.done():
            self._arrived.set_result(time.perf_counter())


async def time_write(
    write: Coroutine[object, object, None], agent: AgentClient, revision: int, arrivals: WatchArrivals, content: bytes
) -> tuple[float, float]:
    """Milliseconds until the agent holds this revision, and until the event with this content has arrived."""

    async def held() -> float:
        await agent.holds(f"{revision:016x}")
        return time.perf_counter()

    holding, arriving = asyncio.create_task(held()), asyncio.create_task(arrivals.of(content))
    await asyncio.sleep(_PAUSE)  # by now both tasks wait
    began = time.perf_counter()
    await write
    return 1000 * (await holding - began), 1000 * (await arriving - began)


@asynccontextmanager
async def watching(server: APIServerClient, kind: WatchedKind[APIObject]) -> AsyncIterator[WatchArrivals]:
    """A client that watches the same objects as an agent."""
    arrivals = WatchArrivals()
    async with watched(server, kind.path, kind.selectors(states.NODE), arrivals.take):
        yield arrivals
