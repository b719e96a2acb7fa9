"""Follows the source of the cluster, merges changes until the agent takes them, and saves the last known good state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path

from windlass.agent.areas import Area, Report
from windlass.cluster import lastgood
from windlass.cluster.changes import EVERYTHING, NOTHING
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import Problem
from windlass.cluster.sources import ClusterChange, ClusterSource, SourceAway

RETRY = 1.0  # seconds between attempts to reach a source that is away


class News:
    def __init__(self, source: ClusterSource, directory: Path, report: Report) -> None:
        self.cluster: Cluster | None = None  # the newest state; None: there is none yet
        self.saver = lastgood.Saver(directory, partial(report, Area.LAST_KNOWN_GOOD))
        self._untaken = EVERYTHING  # changes that the agent has not taken
        self._triggered: list[float] = []  # trigger times of the changes that the agent has not taken
        self.source = source
        self._directory = directory
        self._report = report
        self._reported: tuple[Problem, ...] | None = None

    def take_up(self) -> ClusterChange:
        """All changes since the last call, as one. There must be a cluster."""
        if self.cluster is None:
            raise ValueError("there is no cluster yet")
        change = ClusterChange(self.cluster, self._untaken, tuple(self._triggered))
        self._untaken, self._triggered = NOTHING, []
        return change

    async def last_good(self) -> Cluster | None:
        """The saved state. Before the first `saver.keep` it is that of an earlier agent."""
        return await asyncio.to_thread(lastgood.load, self._directory)

    async def arriving(self) -> AsyncGenerator[str, None]:
        """An item for each change: empty, or the reason why there is no cluster yet.

        As long as the source is away, the cluster is the last known good state.
        """
        while True:
            try:
                async with aclosing(self.source.changes()) as changes:
                    async for change in changes:
                        self._gather(change)
                        yield ""
            except SourceAway as error:
                yield self._fall_back(str(error))
            await asyncio.sleep(RETRY)

    def _gather(self, change: ClusterChange) -> None:
        if change.cluster.problems != self._reported:
            self._report(Area.CLUSTER_SOURCE, change.cluster.problems)
            self._reported = change.cluster.problems
        self.cluster = change.cluster
        self._untaken |= change.changes
        self._triggered += change.triggered

    def _fall_back(self, trouble: str) -> str:
        saved = lastgood.load(self._directory) if self.cluster is None else None
        if saved is not None:
            self._gather(ClusterChange(saved))
        sentence = f"{trouble}; " + ("the last known good state is used" if self.cluster else "waiting for it")
        self._report(Area.CLUSTER_SOURCE, [sentence])
        self._reported = None
        return "" if self.cluster else sentence
