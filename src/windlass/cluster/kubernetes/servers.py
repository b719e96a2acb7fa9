"""The cluster from its API server: all kinds of objects together, as one Source.

An API server that is away changes nothing: what was read stays, with a problem that says so, and when the server is
back only the differences are told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace

from windlass.cluster.catalogues import Touched
from windlass.cluster.kubernetes.connections import Connection, SocketFactory, watched_socket
from windlass.cluster.kubernetes.credentials import Reader
from windlass.cluster.kubernetes.feeds import Feed, Returns
from windlass.cluster.kubernetes.resources import policy_resources, resources
from windlass.cluster.objects import Cluster, Problem, Reference, Service
from windlass.cluster.sources import Change, SourceAway, Watch, both

OWN_SERVICE = "default/kubernetes"
_STAYS = "what was read before stays"


class APIServer:
    """A Source. `changes` may be called again after SourceAway: it goes on from what it knows."""

    def __init__(self, access: Reader, node_name: str, socket_factory: SocketFactory = watched_socket) -> None:
        self._access = access
        self._socket_factory = socket_factory
        self._fresh = asyncio.Event()
        self._feeds = tuple(Feed(resource, self._fresh.set) for resource in resources(node_name))
        # Beside the others: a Node gets its network whether or not these can be read.
        self._policies = {kind: Feed(one, self._fresh.set) for kind, one in policy_resources().items()}
        self._services = next(feed for feed in self._feeds if feed.resource.kind is Service)
        self._cluster = Cluster()
        self._told: set[str] = set()  # why there is no cluster yet
        self._host = ""  # of the server, as it was when we connected

    @property
    def watches(self) -> tuple[Watch, ...]:
        now = time.monotonic()
        return tuple(
            Watch(feed.resource.name, None if feed.heard is None else now - feed.heard, feed.restarts)
            for feed in (*self._feeds, *self._policies.values())
        )

    async def changes(self) -> AsyncGenerator[Change, None]:
        self._host = self._access().host  # NoAccess is a SourceAway: there is nothing to connect to
        async with Connection(self._access, self._socket_factory) as connection:
            returns = Returns()
            every = (*self._feeds, *self._policies.values())
            tasks = [asyncio.create_task(feed.follow(connection, returns)) for feed in every]
            for task in tasks:
                task.add_done_callback(lambda _: self._fresh.set())
            try:
                await self._all_known(tasks)
                self._follow()
                yield Change(self._cluster)
                while True:
                    await self._news(tasks)
                    before = self._cluster
                    touched = self._follow()
                    triggered = tuple(when for feed in self._feeds for when in feed.take_triggers())
                    if self._cluster is not before:
                        yield Change(self._cluster, touched, triggered)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _all_known(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """SourceAway when one of them is in trouble, half a cluster is none; but once, and then they go on trying."""
        while not all(feed.is_known for feed in self._feeds):
            await self._news(tasks)
            troubles = {feed.trouble: None for feed in self._feeds if feed.trouble and not feed.is_known}
            if new := [trouble for trouble in troubles if trouble not in self._told]:
                self._told = set(troubles)
                raise SourceAway(new[0])

    async def _news(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        await self._fresh.wait()
        self._fresh.clear()
        for task in tasks:
            if task.done():  # a feed never ends by itself: this is a mistake of ours, and shall be seen
                task.result()

    def _follow(self) -> Touched | None:
        """Brings the Cluster up to what the feeds hold, with the work of what changed."""
        touched: Touched | None = Touched()
        members: dict[str, object] = {}
        for feed in self._feeds:
            if feed.holding.touched:
                members[feed.resource.member], keys = feed.holding.taken()
                touched = both(touched, _touched(feed.resource.member, keys))
        if any(feed.holding.touched for feed in self._policies.values()):
            members["policies"] = tuple(self._taken_policies())
        problems = tuple(self._problems())
        if members or problems != self._cluster.problems:
            digest = 0
            for feed in self._feeds:
                digest ^= feed.holding.digest
            self._cluster = replace(self._cluster, revision=f"{digest:016x}", problems=problems, **members)  # type: ignore[arg-type]
        return touched

    def _taken_policies(self) -> Iterator[Reference]:
        for kind, feed in self._policies.items():
            policies, _ = feed.holding.taken()
            for metadata in (policy.metadata for policy in policies.values()):
                yield Reference(kind, metadata.name, metadata.namespace or "", metadata.uid or "")

    def _problems(self) -> Iterator[Problem]:
        every = (*self._feeds, *self._policies.values())
        for sentence in dict.fromkeys(feed.trouble for feed in every if feed.trouble):
            yield Problem("API server", f"{sentence}; {_STAYS}")
        yield from self._own_service()
        for feed in self._feeds:
            yield from feed.holding.problems.values()

    def _own_service(self) -> Iterator[Problem]:
        """Is the server reached through the very Services that this agent provides? It then cannot begin."""
        service = self._services.holding.objects.get(OWN_SERVICE)
        spec = service.spec if isinstance(service, Service) else None
        if spec and self._host in (spec.cluster_ips or (spec.cluster_ip,)):
            yield Problem(
                "API server",
                f"{self._host} is the ClusterIP of Service {OWN_SERVICE}, which this agent itself provides: after a "
                "restart of the Node there is no way to it; set `apiServer` in the configuration to another address",
            )


def _touched(member: str, keys: frozenset[str]) -> Touched | None:
    """What this means for who reads a Cluster."""
    match member:
        case "services":
            return Touched(services=keys)
        case "slices":
            return Touched(slices=keys)
        case "pods":
            return Touched(pods=keys)
        case "namespaces":
            return Touched()  # neither Services nor Nodes depend on them
        case _:
            return None
