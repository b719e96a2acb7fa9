"""What is new of the cluster: told by its source, gathered until the agent takes it up, and saved for worse times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path

from windlass.agent.areas import Area
from windlass.cluster import lastgood
from windlass.cluster.changes import Ledger
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import Problem
from windlass.cluster.sources import ClusterChange, ClusterSource, SourceAway

RETRY = 1.0  # seconds between attempts to reach a source that is away


Report = Callable[[Area, Iterable[str | Problem]], object]


class News:
    def __init__(self, source: ClusterSource, directory: Path, report: Report) -> None:
        self.cluster: Cluster | None = None  # the newest
        self.saver = lastgood.Saver(directory, lambda problems: report(Area.LAST_KNOWN_GOOD, problems))
        self._untaken = Ledger()
        self._unsaved = Ledger()
        self._triggered: list[float] = []  # the trigger times of what has come since it was last taken up
        self._source = source
        self._directory = directory
        self._report = report
        self._reported: tuple[Problem, ...] | None = None

    def take_up(self) -> ClusterChange | None:
        """All that is new since the last time, as one change; None as long as nothing is known of the cluster."""
        if self.cluster is None:
            return None
        changes = self._untaken.take()
        self._unsaved.add(changes)
        triggered, self._triggered = tuple(self._triggered), []
        return ClusterChange(self.cluster, changes, triggered)

    def keep(self, cluster: Cluster) -> None:
        """What was last taken up is good."""
        self.saver.keep(cluster, self._unsaved.take())

    async def last_good(self) -> Cluster | None:
        """What was saved, by an earlier agent as long as this one has not begun."""
        return await asyncio.to_thread(lastgood.load, self._directory)

    async def arriving(self) -> AsyncGenerator[str, None]:
        """Whenever there is something new: what is still waited for, or nothing once there is a cluster.

        Until the source has told of one, it is what was last known to be good.
        """
        while True:
            try:
                async with aclosing(self._source.changes()) as changes:
                    async for change in changes:
                        self._gather(change)
                        yield ""
            except SourceAway as error:
                yield self._make_do(str(error))
            await asyncio.sleep(RETRY)

    def _gather(self, change: ClusterChange) -> None:
        if change.cluster.problems != self._reported:
            self._report(Area.CLUSTER_SOURCE, change.cluster.problems)
            self._reported = change.cluster.problems
        self.cluster = change.cluster
        self._untaken.add(change.changes)
        self._triggered += change.triggered

    def _make_do(self, trouble: str) -> str:
        saved = lastgood.load(self._directory) if self.cluster is None else None
        if saved is not None:
            self._gather(ClusterChange(saved))
        told = "the last known good state is used" if self.cluster else "waiting for it"
        self._report(Area.CLUSTER_SOURCE, [f"{trouble}; {told}"])
        self._reported = None
        return "" if self.cluster else f"{trouble}; {told}"
