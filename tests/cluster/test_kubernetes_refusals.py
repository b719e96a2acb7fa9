"""A server that refuses, is away, or answers with something else: what the source of the cluster reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from api_servers import (
    BUILT_IN,
    CIDRS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    SLICES,
    Listener,
    StandIn,
    address,
    listening,
    move,
    shop_server,
    until,
)

from windlass.cluster.changes import EVERYTHING
from windlass.cluster.kubernetes import connections
from windlass.cluster.kubernetes.credentials import Access
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.sources import SourceAway

RIGHT, WRONG = "right", "wrong"


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    async with shop_server() as stand_in:
        yield stand_in


async def refusal(server: StandIn, **access: str) -> str:
    source = APIServer(lambda: Access(server.address, "a test", "the token in /t", **access), "node-1")
    with pytest.raises(SourceAway) as error:
        await Listener(source.changes()).hear()
    return str(error.value)


async def test_a_refused_token(server):
    server.token = RIGHT
    assert await refusal(server, token=WRONG) == (
        f"{server.address} does not accept the token in /t (401); is it expired, or of another cluster?"
    )


async def test_a_missing_role(server):
    server.refusals[SLICES] = 403, 'endpointslices is forbidden: User "windlass" cannot list resource'
    sentence = await refusal(server)
    assert "forbids it (403): endpointslices is forbidden" in sentence
    assert "ClusterRole" in sentence


async def test_a_server_that_is_no_api_server(server):
    for path in (NODES, PODS, NAMESPACES, SERVICES, SLICES, CIDRS):
        server.refusals[path] = 200, b"<html>It works!</html>"
    assert "does not answer like an API server" in await refusal(server)


async def test_an_unreachable_server(server):
    await server.stop()
    sentence = await refusal(server)
    assert sentence.startswith(f"{server.address}: ")
    assert "Check a test" in sentence


async def test_the_token_is_read_for_each_request(server, tmp_path):
    file = tmp_path / "token"
    file.write_text(WRONG)
    server.token = WRONG
    source = APIServer(lambda: Access(server.address, "a test", "a token", token=file.read_text()), "node-1")
    changes = source.changes()
    listener = Listener(changes)
    await listener.hear()
    server.token = RIGHT
    file.write_text(RIGHT)
    server.cut(SLICES)
    await until(lambda: not server.is_watched(SLICES))
    move(server, "172.16.1.6")
    change = await listener.hear()
    await changes.aclose()
    assert address(change) == "172.16.1.6"
    assert change.cluster.problems == ()


async def test_a_server_that_is_away_at_the_start_is_reported_once_and_then_followed(server):
    await server.stop()
    source = APIServer(lambda: Access(server.address, "a test", "a token"), "node-1")
    with pytest.raises(SourceAway):
        await Listener(source.changes()).hear()
    changes = source.changes()
    hearing = asyncio.create_task(Listener(changes).hear())
    await server.start()
    change = await hearing
    await changes.aclose()
    assert set(change.cluster.services) == {"shop/web"}
    assert change.changes == EVERYTHING


async def test_a_server_behind_its_own_service_is_a_problem(server):
    server.put(SERVICES, "kubernetes", "default", spec={"clusterIPs": ["127.0.0.1"]})
    async with listening(server) as listener:
        cluster, *_ = await listener.hear()
    assert "127.0.0.1 is the ClusterIP of Service default/kubernetes" in str(cluster.problems[0])
    assert "apiServer" in str(cluster.problems[0])


async def test_a_watch_without_data_starts_again(server, monkeypatch):
    """The machine answers, but the server sends nothing, not even bookmarks."""
    monkeypatch.setattr(connections, "SILENT_SECONDS", 0.3)
    async with listening(server) as listener:
        await listener.hear()
        asked = len(server.watches(SLICES))
        await until(lambda: len(server.watches(SLICES)) > asked)
        move(server, "172.16.1.6")
        assert address(await listener.hear()) == "172.16.1.6"


async def test_a_server_that_ignores_the_request_for_a_list(server):
    """A server before 1.27 sends the objects, but never the bookmark that ends the list."""
    server.ends_lists = False
    async with listening(server) as listener:
        first = asyncio.create_task(listener.hear())
        await until(lambda: all(server.is_watched(kind.path) for kind in BUILT_IN))
        for path in (kind.path for kind in BUILT_IN):
            server.bookmark(path)
        change = await first
        assert set(change.cluster.services) == {"shop/web"}
        move(server, "172.16.1.6")
        assert address(await listener.hear()) == "172.16.1.6"
