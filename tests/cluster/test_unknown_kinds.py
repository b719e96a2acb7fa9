"""A server that does not know ClusterNetworkPolicies, for a moment or for good: they stay until it is certain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from api_servers import SECONDS, Listener, StandIn, listening, until

from windlass.cluster.clusters import KINDS, Cluster
from windlass.cluster.kubernetes import feeds
from windlass.cluster.kubernetes.credentials import Access
from windlass.cluster.kubernetes.servers import APIServer

POLICIES = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
UNKNOWN = 404, "the server could not find the requested resource"


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandIn]:
    monkeypatch.setattr(feeds, "_ASK_SOON", 0.01)
    monkeypatch.setattr(feeds, "_ASK_AGAIN", 0.01)
    server = StandIn(KINDS)
    await server.start()
    server.put(POLICIES, "deny", spec={"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}})
    try:
        yield server
    finally:
        await server.stop()


async def test_policies_stay_if_the_server_does_not_know_their_kind_for_a_moment(server, monkeypatch):
    monkeypatch.setattr(feeds, "_BELIEVED_AFTER", SECONDS)
    async with listening(server) as listener:
        assert set((await listener.hear()).cluster.cluster_network_policies) == {"deny"}
        await until(lambda: server.is_watched(POLICIES))
        server.refusals[POLICIES] = UNKNOWN
        server.cut(POLICIES)
        cluster = (await listener.hear()).cluster
        assert set(cluster.cluster_network_policies) == {"deny"}
        assert [str(one).rpartition("; ")[2] for one in cluster.problems] == [
            "the state that was read before stays in use"
        ]
        del server.refusals[POLICIES]
        cluster = (await listener.hear()).cluster
        assert set(cluster.cluster_network_policies) == {"deny"}
        assert cluster.problems == ()


async def test_policies_end_with_their_kind(server, monkeypatch):
    monkeypatch.setattr(feeds, "_BELIEVED_AFTER", 0.02)
    async with listening(server) as listener:
        await listener.hear()
        await until(lambda: server.is_watched(POLICIES))
        server.refusals[POLICIES] = UNKNOWN
        server.cut(POLICIES)
        while (cluster := (await listener.hear()).cluster).cluster_network_policies:
            pass
        assert cluster.problems == ()


async def test_an_agent_that_starts_keeps_the_policies_that_it_had_saved(server, monkeypatch):
    monkeypatch.setattr(feeds, "_BELIEVED_AFTER", 0.2)
    async with listening(server) as listener:
        saved: Cluster = (await listener.hear()).cluster
    server.refusals[POLICIES] = UNKNOWN
    source = APIServer(lambda: Access(server.address, "a test", "a token"), "node-1", last_good=lambda: saved)
    async with aclosing(source.changes()) as changes:
        listener = Listener(changes)
        assert set((await listener.hear()).cluster.cluster_network_policies) == {"deny"}
        while (await listener.hear()).cluster.cluster_network_policies:
            pass
