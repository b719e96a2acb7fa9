"""Objects that the agent had to refuse, and which of them are still to be told of in the cluster. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice

from windlass.cluster.objects import Problem

SETTLED = 5.0  # seconds that a problem must have stayed: a new Node has no PodCIDR for a moment
RENEWED = 1200.0  # seconds; an API server forgets Events after an hour, but what was refused may be so for longer


class Refusals:
    """Each is told when it comes, and now and then while it stays. Times are seconds of a clock that goes forward."""

    def __init__(self, node_name: str) -> None:
        self._node_name = node_name
        self._told: dict[Problem, float] = {}  # when it was; here and there the first is the oldest
        self._waiting: dict[Problem, float] = {}  # since when

    def hear(self, problems: Iterable[Problem], now: float) -> None:
        """All that there are now."""
        current = dict.fromkeys(filter(self._is_ours, problems))
        self._told = {problem: when for problem, when in self._told.items() if problem in current}
        self._waiting = {problem: since for problem, since in self._waiting.items() if problem in current}
        new = [problem for problem in current if problem not in self._waiting and problem not in self._told]
        random.shuffle(new)  # other agents have the same ones: let each begin with another
        self._waiting |= dict.fromkeys(new, now)

    def seconds_until_due(self, now: float, most: float) -> float:
        """Until there is one to tell; at most so many."""
        return max(0.0, min([now + most, *(when for when, _ in self._next())]) - now)

    def due(self, now: float) -> Problem | None:
        return next((problem for when, problem in self._next() if now >= when), None)

    def _next(self) -> Iterator[tuple[float, Problem]]:
        for since_when, patience in ((self._waiting, SETTLED), (self._told, RENEWED)):
            for problem, when in islice(since_when.items(), 1):
                yield when + patience, problem

    def told(self, problem: Problem, now: float) -> None:
        self._waiting.pop(problem, None)
        self._told.pop(problem, None)
        self._told[problem] = now

    def _is_ours(self, problem: Problem) -> bool:
        """Each Node tells of itself. What is wrong with a Node is seen by all others, and they may see it wrongly."""
        about = problem.regarding
        return about is not None and (about.kind != "Node" or about.name == self._node_name)
