"""Pods of other Nodes are read only in the namespaces that were asked for, and stay known while these change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
from api_servers import BUILT_IN, SECONDS, StandIn, until

from windlass.cluster.clusters import Cluster, objects_of
from windlass.cluster.kinds import WatchedKind, kinds_of
from windlass.cluster.kubernetes.credentials import Access
from windlass.cluster.kubernetes.scoped_feeds import MOST_FEEDS
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.objects import Metadata, PeerPod
from windlass.cluster.sources import Namespaces

ALL = "/api/v1/pods"
IN = "/api/v1/namespaces/{}/pods"
MANY = [f"n-{number}" for number in range(MOST_FEEDS)]
SCOPED = [WatchedKind(PeerPod, "v1", f"namespaces/{name}/pods") for name in ("shop", "data", "nowhere", *MANY)]


class Reader:
    """Holds the newest state, as the agent does."""

    def __init__(self, source: APIServer) -> None:
        self.source = source
        self.cluster = Cluster()
        self.listed: list[tuple[Namespaces, set[str]]] = []  # of all changes, with the Pods of other Nodes
        self.first = asyncio.Event()
        self._changed = asyncio.Condition()

    async def read(self) -> None:
        async with aclosing(self.source.changes()) as changes:
            async for change in changes:
                self.cluster = change.cluster
                self.listed.append((change.cluster.listed_namespaces, set(change.cluster.peer_pods)))
                self.first.set()
                async with self._changed:
                    self._changed.notify_all()

    async def knows(self, peers: set[str]) -> None:
        async with asyncio.timeout(SECONDS), self._changed:
            await self._changed.wait_for(lambda: set(self.cluster.peer_pods) == peers)

    async def peers_in(self, namespaces: Namespaces) -> set[str]:
        async with asyncio.timeout(SECONDS):
            await self.source.find_pods(namespaces)
        return set(self.cluster.peer_pods)


@asynccontextmanager
async def reading(saved: Callable[[], Cluster | None] = lambda: None) -> AsyncIterator[tuple[StandIn, Reader]]:
    """`saved` reads the last known good state of an earlier agent."""
    server = StandIn((*BUILT_IN, *SCOPED))
    for namespace, name in (("shop", "a"), ("shop", "b"), ("data", "c")):
        for path in (ALL, IN.format(namespace)):
            server.put(
                path, name, namespace, metadata={"labels": {"app": name}}, status={"podIPs": [{"ip": "10.2.0.9"}]}
            )
    await server.start()
    access = Access(server.address, "a test", "a token")
    reader = Reader(APIServer(lambda: access, "node-1", last_good=saved))
    task = asyncio.create_task(reader.read())
    try:
        async with asyncio.timeout(SECONDS):
            await reader.first.wait()
        yield server, reader
    finally:
        task.cancel()
        await asyncio.wait([task])
        await server.stop()


async def test_nothing_is_watched_until_it_is_needed():
    async with reading() as (server, reader):
        assert not reader.cluster.peer_pods
        assert not any(server.is_watched(IN.format(name)) for name in ("shop", "data"))


async def test_pods_are_read_in_the_namespaces_that_are_needed():
    async with reading() as (server, reader):
        before = reader.cluster.revision
        assert await reader.peers_in(frozenset({"shop"})) == {"shop/a", "shop/b"}
        assert reader.cluster.revision != before
        asked = server.watches(IN.format("shop"))[0]
        assert asked["fieldSelector"] == "spec.nodeName!=node-1,status.phase!=Succeeded,status.phase!=Failed"
        assert await reader.peers_in(frozenset({"shop", "data"})) == {"shop/a", "shop/b", "data/c"}
        assert await reader.peers_in(frozenset({"data"})) == {"data/c"}
        assert await reader.peers_in(frozenset()) == set()
        assert reader.cluster.revision == before


async def test_each_state_says_which_namespaces_are_listed():
    """Until then, policies deny addresses of Pods that are not known. A list without Pods is a change, too."""
    shop, data = frozenset({"shop"}), frozenset({"data"})
    async with reading() as (server, reader):
        await reader.source.find_pods(shop)
        server.refusals[IN.format("data")] = (503, "it is starting")
        finding = asyncio.create_task(reader.source.find_pods(shop | data | {"nowhere"}))
        await until(lambda: reader.cluster.listed_namespaces == shop | {"nowhere"})
        assert not finding.done()
        del server.refusals[IN.format("data")]
        await finding
        await reader.source.find_pods(None)
        await reader.source.find_pods(data)
        await until(lambda: reader.cluster.listed_namespaces == data)
    listed = [one for number, one in enumerate(reader.listed) if one not in reader.listed[:number]]
    of_shop, of_data = {"shop/a", "shop/b"}, {"data/c"}
    assert listed == [
        (frozenset(), set()),
        (shop, of_shop),
        (shop | {"nowhere"}, of_shop),
        (shop | data | {"nowhere"}, of_shop | of_data),
        (None, of_shop | of_data),
        (data, of_data),
    ]


@pytest.mark.parametrize(
    ("before", "needed"),
    [(set(), {"shop"}), ({"data"}, {"shop", "data"}), ({"data"}, None)],
)
async def test_namespaces_that_an_earlier_agent_did_not_read_are_not_listed(before: set[str], needed: set[str] | None):
    async with reading(lambda: Cluster("1", listed_namespaces=frozenset(before))) as (server, reader):
        for path in (ALL, IN.format("shop"), IN.format("data")):
            server.refusals[path] = (503, "it is starting")
        finding = asyncio.create_task(reader.source.find_pods(None if needed is None else frozenset(needed)))
        await until(lambda: reader.cluster.problems)
        assert reader.cluster.listed_namespaces == before
        server.refusals.clear()
        await finding


async def test_many_namespaces_are_read_by_one_watch_of_all():
    async with reading() as (_, reader):
        assert await reader.peers_in(frozenset({"shop"})) == {"shop/a", "shop/b"}
        assert await reader.peers_in(frozenset({"shop", *MANY})) == {"shop/a", "shop/b", "data/c"}
        same = objects_of(reader.cluster, "peer_pods")["shop/a"]
        assert await reader.peers_in(None) == {"shop/a", "shop/b", "data/c"}
        assert objects_of(reader.cluster, "peer_pods")["shop/a"] == same


async def test_the_watch_of_all_stays_until_far_fewer_namespaces_are_needed():
    """To list all Pods takes seconds, on each Node of the cluster."""
    async with reading() as (server, reader):
        for _ in range(3):  # namespaces come and go
            await reader.peers_in(frozenset({"shop", *MANY}))
            await reader.peers_in(frozenset({"shop", *MANY[1:]}))
        lists = [asked for asked in server.watches(ALL) if "!=" in asked["fieldSelector"]]
        assert len(lists) == 1
        assert await reader.peers_in(frozenset({"shop"})) == {"shop/a", "shop/b"}


@pytest.mark.parametrize(
    ("needed", "used"), [(frozenset({"shop"}), {"shop/saved"}), (None, {"shop/saved", "data/saved"})]
)
async def test_pods_that_an_earlier_agent_saved_are_known_until_the_list_is_read(needed: Namespaces, used: set[str]):
    """A list of many Pods takes seconds: an agent that starts does not deny what was allowed before."""
    saved = {f"{name}/saved": PeerPod(Metadata("saved", name), None, None) for name in ("shop", "data")}
    async with reading(lambda: Cluster("1", peer_pods=saved, listed_namespaces=needed)) as (server, reader):
        path = ALL if needed is None else IN.format("shop")
        server.refusals[path] = (503, "it is starting")
        finding = asyncio.create_task(reader.source.find_pods(needed))
        await reader.knows(used)
        assert reader.cluster.listed_namespaces == needed
        del server.refusals[path]
        await finding
        assert set(reader.cluster.peer_pods) == {"shop/a", "shop/b", *({"data/c"} if needed is None else ())}


@pytest.mark.parametrize("listed", [frozenset({"shop", "data"}), None])
async def test_a_namespace_that_is_needed_later_is_not_listed_although_an_earlier_agent_read_it(listed: Namespaces):
    """Its saved Pods are not used, so a rule that denies them must go on to deny unknown addresses."""
    saved = {f"{name}/saved": PeerPod(Metadata("saved", name), None, None) for name in ("shop", "data")}
    async with reading(lambda: Cluster("1", peer_pods=saved, listed_namespaces=listed)) as (server, reader):
        for name in ("shop", "data"):
            server.refusals[IN.format(name)] = (503, "it is starting")
        first = asyncio.create_task(reader.source.find_pods(frozenset({"shop"})))
        await reader.knows({"shop/saved"})
        second = asyncio.create_task(reader.source.find_pods(frozenset({"shop", "data"})))
        await until(lambda: any(path == IN.format("data") for path, _ in server.requests))
        assert reader.cluster.listed_namespaces == {"shop"}
        server.refusals.clear()
        await asyncio.gather(first, second)
        assert reader.cluster.listed_namespaces == {"shop", "data"}


async def test_a_pod_of_this_node_can_be_asked_for():
    async with reading() as (server, reader):
        assert kinds_of(Cluster)["pods"].path == ALL
        found = await reader.source.find_pod("data/c")
        assert found is not None
        assert found.metadata.labels == {"app": "c"}
        assert server.requests[-1] == (IN.format("data"), {"fieldSelector": "metadata.name=c,spec.nodeName=node-1"})
        assert await reader.source.find_pod("nowhere/x") is None


async def test_saved_pods_are_read_from_disk_once():
    """This takes long, and the event loop waits for it."""
    reads: list[None] = []
    async with reading(lambda: reads.append(None)) as (_, reader):
        reads.clear()  # by kinds that this server does not know
        for _ in range(3):
            assert await reader.peers_in(frozenset({"shop"})) == {"shop/a", "shop/b"}
            await reader.source.find_pods(frozenset())
            await reader.knows(set())
    assert len(reads) == 1
