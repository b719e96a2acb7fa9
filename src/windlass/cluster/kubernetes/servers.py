"""The cluster from its API server: all watched kinds together, as one ClusterSource.

While the API server is unavailable, the state that was read before stays in use, and a problem reports that. When the
server is available again, only differences are reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import reduce
from operator import xor

from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import Cluster, Namespaces, with_objects
from windlass.cluster.kinds import kinds_of
from windlass.cluster.kubernetes import decoding
from windlass.cluster.kubernetes.connections import (
    APIConnection,
    RequestRefused,
    SocketFactory,
    Unreachable,
    watched_socket,
)
from windlass.cluster.kubernetes.credentials import NoAccess, Reader
from windlass.cluster.kubernetes.decoding import Garbled
from windlass.cluster.kubernetes.feeds import Feed, Recovery
from windlass.cluster.kubernetes.scoped_feeds import ScopedFeeds
from windlass.cluster.objects import APIObject, Malformed, Pod, Problem
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
        last_good: Callable[[], Cluster | None] = lambda: None,
    ) -> None:
        """The Cluster class declares the kinds that are watched. `last_good` reads the last known good state."""
        self._access = access
        self._socket_factory = socket_factory
        self._fresh = asyncio.Event()
        kinds = kinds_of(cluster)
        self._feeds = {
            member: ScopedFeeds(kind, node_name, self._fresh.set, last_good, member) for member, kind in kinds.items()
        }
        self._on_demand = [feeds for feeds in self._feeds.values() if feeds.kind.is_on_demand]
        self._pods = kinds["pods"]
        self._node_name = node_name
        self._connection: APIConnection | None = None  # while there is one
        self._listed = asyncio.Event()  # set when all kinds on demand were listed where they are needed
        awaited = (one for one in self._feeds.values() if one.kind.is_required and not one.kind.is_on_demand)
        self._awaited = [feed for feeds in awaited for feed in feeds.needed]
        self._cluster = cluster()
        self._reported: set[str] = set()  # why there is no cluster yet
        self._host = ""  # the server's address when the connection was made

    @property
    def watches(self) -> tuple[WatchHealth, ...]:
        return tuple(watch for feeds in self._feeds.values() for watch in feeds.watches)

    async def changes(self) -> AsyncGenerator[ClusterChange, None]:
        self._host = self._access().host  # raises NoAccess, a SourceAway, if there is no server to connect to
        async with APIConnection(self._access, self._socket_factory) as connection:
            recovery = Recovery()
            for feeds in self._feeds.values():
                feeds.connect(connection, recovery)
            self._connection = connection
            try:
                await self._all_listed()
                self._update()
                yield ClusterChange(self._cluster)
                while True:
                    await self._next()
                    before = self._cluster
                    changes = self._update()
                    triggered = tuple(when for feeds in self._feeds.values() for when in feeds.take_triggers())
                    if self._cluster is not before:
                        yield ClusterChange(self._cluster, changes, triggered)
            finally:
                self._connection = None
                await asyncio.gather(*(feeds.disconnect() for feeds in self._feeds.values()))

    @property
    def is_complete(self) -> bool:
        return False

    @property
    def has_found_pods(self) -> bool:
        return self._listed.is_set()

    async def find_pods(self, namespaces: Namespaces) -> None:
        for feeds in self._on_demand:
            feeds.need(namespaces)
        self._listed.clear()
        self._fresh.set()
        if self._connection is not None:
            await self._listed.wait()

    async def find_pod(self, key: str) -> Pod | None:
        namespace, _, name = key.partition("/")
        fields = {"fieldSelector": f"metadata.name={name},spec.nodeName={self._node_name}"}
        if self._connection is None:
            return None
        try:
            found = decoding.page(await self._connection.request("GET", self._pods.path_in(namespace), fields))
            pods = [decoding.Decoder(self._pods).object(one) for one in found.items or ()]
        except (RequestRefused, Unreachable, NoAccess, Garbled, Malformed):
            return None
        return next((pod for pod in pods if isinstance(pod, Pod)), None)

    async def _all_listed(self) -> None:
        """Raises SourceAway if a required kind cannot be listed, once for each reason. The feeds keep trying."""
        while not all(feed.is_listed for feed in self._awaited):
            await self._next()
            troubles = {feed.trouble: None for feed in self._awaited if feed.trouble and not feed.is_listed}
            if new := [trouble for trouble in troubles if trouble not in self._reported]:
                self._reported = set(troubles)
                raise SourceAway(new[0])

    async def _next(self) -> None:
        await self._fresh.wait()
        self._fresh.clear()
        for feeds in self._feeds.values():
            feeds.check()

    def _update(self) -> ChangeSet:
        """Update the Cluster from the feeds. The work grows with the changes only."""
        members: dict[str, Mapping[str, APIObject]] = {}
        keys: dict[Hashable, AbstractSet[str]] = {}
        for member, feeds in self._feeds.items():
            objects, changed = feeds.snapshot()
            if changed:
                members[member], keys[feeds.kind.struct] = objects, changed
        if all(feeds.is_listed for feeds in self._on_demand):
            self._listed.set()
        cluster = with_objects(self._cluster, members)
        needed = [feed for feeds in self._feeds.values() for feed in feeds.needed]
        problems = tuple(self._problems(cluster, needed))
        listed = next((feeds.listed for feeds in self._on_demand), None)
        if members or problems != cluster.problems or listed != cluster.listed_namespaces:
            digest = reduce(xor, (feed.store.digest for feed in needed if feed.kind.is_required))
            self._cluster = replace(cluster, revision=f"{digest:016x}", problems=problems, listed_namespaces=listed)
        return ChangeSet.of(keys)

    def _problems(self, cluster: Cluster, needed: Sequence[Feed]) -> Iterator[Problem]:
        for sentence in dict.fromkeys(feed.trouble for feed in needed if feed.trouble):
            yield Problem("API server", f"{sentence}; the state that was read before stays in use")
        yield from self._own_service(cluster)
        for feed in needed:
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
