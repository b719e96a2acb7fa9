"""Clients that keep their port while a Service changes: UDP clients get another endpoint, TCP connections stay."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import pytest_asyncio
from fed_agents import OUTSIDE_IPS, FedAgent, endpoints, fed_agent, fed_node, node, service

from switches import requires_ovs
from windlass.host.linux import namespaces

pytestmark = requires_ovs

ONE, OTHER = OUTSIDE_IPS
DNS = {"name": "http", "port": 53, "protocol": "UDP"}
CLUSTER_IP = ("10.96.0.1", 53)
OPTIONS = {"service_cidrs": ("10.96.0.0/16",)}
PATIENCE = 5.0


@pytest_asyncio.fixture
async def fed() -> AsyncIterator[FedAgent]:
    async with fed_agent(**OPTIONS) as fed:
        with servers(fed):
            yield fed


@contextmanager
def servers(fed: FedAgent) -> Iterator[None]:
    """Endpoints outside of the cluster, each of which answers with its name."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        for name in OUTSIDE_IPS:
            with namespaces.entered(namespaces.path_of(fed.outside)):
                made = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                made.bind((name, 8080))
            made.setblocking(False)
            loop.add_reader(made, _answer, made, name)
            stack.callback(loop.remove_reader, made)
        yield


def _answer(made: socket.socket, name: str) -> None:
    _, client = made.recvfrom(100)
    made.sendto(name.encode(), client)


@contextmanager
def client() -> Iterator[socket.socket]:
    """A client on the Node that keeps its port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.setblocking(False)
        made.connect(CLUSTER_IP)
        yield made


async def asked(made: socket.socket) -> str:
    """The name of the endpoint that answers."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE):
            await loop.sock_sendall(made, b"who?")
            return (await loop.sock_recv(made, 100)).decode()
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "nobody"


def dns(*addresses: str, **conditions: bool) -> list[object]:
    return [service("dns", CLUSTER_IP[0], DNS), endpoints("dns", *addresses, protocol="UDP", **conditions)]


async def test_a_udp_client_gets_another_endpoint_when_its_own_is_removed(fed: FedAgent) -> None:
    await fed.settled(*dns(ONE))
    with client() as one:
        assert await asked(one) == ONE
        await fed.settled(*dns(ONE, OTHER))
        assert [await asked(one) for _ in range(10)] == [ONE] * 10
        await fed.settled(*dns(OTHER))
        assert await asked(one) == OTHER


async def test_many_udp_clients_get_other_endpoints(fed: FedAgent) -> None:
    """More than the switch handles at once. Clients whose endpoint stays are not affected."""
    await fed.settled(*dns(ONE, OTHER))
    with ExitStack() as stack:
        clients = [stack.enter_context(client()) for _ in range(200)]
        before = [await asked(one) for one in clients]
        assert set(before) == {ONE, OTHER}
        groups = await fed.ofctl("dump-groups", "br-int")
        await fed.settled(*dns(OTHER))
        assert {await asked(one) for one in clients} == {OTHER}
        await fed.settled(*dns(ONE, OTHER))
        assert await fed.ofctl("dump-groups", "br-int") == groups
        assert {await asked(one) for one in clients} == {OTHER}


async def test_a_client_keeps_a_terminating_endpoint_that_serves(fed: FedAgent) -> None:
    await fed.settled(*dns(ONE))
    with client() as one:
        assert await asked(one) == ONE
        ending = endpoints("dns-2", ONE, protocol="UDP", of="dns", ready=False, serving=True, terminating=True)
        await fed.settled(*dns(OTHER), ending)
        assert [await asked(one) for _ in range(5)] == [ONE] * 5
        await fed.settled("EndpointSlice default/dns-2")
        assert await asked(one) == OTHER


async def test_a_udp_client_is_refused_without_endpoints_and_served_again_with_one(fed: FedAgent) -> None:
    await fed.settled(*dns(ONE))
    with client() as one:
        assert await asked(one) == ONE
        await fed.settled(*dns())
        assert await asked(one) == "refused"
        await fed.settled(*dns(OTHER))
        assert await asked(one) == OTHER


async def test_a_client_that_is_older_than_its_service_is_served(fed: FedAgent) -> None:
    with client() as one:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            await loop.sock_sendall(one, b"who?")
        await fed.settled(*dns(ONE))
        assert await asked(one) == ONE
        await fed.settled("Service default/dns")
        assert await asked(one) in {"refused", "nobody"}
        await fed.settled(*dns(OTHER))
        assert await asked(one) == OTHER


async def test_connections_are_flushed_for_changes_while_no_agent_ran() -> None:
    async with fed_node(**OPTIONS) as fed:
        with servers(fed), client() as one:
            async with fed.running():
                await fed.settled(node())
                await fed.settled(*dns(ONE))
                assert await asked(one) == ONE
            fed.source.put(*dns(OTHER))
            assert await asked(one) == ONE, "without an agent nothing changes"
            async with fed.running():
                await fed.settled(node())
                assert await asked(one) == OTHER


@pytest.mark.parametrize("left", [[OTHER], []])
async def test_tcp_connections_are_not_flushed_with_their_endpoint(fed: FedAgent, left: list[str]) -> None:
    """They end when the endpoint itself ends them."""
    web = service("web", CLUSTER_IP[0], {"name": "http", "port": 53})
    with namespaces.entered(namespaces.path_of(fed.outside)):
        listening = socket.create_server((ONE, 8080))
    with listening:
        await fed.settled(web, endpoints("web", ONE))
        reader, writer = await asyncio.open_connection(*CLUSTER_IP)
        listening.setblocking(False)
        accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
        with accepted:
            await fed.settled(endpoints("web", *left))
            await fed.settled("Service default/web")
            await asyncio.get_running_loop().sock_sendall(accepted, b"still here\n")
            async with asyncio.timeout(PATIENCE):
                assert await reader.readline() == b"still here\n"
        writer.close()
        await writer.wait_closed()
