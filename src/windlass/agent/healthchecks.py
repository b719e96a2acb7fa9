"""The health checks of load balancers: a port for each Service with healthCheckNodePort, and one for the whole Node.

The answers depend only on the state that `set` and the agent have provided.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import ip_address

import msgspec
from aiohttp import web
from msgspec import Struct

from windlass import os_errors
from windlass.model.families import IPAddress, IPNetwork
from windlass.model.nodes import LocalNode
from windlass.model.services import ServedService

RETRY_SECONDS = 1.0  # between attempts to open a port that another program holds

_NODE = ""  # the key of the Node's own check among those of Services
_LOOPBACK = (ip_address("127.0.0.1"), ip_address("::1"))


class ProxyHealth(Struct, frozen=True):
    """The health of this Node, as the agent reports it."""

    healthy: bool  # whether the switch follows the cluster
    node_eligible: bool  # False: the Node is being deleted and should get no new connections
    updated: datetime  # when it last was healthy; with a time zone


class HealthCheck(Struct, frozen=True):
    namespace: str
    name: str
    port: int
    local_endpoints: int  # ready ones on this Node

    def __str__(self) -> str:
        return f"Service {self.namespace}/{self.name}: its health check port {self.port}"


def health_check(service: ServedService) -> HealthCheck | None:
    if not service.health_check_port:
        return None
    return HealthCheck(service.namespace, service.name, service.health_check_port, service.ready_local_endpoints)


def served_addresses(node: LocalNode, node_port_networks: Collection[IPNetwork]) -> frozenset[IPAddress] | None:
    """The addresses of the Node that are in nodePortAddresses; None: nodePortAddresses is empty, which means all."""
    if not node_port_networks:
        return None
    own = [*(address.ip for address in node.addresses.values()), *node.other_addresses, *_LOOPBACK]
    return frozenset(address for address in own if any(address in network for network in node_port_networks))


class HealthChecks:
    def __init__(
        self,
        node_at: tuple[str, int] | None,
        health: Callable[[], ProxyHealth],
        report: Callable[[Iterable[str]], object],
    ) -> None:
        """`node_at`: the address (empty: all) and port of the Node's own check; None: it has none.

        `report` is called with all problems of the ports whenever they have changed.
        """
        # One server for all ports: each port is only a listening socket.
        server = web.Server(self._answer, access_log=None)
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=0.5)
        self._node_at = node_at
        self._health = health
        self._report = report
        self._addresses: frozenset[str] | None = None  # None: everywhere
        self._wanted: dict[str, HealthCheck] = {}  # by the key of the Service
        self._open: dict[int, tuple[str, list[web.SockSite]]] = {}  # the key of the check that owns each port
        self._problems: dict[str, str] = {}
        self._failed = asyncio.Event()
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        await self._runner.setup()
        retries = asyncio.create_task(self._keep_trying(), name="health checks")
        try:
            async with self._lock:
                await self._try(_NODE)
            yield
        finally:
            retries.cancel()
            await asyncio.wait((retries,))
            await self._runner.cleanup()

    async def set(self, key: str, check: HealthCheck | None) -> None:
        """Set the check of this Service; None: it has no check (any more)."""
        if self._wanted.get(key) == check:
            return
        async with self._lock:
            before = self._wanted.pop(key, None)
            if check is not None:
                self._wanted[key] = check
            if before is not None and (check is None or check.port != before.port):
                await self._close(key, before.port)
            await self._try(key)

    async def listen_at(self, addresses: frozenset[IPAddress] | None) -> None:
        """Set the addresses at which checks of Services answer; None: all."""
        texts = None if addresses is None else frozenset(map(str, addresses))
        async with self._lock:
            if texts == self._addresses:
                return
            self._addresses = texts
            for key, check in self._wanted.items():
                await self._close(key, check.port)
            for key in self._wanted:
                await self._try(key)

    async def _keep_trying(self) -> None:
        while True:
            await self._failed.wait()
            await asyncio.sleep(RETRY_SECONDS)
            self._failed.clear()
            async with self._lock:
                for key in list(self._problems):
                    await self._try(key)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        port = request.get_extra_info("sockname")[1]
        key, _ = self._open.get(port, (None, []))
        if key == _NODE:
            return self._answer_for_node(request.path)
        check = self._wanted.get(key) if key else None
        if check is None:  # the connection was open when its Service was deleted
            return _json({"error": "there is no such Service any more"}, 503, {"Connection": "close"})
        healthy = self._health().healthy
        body = {
            "service": {"namespace": check.namespace, "name": check.name},
            "localEndpoints": check.local_endpoints,
            "serviceProxyHealthy": healthy,
        }
        weight = {"X-Load-Balancing-Endpoint-Weight": str(check.local_endpoints)}
        return _json(body, 200 if healthy and check.local_endpoints else 503, weight)

    def _answer_for_node(self, path: str) -> web.Response:
        health = self._health()
        now = datetime.now(UTC)
        body = {"lastUpdated": now if health.healthy else health.updated, "currentTime": now}
        match path:
            case "/healthz":
                body_of_node = {**body, "nodeEligible": health.node_eligible}
                return _json(body_of_node, 200 if health.healthy and health.node_eligible else 503)
            case "/livez":
                return _json(body, 200 if health.healthy else 503)
            case _:
                return _json({"error": f"{path}: not found; the paths are /healthz and /livez"}, 404)

    async def _try(self, key: str) -> None:
        """Open the port of this check, if it has one that is not open."""
        check = self._wanted.get(key)
        if key == _NODE and self._node_at is not None:
            address, port = self._node_at
            addresses = None if address == "" else frozenset((address,))
        elif check is not None:
            addresses, port = self._addresses, check.port
        else:
            self._tell(key, "")
            return
        owner, _ = self._open.get(port, (None, []))
        if owner == key:
            return
        what, problem = self._described(key), ""
        if owner is not None:
            problem = f"{what} cannot be opened: {self._described(owner)} has the same number"
        else:
            try:
                await self._listen(key, port, addresses)
            except OSError as error:
                problem = f"{what} cannot be opened: {os_errors.reason(error)}"
        self._tell(key, problem and f"{problem}; it is tried again every {RETRY_SECONDS:g} s")

    async def _listen(self, key: str, port: int, addresses: frozenset[str] | None) -> None:
        """Listen at all of the addresses; if one fails, at none."""
        sockets: list[socket.socket] = []
        try:
            for address in ("",) if addresses is None else sorted(addresses):
                sockets.append(_bound(address, port))  # noqa: PERF401  # sockets that were opened before a failure must be closed
        except OSError:
            for made in sockets:
                made.close()
            raise
        sites = [web.SockSite(self._runner, made) for made in sockets]
        self._open[port] = key, sites
        for site in sites:
            await site.start()

    async def _close(self, key: str, port: int) -> None:
        owner, sites = self._open.get(port, (None, []))
        if owner == key:
            del self._open[port]
            for site in sites:
                await site.stop()

    def _described(self, key: str) -> str:
        if key == _NODE and self._node_at is not None:
            return f"the Node's health check port {self._node_at[1]}"
        return str(self._wanted.get(key, key))

    def _tell(self, key: str, problem: str) -> None:
        before = self._problems.get(key, "")
        if problem:
            self._problems[key] = problem
            self._failed.set()
        else:
            self._problems.pop(key, None)
        if problem != before:
            self._report(tuple(self._problems.values()))


def _bound(address: str, port: int) -> socket.socket:
    """A listening socket; without an address: for all addresses of both families, or of IPv4 without IPv6."""
    if address:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _json(body: object, status: int, headers: dict[str, str] | None = None) -> web.Response:
    common = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=msgspec.json.encode(body), status=status, headers={**common, **(headers or {})})
