"""An agent in this process, for benchmarks, on Linux or Windows. Its source of the cluster's state reports what the
benchmark changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

from windlass.agent.agents import Agent, relax_garbage_collector
from windlass.agent.logs import log_warnings_only
from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import Cluster, objects_of, with_objects
from windlass.cluster.kinds import kinds_of
from windlass.cluster.objects import APIObject
from windlass.cluster.sources import AllPodsKnown, ClusterChange
from windlass.host.protocol import Host
from windlass.model.mappings import PersistentMap
from windlass.nodes.config import Config
from windlass.switch.ovsdb import open_database

TIMEOUT = 60.0  # seconds


class InvalidRunError(Exception):
    """The agent does not do what the benchmark measures."""


def configure_process() -> None:
    """Configure this process like an agent, but without its log of progress."""
    relax_garbage_collector()
    log_warnings_only()


class Events(AllPodsKnown):
    """A source of the cluster's state. An event is an object that has been decoded."""

    def __init__(self, cluster: Cluster) -> None:
        # A change copies only a small part of such a map.
        self._members = {name: PersistentMap(objects_of(cluster, name)) for name in kinds_of(Cluster)}
        self.cluster = with_objects(cluster, self._members)
        self._changes: asyncio.Queue[ClusterChange] = asyncio.Queue()

    async def changes(self) -> AsyncGenerator[ClusterChange, None]:
        yield ClusterChange(self.cluster)
        while True:
            yield await self._changes.get()

    def publish(self, member: str, changed: Mapping[str, APIObject | None]) -> int:
        """Put these objects into a member of the cluster, or remove them. Returns the revision with this change."""
        number = int(self.cluster.revision) + 1
        self._members[member] = self._members[member].updated(changed)
        self.cluster = with_objects(self.cluster, {member: self._members[member]}, str(number))
        changes = ChangeSet.of({kinds_of(Cluster)[member].struct: set(changed)})
        self._changes.put_nowait(ClusterChange(self.cluster, changes))
        return number


@asynccontextmanager
async def running(config: Config, host: Host, events: Events) -> AsyncIterator[tuple[Agent, float]]:
    """An agent whose Node is ready, and the seconds that it took. Closes the host."""
    agent = Agent(config, host, events)
    began = time.perf_counter()
    async with open_database(str(config.ovsdb_socket), patience=TIMEOUT) as database:
        work = asyncio.create_task(agent.serve(database))
        ready = asyncio.create_task(agent.status.wait_until(lambda: agent.status.ready, TIMEOUT))
        try:
            await asyncio.wait([work, ready], return_when=asyncio.FIRST_COMPLETED)
            if not agent.status.ready:
                why = work.exception() if work.done() else f"it waits for {agent.status.waiting_for}"
                raise InvalidRunError(f"the agent does not become ready: {why}")
            yield agent, time.perf_counter() - began
        finally:
            work.cancel()
            ready.cancel()
            await asyncio.wait([work, ready])
            await host.close()


async def confirmed(agent: Agent, revision: int) -> None:
    """Returns when the switch has what this revision of the cluster asks for."""
    if not await agent.status.wait_until(lambda: int(agent.status.revision) >= revision, TIMEOUT):
        raise InvalidRunError(f"a change is not in the switch after {TIMEOUT:.0f} s: {agent.view.problems}")


async def milliseconds_of_change(agent: Agent, events: Events, member: str, changed: Mapping[str, APIObject]) -> float:
    """From an event with these objects until the switch has confirmed the result."""
    began = time.perf_counter()
    await confirmed(agent, events.publish(member, changed))
    return 1000 * (time.perf_counter() - began)
