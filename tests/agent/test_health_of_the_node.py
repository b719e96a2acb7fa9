"""Health checks of a whole agent, as a load balancer sees them: on the Node, and from outside by its main address."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from fed_agents import NODE_IP, FedAgent, endpoints, fed_agent, node, service

from switches import requires_ovs
from windlass.agent import status as statuses
from windlass.cluster.objects import Taint

pytestmark = requires_ovs

LOCAL = {
    "type": "LoadBalancer",
    "externalTrafficPolicy": "Local",
    "healthCheckNodePort": 31500,
}


@pytest_asyncio.fixture
async def fed() -> AsyncIterator[FedAgent]:
    async with fed_agent() as fed:
        yield fed


async def get(address: str, port: int, path: str = "/") -> tuple[int | str, dict[str, object]]:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}:{port}{path}") as answer:
            return answer.status, json.loads(await answer.read())
    except aiohttp.ClientConnectorError:
        return "refused", {}


async def code(address: str, port: int, path: str = "/") -> int | str:
    return (await get(address, port, path))[0]


async def code_from_outside(fed: FedAgent, port: int, path: str = "/") -> str:
    """Asked by a process in the namespace of another machine."""
    asking = (
        f"import urllib.request as r, urllib.error as e\n"
        f"try: print(r.urlopen('http://{NODE_IP}:{port}{path}', timeout=10).status)\n"
        f"except e.HTTPError as error: print(error.code)\n"
        f"except e.URLError as error: print('refused')\n"
    )
    process = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", fed.outside, sys.executable, "-c", asking), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode().strip()


async def test_a_service_is_healthy_where_it_has_a_ready_endpoint(fed: FedAgent) -> None:
    await fed.holds(service("web", "10.96.0.1", **LOCAL), endpoints("web", "172.16.2.5"))
    assert await code(NODE_IP, 31500) == 503
    await fed.holds(endpoints("web", "172.16.1.5", "172.16.2.5"))
    assert await get(NODE_IP, 31500) == (
        200,
        {"service": {"namespace": "default", "name": "web"}, "localEndpoints": 1, "serviceProxyHealthy": True},
    )
    assert await code("127.0.0.1", 31500) == 200
    assert await code_from_outside(fed, 31500) == "200", "by the uplink: no NodePort, so it is the host's"
    await fed.holds(endpoints("web", "172.16.1.5", ready=False, serving=True, terminating=True))
    assert await code_from_outside(fed, 31500) == "503", "one that ends is not ready"
    await fed.holds("Service default/web")
    assert await code(NODE_IP, 31500) == "refused"
    assert await code_from_outside(fed, 31500) == "refused"


async def test_the_node_is_healthy_while_it_follows_the_cluster(fed: FedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await code(NODE_IP, 10256, "/healthz") == await code(NODE_IP, 10256, "/livez") == 200
    assert await code_from_outside(fed, 10256, "/healthz") == "200"
    # The agent cannot apply this change while the lock is held.
    monkeypatch.setattr(statuses, "STALLED", -1.0)
    async with fed.agent._follower._following:
        fed.source.put(service("web", "10.96.0.1", **LOCAL), endpoints("web", "172.16.1.5"))
        while fed.agent.status.healthy:  # noqa: ASYNC110 (no event tells when the agent has seen it)
            await asyncio.sleep(0)
        assert await code(NODE_IP, 10256, "/healthz") == await code(NODE_IP, 10256, "/livez") == 503
    monkeypatch.undo()
    await fed.reaches("2")
    assert await code(NODE_IP, 10256, "/healthz") == 200
    assert await code(NODE_IP, 31500) == 200


async def test_the_node_is_unhealthy_while_its_switch_is_down(fed: FedAgent) -> None:
    await fed.holds(service("web", "10.96.0.1", **LOCAL), endpoints("web", "172.16.1.5"))
    await fed.switch._switch.kill()
    status = fed.agent.status
    assert await status.wait_until(lambda: not status.ready, 20)
    told = (await get(NODE_IP, 10256, "/healthz"))[0], await get(NODE_IP, 31500)
    assert told == (
        503,
        (
            503,
            {"service": {"namespace": "default", "name": "web"}, "localEndpoints": 1, "serviceProxyHealthy": False},
        ),
    )


async def test_a_node_that_is_being_deleted_is_unhealthy(fed: FedAgent) -> None:
    await fed.holds(node(deletionTimestamp=datetime.now(UTC).isoformat()))
    assert await code(NODE_IP, 10256, "/healthz") == 503
    assert await code(NODE_IP, 10256, "/livez") == 200
    await fed.holds(node())
    assert await code(NODE_IP, 10256, "/healthz") == 200
    leaving = msgspec.structs.replace(node().spec, taints=(Taint("ToBeDeletedByClusterAutoscaler"),))
    await fed.holds(msgspec.structs.replace(node(), spec=leaving))
    assert await code(NODE_IP, 10256, "/healthz") == 503


async def test_a_port_in_use_is_reported_and_everything_else_works(fed: FedAgent) -> None:
    with socket.create_server(("", 31500)):
        await fed.holds(service("web", "10.96.0.1", **LOCAL), endpoints("web", "172.16.1.5"))
        (told,) = fed.agent.view.problems["health checks"]
        assert told.startswith("Service default/web: its health check port 31500 cannot be opened: Address already in")
        assert "nw_dst=10.96.0.1" in await fed.ofctl("dump-flows", "br-int")
    status = fed.agent.status
    assert await status.wait_until(lambda: "health checks" not in fed.agent.view.problems, 20)
    assert await code(NODE_IP, 31500) == 200


async def test_services_are_checked_where_node_ports_answer_and_the_node_where_it_is_configured() -> None:
    options = {"node_port_addresses": ("10.176.25.0/24",), "healthz_bind_address": "127.0.0.1:10300"}
    async with fed_agent(**options) as fed:
        await fed.holds(service("web", "10.96.0.1", **LOCAL), endpoints("web", "172.16.1.5"))
        assert await code(NODE_IP, 31500) == 200
        assert await code("127.0.0.1", 31500) == "refused"
        assert await code("127.0.0.1", 10300, "/healthz") == 200
        assert await code(NODE_IP, 10300, "/healthz") == await code(NODE_IP, 10256, "/healthz") == "refused"
