"""The status of the agent: whether it is ready, which state of the cluster the Node holds, and all problems."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import structlog

from windlass.agent.areas import Area
from windlass.cluster.objects import Problem
from windlass.host.preflight import Finding

_log = structlog.get_logger(__name__)

STALLED = 60.0  # seconds: if work takes longer, the Node does not follow the cluster any more


class AgentStatus:
    """Written by the agent, read by the local API. Every change wakes those that wait."""

    def __init__(self) -> None:
        self.ready = False
        self.waiting_for = "the start"  # what the agent waits for while it is not ready
        self.revision = ""  # the revision of the cluster state that the switch and the host hold
        self.generation = 0  # counts the states applied
        self.updated = datetime.now(UTC)  # when one was last applied; at first, when this began
        self._behind_since: float | None = None  # since when there is work to do
        self.refusals: tuple[Problem, ...] = ()  # problems of objects; the same tuple until one changes
        self._unready_since = time.monotonic()  # while not ready
        self.findings: tuple[Finding, ...] = ()  # the findings of the preflight checks
        self._problems: dict[Area, tuple[str | Problem, ...]] = {}
        self._notices: tuple[Problem, ...] = ()  # reported as Events; too many to be listed here
        self._changed = asyncio.Event()

    @property
    def problems(self) -> Mapping[Area, tuple[str, ...]]:
        return {area: tuple(map(str, problems)) for area, problems in self._problems.items() if problems}

    @property
    def unready_seconds(self) -> float:
        return 0.0 if self.ready else time.monotonic() - self._unready_since

    def waits(self, sentence: str) -> None:
        if sentence != self.waiting_for:
            _log.warning("waiting", reason=sentence)
        if self.ready:
            self._unready_since = time.monotonic()
        self.ready = False
        self.waiting_for = sentence
        self._wake()

    def becomes_ready(self) -> None:
        self.ready = True
        self.waiting_for = ""
        self._wake()

    def falls_behind(self) -> None:
        """Note that there is work to do."""
        if self._behind_since is None:
            self._behind_since = time.monotonic()

    def converged(self, revision: str, *, up_to_date: bool) -> None:
        """`up_to_date`: no other change has arrived since."""
        self.revision = revision
        self.generation += 1
        self.updated = datetime.now(UTC)
        self._behind_since = None if up_to_date else time.monotonic()
        self._wake()

    @property
    def behind_seconds(self) -> float:
        """For how long there has been work to do; 0: all is done."""
        return 0.0 if self._behind_since is None else time.monotonic() - self._behind_since

    @property
    def healthy(self) -> bool:
        """Whether the Node follows the cluster."""
        return self.ready and self.behind_seconds <= STALLED

    def report(self, area: Area, problems: Iterable[str | Problem]) -> None:
        """Set the problems of an area, and log the new ones."""
        before, now = self._problems.get(area, ()), tuple(problems)
        if now == before:
            return
        self._problems[area] = now
        self._gather_refusals()
        for problem in dict.fromkeys(now):
            if problem not in before:
                _log.warning("problem", area=area, problem=str(problem))

    def finds(self, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Set the findings of the preflight checks. Returns the new ones."""
        new = tuple(finding for finding in findings if finding not in self.findings)
        self.findings = findings
        return new

    def notice(self, problems: tuple[Problem, ...]) -> None:
        """Report these as Events; what `report` gets about them is a summary."""
        self._notices = problems
        self._gather_refusals()

    def _gather_refusals(self) -> None:
        every = (one for problems in self._problems.values() for one in problems)
        listed = tuple(one for one in every if isinstance(one, Problem) and one.regarding)
        self.refusals = listed + self._notices
        self._wake()

    async def wait_for_revision(self, revision: str, seconds: float) -> bool:
        """Whether the Node holds this state of the cluster within the time."""
        return await self.wait_until(lambda: self.ready and self.revision == revision, seconds)

    async def wait_until(self, holds: Callable[[], bool], seconds: float | None = None) -> bool:
        """Whether the condition becomes true within the time. None: wait without a limit."""
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
