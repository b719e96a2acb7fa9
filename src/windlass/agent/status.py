"""What the agent knows of itself: is it ready, which state of the cluster is in the switch, what is wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

STALLED = 60.0  # seconds in which whatever is to be done is done, or the Node does not follow any more


class Status:
    """Written by the agent, read by the local API. Whoever waits is woken by every change."""

    def __init__(self) -> None:
        self.ready = False
        self.waiting_for = "the start"  # while not ready: what for, in words
        self.revision = ""  # of the cluster state that the switch and the host hold
        self.generation = 0  # counts the states applied
        self.updated = datetime.now(UTC)  # when one was last applied; at first, when this began
        self._behind_since: float | None = None  # there is something to do that is not done yet
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

    def falls_behind(self) -> None:
        """Something is to be done."""
        if self._behind_since is None:
            self._behind_since = time.monotonic()

    def converged(self, revision: str, *, up_to_date: bool) -> None:
        """`up_to_date`: nothing has come in the meantime."""
        self.revision = revision
        self.generation += 1
        self.updated = datetime.now(UTC)
        self._behind_since = None if up_to_date else time.monotonic()
        self._wake()

    @property
    def healthy(self) -> bool:
        """Does the Node follow the cluster? What takes a little longer is no illness."""
        stalled = self._behind_since is not None and time.monotonic() - self._behind_since > STALLED
        return self.ready and not stalled

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
        return await self.wait_until(lambda: self.ready and self.revision == revision, seconds)

    async def wait_until(self, holds: Callable[[], bool], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
