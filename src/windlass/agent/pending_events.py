"""Which Events about objects that the agent cannot use are still to be written to the cluster. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice

from windlass.cluster.objects import Problem

SETTLED = 5.0  # seconds that a problem must last before its Event: a new Node has no PodCIDR for a moment
RENEWED = 1200.0  # seconds after which an Event is written again: an API server deletes Events after an hour


class PendingEvents:
    """An Event is due when its problem appears, and again while the problem lasts. Times are monotonic, in seconds."""

    def __init__(self, node_name: str) -> None:
        self._node_name = node_name
        # Both are sorted by time, the oldest first.
        self._written: dict[Problem, float] = {}
        self._waiting: dict[Problem, float] = {}

    def update(self, problems: Iterable[Problem], now: float) -> None:
        """`problems`: all that there are now."""
        current = dict.fromkeys(filter(self._is_ours, problems))
        self._written = {problem: when for problem, when in self._written.items() if problem in current}
        self._waiting = {problem: since for problem, since in self._waiting.items() if problem in current}
        new = [problem for problem in current if problem not in self._waiting and problem not in self._written]
        random.shuffle(new)  # other agents have the same problems: each should begin with another one
        self._waiting |= dict.fromkeys(new, now)

    def seconds_until_due(self, now: float, most: float) -> float:
        """Until the next Event is due, but at most `most`."""
        return max(0.0, min([now + most, *(when for when, _ in self._next())]) - now)

    def due(self, now: float) -> Problem | None:
        """A problem whose Event must be written now."""
        return next((problem for when, problem in self._next() if now >= when), None)

    def written(self, problem: Problem, now: float) -> None:
        self._waiting.pop(problem, None)
        self._written.pop(problem, None)
        self._written[problem] = now

    def _next(self) -> Iterator[tuple[float, Problem]]:
        for since_when, delay in ((self._waiting, SETTLED), (self._written, RENEWED)):
            for problem, when in islice(since_when.items(), 1):
                yield when + delay, problem

    def _is_ours(self, problem: Problem) -> bool:
        """Each agent writes Events about its own Node only: other Nodes may see its problems wrongly."""
        about = problem.regarding
        return about is not None and (about.kind != "Node" or about.name == self._node_name)
