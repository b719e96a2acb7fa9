"""A small HTTP server with the list and watch requests of Kubernetes and faults on demand, and a client of sources."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager

from aiohttp import web

from windlass.cluster.clusters import KINDS, Cluster
from windlass.cluster.kinds import WatchedKind
from windlass.cluster.kubernetes.credentials import Access
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.objects import APIObject
from windlass.cluster.sources import ClusterChange

NODES, PODS, NAMESPACES, SERVICES = "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces", "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
# A cluster has NetworkPolicies, but usually not the custom resources of the other policies.
BUILT_IN = tuple(kind for kind in KINDS if kind.group != "policy.networking.k8s.io")
SECONDS = 20.0  # the timeout of all waits
_CUT = b""


class StandIn:
    """Its answers have the shape of those of kube-apiserver 1.34."""

    def __init__(self, kinds: Iterable[WatchedKind[APIObject]] = BUILT_IN) -> None:
        """Knows these kinds."""
        self._kinds = {kind.path: kind for kind in kinds}
        self.version = 100
        self.streams_lists = True
        self.ends_lists = True  # a server before 1.27 does not
        self.token = ""  # that the server accepts; empty: any
        self.refusals: dict[str, tuple[int, object]] = {}  # status and body, by path
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.address = ""
        self._objects: dict[str, dict[str, dict[str, object]]] = {path: {} for path in self._kinds}
        self._history: dict[str, list[tuple[int, bytes]]] = {path: [] for path in self._kinds}
        self._forgotten = 0
        self._watchers: dict[str, set[asyncio.Queue[bytes]]] = {path: set() for path in self._kinds}
        self._runner: web.AppRunner | None = None
        self._port = 0

    # What happens in the cluster --------------------------------------------------------------------------------

    def put(self, path: str, name: str, namespace: str = "", **fields: object) -> None:
        key = f"{namespace}/{name}"
        happening = "MODIFIED" if key in self._objects[path] else "ADDED"
        self.version += 1
        metadata = {"name": name, "resourceVersion": str(self.version), "managedFields": [{"manager": "kubectl"}]}
        metadata |= {"namespace": namespace} if namespace else {}
        metadata |= fields.pop("metadata", {})  # type: ignore[call-overload]
        self._objects[path][key] = {"metadata": metadata, **fields}
        self._tell(path, happening, self._objects[path][key])

    def remove(self, path: str, name: str, namespace: str = "") -> None:
        gone = self._objects[path].pop(f"{namespace}/{name}")
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)  # type: ignore[index]
        self._tell(path, "DELETED", gone)

    def bookmark(self, path: str, version: int | None = None) -> None:
        self.say(path, self._line("BOOKMARK", path, {"metadata": {"resourceVersion": str(version or self.version)}}))

    def _tell(self, path: str, happening: str, one: dict[str, object]) -> None:
        line = self._line(happening, path, one)
        self._history[path].append((self.version, line))
        self.say(path, line)

    def _line(self, happening: str, path: str, one: dict[str, object]) -> bytes:
        typed = {"kind": self._kinds[path].name, "apiVersion": self._kinds[path].api_version, **one}
        return json.dumps({"type": happening, "object": typed}).encode() + b"\n"

    # Faults -----------------------------------------------------------------------------------------------------

    def say(self, path: str, content: bytes) -> None:
        for watcher in self._watchers[path]:
            watcher.put_nowait(content)

    def cut(self, path: str) -> None:
        """Break the connection."""
        self.say(path, _CUT)

    def forget(self) -> None:
        """As after a compaction: no watch can continue from an earlier version."""
        self._forgotten = self.version

    def is_watched(self, path: str) -> bool:
        return bool(self._watchers[path])

    def watches(self, path: str) -> list[dict[str, str]]:
        return [asked for to, asked in self.requests if to == path and asked.get("watch") == "true"]

    # The server -------------------------------------------------------------------------------------------------

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """A second start uses the same address."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        app.router.add_patch("/{path:.*}", self._answer)  # only with one of the `refusals`
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=tls).start()
        self._port = self._runner.addresses[0][1]
        self.address = f"{'https' if tls else 'http'}://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        for path in self._kinds:
            self.cut(path)
        if self._runner:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path, asked = request.path, dict(request.query)
        self.requests.append((path, asked))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if path in self.refusals:
            code, body = self.refusals[path]
            return _status(code, body) if isinstance(body, str) else web.Response(status=code, body=body)  # type: ignore[arg-type]
        if path not in self._kinds:
            return _status(404, "the server could not find the requested resource")
        if asked.get("watch") == "true":
            return await self._watch(request, path, asked)
        items = [*self._objects[path].values()]
        first = int(asked.get("continue", "0"))
        last = first + int(asked.get("limit", "1000000"))
        metadata = {"resourceVersion": str(self.version), **({"continue": str(last)} if last < len(items) else {})}
        kind = self._kinds[path]
        body = {
            "kind": f"{kind.name}List",
            "apiVersion": kind.api_version,
            "metadata": metadata,
            "items": items[first:last],
        }
        return web.json_response(body)

    async def _watch(self, request: web.Request, path: str, asked: dict[str, str]) -> web.StreamResponse:
        lines: list[bytes] = []
        if asked.get("sendInitialEvents") == "true":
            if not self.streams_lists:
                return _status(422, "sendInitialEvents: Forbidden: unless the WatchList feature gate is enabled")
            lines = [self._line("ADDED", path, one) for one in self._objects[path].values()]
            end = {"resourceVersion": str(self.version), "annotations": {"k8s.io/initial-events-end": "true"}}
            lines += [self._line("BOOKMARK", path, {"metadata": end})] if self.ends_lists else []
        elif int(asked["resourceVersion"]) < self._forgotten:
            status = {"kind": "Status", "status": "Failure", "message": "too old resource version", "code": 410}
            lines.append(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        else:
            lines = [line for version, line in self._history[path] if version > int(asked["resourceVersion"])]
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watchers[path].add(queue)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            for line in lines:
                await response.write(line)
            while (content := await queue.get()) != _CUT:
                await response.write(content)
            if request.transport:
                request.transport.abort()
        finally:
            self._watchers[path].discard(queue)
        return response


class Listener:
    """Takes one ClusterChange after the other from a ClusterSource."""

    def __init__(self, changes: AsyncIterator[ClusterChange]) -> None:
        self._changes = changes

    async def hear(self) -> ClusterChange:
        async with asyncio.timeout(SECONDS):
            return await anext(self._changes)


@asynccontextmanager
async def listening(server: StandIn, node: str = "node-1", cluster: type[Cluster] = Cluster) -> AsyncIterator[Listener]:
    def access() -> Access:
        return Access(server.address, "a test", "a token", token=server.token)

    source = APIServer(access, node, cluster=cluster)
    async with aclosing(source.changes()) as changes:
        yield Listener(changes)


@asynccontextmanager
async def shop_server() -> AsyncIterator[StandIn]:
    """A server with one object of most kinds."""
    stand_in = StandIn()
    stand_in.put(NODES, "node-1", spec={"podCIDRs": ["172.16.1.0/24"]})
    stand_in.put(NAMESPACES, "shop")
    stand_in.put(SERVICES, "web", "shop", spec={"clusterIPs": ["10.96.0.10"]})
    stand_in.put(SLICES, "web-1", "shop", endpoints=[{"addresses": ["172.16.1.5"]}])
    stand_in.put(CIDRS, "kubernetes", spec={"cidrs": ["10.96.0.0/16"]})
    stand_in.put(PODS, "web-0", "shop", status={"podIPs": [{"ip": "172.16.1.5"}]})
    await stand_in.start()
    yield stand_in
    await stand_in.stop()


async def until(condition) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - the server gives no signal
            await asyncio.sleep(0.01)


def address(change: ClusterChange) -> str:
    endpoints = change.cluster.slices["shop/web-1"].endpoints
    assert endpoints
    assert endpoints[0].addresses
    return endpoints[0].addresses[0]


def move(server: StandIn, to: str) -> None:
    server.put(SLICES, "web-1", "shop", endpoints=[{"addresses": [to]}])


def _status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return web.json_response(body, status=code)
