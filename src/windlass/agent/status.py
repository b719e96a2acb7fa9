"""What the agent knows of itself: is it ready, which state of the cluster is in the switch, what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping


class Status:
    """Written by the agent, read by the local API. Whoever waits is woken by every change."""

    def __init__(self) -> None:
        self.ready = False
        self.waiting_for = "the start"  # while not ready: what for, in words
        self.revision = ""  # of the cluster state that the switch and the host hold
        self.generation = 0  # counts the states applied
        self._problems: dict[str, tuple[str, ...]] = {}  # by area: cluster, switch, host, source
        self._changed = asyncio.Event()

    @property
    def problems(self) -> Mapping[str, tuple[str, ...]]:
        return {area: sentences for area, sentences in self._problems.items() if sentences}

    def waits(self, sentence: str) -> None:
        self.ready = False
        self.waiting_for = sentence
        self._wake()

    def becomes_ready(self) -> None:
        self.ready = True
        self.waiting_for = ""
        self._wake()

    def converged(self, revision: str) -> None:
        self.revision = revision
        self.generation += 1
        self._wake()

    def report(self, area: str, problems: Iterable[str]) -> tuple[str, ...]:
        """The problems of an area are now these; those of them that are new."""
        before = self._problems.get(area, ())
        now = tuple(problems)
        self._problems[area] = now
        if now != before:
            self._wake()
        return tuple(problem for problem in now if problem not in before)

    async def wait_for_revision(self, revision: str, seconds: float) -> bool:
        """Does the Node hold this state of the cluster within the time?"""
        try:
            async with asyncio.timeout(seconds):
                while not (self.ready and self.revision == revision):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
