"""The cluster from its API server: all watched kinds together, as one ClusterSource.

While the API server is away, the state that was read before stays, with a problem that says so. When the server is
back, only the differences are reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import reduce
from operator import xor

from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import Cluster, with_objects
from windlass.cluster.kinds import kinds_of
from windlass.cluster.kubernetes.connections import APIConnection, SocketFactory, watched_socket
from windlass.cluster.kubernetes.credentials import Reader
from windlass.cluster.kubernetes.feeds import Feed, Recovery
from windlass.cluster.objects import APIObject, Problem
from windlass.cluster.sources import ClusterChange, SourceAway, WatchHealth

OWN_SERVICE = "default/kubernetes"


class APIServer:
    """A ClusterSource. `changes` may be called again after SourceAway: it continues from what it knows."""

    def __init__(
        self,
        access: Reader,
        node_name: str,
        socket_factory: SocketFactory = watched_socket,
        cluster: type[Cluster] = Cluster,
    ) -> None:
        """The Cluster class declares the kinds that are watched."""
        self._access = access
        self._socket_factory = socket_factory
        self._fresh = asyncio.Event()
        kinds = kinds_of(cluster).items()
        self._feeds = {member: Feed(kind, node_name, self._fresh.set) for member, kind in kinds}
        self._required = [feed for feed in self._feeds.values() if feed.kind.is_required]
        self._cluster = cluster()
        self._reported: set[str] = set()  # why there is no cluster yet
        self._host = ""  # the server's address when the connection was made

    @property
    def watches(self) -> tuple[WatchHealth, ...]:
        now = time.monotonic()
        return tuple(
            WatchHealth(feed.kind.resource, None if feed.heard is None else now - feed.heard, feed.restarts)
            for feed in self._feeds.values()
        )

    async def changes(self) -> AsyncGenerator[ClusterChange, None]:
        self._host = self._access().host  # raises NoAccess, a SourceAway, if there is no server to connect to
        async with APIConnection(self._access, self._socket_factory) as connection:
            recovery = Recovery()
            tasks = [asyncio.create_task(feed.follow(connection, recovery)) for feed in self._feeds.values()]
            for task in tasks:
                task.add_done_callback(lambda _: self._fresh.set())
            try:
                await self._all_listed(tasks)
                self._update()
                yield ClusterChange(self._cluster)
                while True:
                    await self._next(tasks)
                    before = self._cluster
                    changes = self._update()
                    triggered = tuple(when for feed in self._feeds.values() for when in feed.take_triggers())
                    if self._cluster is not before:
                        yield ClusterChange(self._cluster, changes, triggered)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _all_listed(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """SourceAway if a required kind cannot be listed. Each reason is raised once; the feeds keep trying."""
        while not all(feed.is_listed for feed in self._required):
            await self._next(tasks)
            troubles = {feed.trouble: None for feed in self._required if feed.trouble and not feed.is_listed}
            if new := [trouble for trouble in troubles if trouble not in self._reported]:
                self._reported = set(troubles)
                raise SourceAway(new[0])

    async def _next(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        await self._fresh.wait()
        self._fresh.clear()
        for task in tasks:
            if task.done():  # a feed never returns: raise the error that ended it
                task.result()

    def _update(self) -> ChangeSet:
        """Bring the Cluster up to date with the feeds; the work grows with the changes only."""
        members: dict[str, Mapping[str, APIObject]] = {}
        keys: dict[Hashable, AbstractSet[str]] = {}
        for member, feed in self._feeds.items():
            if feed.store.changed:
                members[member], keys[feed.kind.struct] = feed.store.snapshot()
        cluster = with_objects(self._cluster, members)
        problems = tuple(self._problems(cluster))
        if members or problems != cluster.problems:
            digest = reduce(xor, (feed.store.digest for feed in self._required))
            self._cluster = replace(cluster, revision=f"{digest:016x}", problems=problems)
        return ChangeSet.of(keys)

    def _problems(self, cluster: Cluster) -> Iterator[Problem]:
        feeds = self._feeds.values()
        for sentence in dict.fromkeys(feed.trouble for feed in feeds if feed.trouble):
            yield Problem("API server", f"{sentence}; the state that was read before stays in use")
        yield from self._own_service(cluster)
        for feed in feeds:
            yield from feed.store.problems.values()

    def _own_service(self, cluster: Cluster) -> Iterator[Problem]:
        """An agent cannot start if it reaches the API server only through a Service that it provides itself."""
        service = cluster.services.get(OWN_SERVICE)
        spec = service.spec if service else None
        if spec and self._host in (spec.cluster_ips or (spec.cluster_ip,)):
            yield Problem(
                "API server",
                f"{self._host} is the ClusterIP of Service {OWN_SERVICE}, which this agent itself provides: after a "
                "restart of the Node there is no way to it; set `apiServer` in the configuration to another address",
            )
