"""Health checks as a load balancer sees them: over HTTP, on a temporary machine with two addresses."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import ip_address, ip_interface, ip_network
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import pytest

from windlass.agent.healthchecks import HealthCheck, HealthChecks, ProxyHealth, health_check, served_addresses
from windlass.host.linux import namespaces
from windlass.model.families import Family
from windlass.model.nodes import LocalNode, OperatingSystem, TrafficMode, TunnelType
from windlass.model.services import ServedService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")

WEB = HealthCheck("default", "web", 31000, local_endpoints=2)
LONG_AGO = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PATIENCE = 10


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    name = f"wlhealth-{os.getpid()}"
    path = namespaces.create(name)
    try:
        with namespaces.entered(path):
            commands = "link set lo up\naddr add 192.0.2.5/32 dev lo\naddr add 2001:db8::5/128 dev lo nodad\n"
            subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)
            yield
    finally:
        namespaces.delete(name)


class Agent:
    """The state that the checks report, and the problems that they reported."""

    def __init__(self) -> None:
        self.health = ProxyHealth(healthy=True, node_eligible=True, updated=LONG_AGO)
        self.problems: tuple[str, ...] = ()
        self._reported = asyncio.Condition()

    def report(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        task = asyncio.get_running_loop().create_task(self._wake())
        task.add_done_callback(asyncio.Task.result)

    async def _wake(self) -> None:
        async with self._reported:
            self._reported.notify_all()

    async def settled(self) -> None:
        async with asyncio.timeout(PATIENCE), self._reported:
            await self._reported.wait_for(lambda: not self.problems)

    @asynccontextmanager
    async def checks(self, node_at: tuple[str, int] | None = ("", 10256)) -> AsyncIterator[HealthChecks]:
        checks = HealthChecks(node_at, lambda: self.health, self.report)
        async with checks.serving():
            yield checks


async def get(address: str, port: int, path: str = "/") -> tuple[int, dict[str, str], bytes]:
    at = f"[{address}]" if ":" in address else address
    async with aiohttp.ClientSession() as session, session.get(f"http://{at}:{port}{path}") as answer:
        return answer.status, dict(answer.headers), await answer.read()


async def status(address: str, port: int, path: str = "/") -> int | str:
    try:
        return (await get(address, port, path))[0]
    except aiohttp.ClientConnectorError:
        return "refused"


async def test_a_service_with_ready_local_endpoints_is_healthy_at_every_address():
    async with Agent().checks() as checks:
        await checks.set("default/web", WEB)
        for address in ("127.0.0.1", "192.0.2.5", "::1", "2001:db8::5"):
            code, headers, body = await get(address, 31000, "/whatever")
            assert code == 200
            assert body == (
                b'{"service":{"namespace":"default","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}'
            )
            assert headers["Content-Type"] == "application/json"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Load-Balancing-Endpoint-Weight"] == "2"


async def test_a_service_without_ready_local_endpoints_or_a_healthy_agent_is_unhealthy():
    agent = Agent()
    async with agent.checks() as checks:
        await checks.set("default/web", HealthCheck("default", "web", 31000, local_endpoints=0))
        code, headers, body = await get("192.0.2.5", 31000)
        assert (code, headers["X-Load-Balancing-Endpoint-Weight"]) == (503, "0")
        assert b'"localEndpoints":0,"serviceProxyHealthy":true' in body

        await checks.set("default/web", WEB)
        assert await status("192.0.2.5", 31000) == 200
        agent.health = ProxyHealth(healthy=False, node_eligible=True, updated=LONG_AGO)
        code, headers, body = await get("192.0.2.5", 31000)
        assert (code, headers["X-Load-Balancing-Endpoint-Weight"]) == (503, "2")
        assert b'"serviceProxyHealthy":false' in body

        # A Node that is being deleted serves what it has: only the Node's own check fails.
        agent.health = ProxyHealth(healthy=True, node_eligible=False, updated=LONG_AGO)
        assert await status("192.0.2.5", 31000) == 200


@pytest.mark.parametrize(
    ("healthy", "eligible", "healthz", "livez"),
    [(True, True, 200, 200), (True, False, 503, 200), (False, True, 503, 503)],
)
async def test_the_nodes_own_check(healthy, eligible, healthz, livez):
    agent = Agent()
    agent.health = ProxyHealth(healthy=healthy, node_eligible=eligible, updated=LONG_AGO)
    async with agent.checks():
        for address in ("192.0.2.5", "2001:db8::5"):
            assert await status(address, 10256, "/healthz") == healthz
            assert await status(address, 10256, "/livez") == livez
            assert await status(address, 10256, "/") == 404
        _, headers, body = await get("192.0.2.5", 10256, "/healthz")
        told = msgspec.json.decode(body)
        assert told["nodeEligible"] is eligible
        assert (told["lastUpdated"] == told["currentTime"]) is healthy
        assert healthy or told["lastUpdated"] == "2026-01-02T03:04:05Z"
        assert (headers["Content-Type"], headers["X-Content-Type-Options"]) == ("application/json", "nosniff")
        assert msgspec.json.decode((await get("192.0.2.5", 10256, "/livez"))[2]).keys() == {
            "lastUpdated",
            "currentTime",
        }


async def test_the_nodes_own_check_is_at_the_configured_address():
    async with Agent().checks(node_at=("192.0.2.5", 10300)):
        assert await status("192.0.2.5", 10300, "/livez") == 200
        assert await status("127.0.0.1", 10300, "/livez") == await status("192.0.2.5", 10256, "/livez") == "refused"
    async with Agent().checks(node_at=None) as checks:
        await checks.set("default/web", WEB)
        assert await status("192.0.2.5", 10256, "/livez") == "refused"
        assert await status("192.0.2.5", 31000) == 200


async def test_ports_follow_added_changed_and_deleted_services():
    async with Agent().checks() as checks:
        await checks.set("default/web", WEB)
        await checks.set("default/api", HealthCheck("default", "api", 31001, local_endpoints=1))
        assert [await status("192.0.2.5", port) for port in (31000, 31001)] == [200, 200]
        await checks.set("default/web", HealthCheck("default", "web", 31002, local_endpoints=2))
        assert [await status("192.0.2.5", port) for port in (31000, 31001, 31002)] == ["refused", 200, 200]
        await checks.set("default/web", None)
        await checks.set("default/web", None)
        assert [await status("192.0.2.5", port) for port in (31001, 31002)] == [200, "refused"]
    assert await status("192.0.2.5", 31001) == await status("192.0.2.5", 10256, "/livez") == "refused"


async def test_an_open_connection_gets_an_answer_after_its_service_is_deleted():
    async with Agent().checks() as checks, aiohttp.ClientSession() as session:
        await checks.set("default/web", WEB)
        async with session.get("http://192.0.2.5:31000/") as answer:
            assert answer.status == 200
            await answer.read()
        await checks.set("default/web", None)
        async with session.get("http://192.0.2.5:31000/") as answer:  # by the same connection
            assert answer.status == 503


async def test_services_answer_at_the_configured_addresses_only():
    async with Agent().checks() as checks:
        await checks.set("default/web", WEB)
        for addresses, answering in (
            (frozenset((ip_address("192.0.2.5"),)), [200, "refused", "refused"]),
            (frozenset(map(ip_address, ("2001:db8::5", "127.0.0.1"))), ["refused", 200, 200]),
            (frozenset(), ["refused", "refused", "refused"]),
            (None, [200, 200, 200]),
        ):
            await checks.listen_at(addresses)
            await checks.listen_at(addresses)
            assert [await status(address, 31000) for address in ("192.0.2.5", "2001:db8::5", "127.0.0.1")] == answering
            assert await status("127.0.0.1", 10256, "/livez") == 200


async def test_a_port_in_use_is_reported_and_opened_when_it_is_free():
    agent = Agent()
    with socket.create_server(("192.0.2.5", 31000)), socket.create_server(("192.0.2.5", 10256)):
        async with agent.checks() as checks:
            await checks.set("default/web", WEB)
            await checks.set("default/api", HealthCheck("default", "api", 31001, local_endpoints=1))
            taken = "cannot be opened: Address already in use; it is tried again every 1 s"
            assert agent.problems == (
                f"the Node's health check port 10256 {taken}",
                f"Service default/web: its health check port 31000 {taken}",
            )
            assert await status("192.0.2.5", 31001) == 200
            await checks.set("default/web", None)
            assert len(agent.problems) == 1
            await checks.set("default/web", WEB)
    # Once more; this time the other program releases the port.
    other = socket.create_server(("192.0.2.5", 31000))
    async with agent.checks() as checks:
        await checks.set("default/web", WEB)
        assert len(agent.problems) == 1
        other.close()
        await agent.settled()
        assert await status("192.0.2.5", 31000) == 200


async def test_the_first_of_two_services_with_one_port_keeps_it_until_it_is_deleted():
    agent = Agent()
    async with agent.checks() as checks:
        await checks.set("default/web", WEB)
        await checks.set("default/api", HealthCheck("default", "api", 31000, local_endpoints=1))
        (problem,) = agent.problems
        assert problem.startswith(
            "Service default/api: its health check port 31000 cannot be opened: "
            "Service default/web: its health check port 31000 has the same number"
        )
        assert b'"name":"web"' in (await get("192.0.2.5", 31000))[2]
        await checks.set("default/web", None)
        await agent.settled()
        assert b'"name":"api"' in (await get("192.0.2.5", 31000))[2]


def test_only_services_with_a_health_check_port_are_checked():
    service = ServedService("default", "web", (), (), health_check_port=31000, ready_local_endpoints=2)
    assert health_check(service) == WEB
    assert health_check(ServedService("default", "web", (), ())) is None


def test_checks_are_served_where_node_ports_are():
    node = LocalNode(
        name="node-1",
        mode=TrafficMode.ENCAP,
        tunnel=TunnelType.GENEVE,
        os=OperatingSystem.LINUX,
        addresses={Family.IPV4: ip_interface("192.0.2.5/24"), Family.IPV6: ip_interface("2001:db8::5/64")},
        pod_cidrs={Family.IPV4: ip_network("10.0.1.0/24")},
        uplink_mac="02:00:00:00:00:05",
        other_addresses=(ip_address("198.51.100.5"),),
    )
    assert served_addresses(node, ()) is None
    assert served_addresses(node, [ip_network("198.51.0.0/16"), ip_network("127.0.0.0/8")]) == {
        ip_address("198.51.100.5"),
        ip_address("127.0.0.1"),
    }
    assert served_addresses(node, [ip_network("10.0.0.0/8")]) == frozenset()
