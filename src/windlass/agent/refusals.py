"""Objects that the agent had to refuse, and which of them are still to be told of in the cluster. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable

from windlass.cluster.objects import Problem

SETTLED = 5.0  # seconds that a problem must have stayed: a new Node has no PodCIDR for a moment


class Refusals:
    """Each is told once for as long as it stays. Times are seconds of any clock that only goes forward."""

    def __init__(self, node_name: str) -> None:
        self._node_name = node_name
        self._told: set[Problem] = set()
        self._waiting: dict[Problem, float] = {}  # since when; the first is the oldest

    def hear(self, problems: Iterable[Problem], now: float) -> None:
        """All that there are now."""
        current = dict.fromkeys(filter(self._is_ours, problems))
        self._told &= current.keys()
        self._waiting = {problem: since for problem, since in self._waiting.items() if problem in current}
        new = [problem for problem in current if problem not in self._waiting and problem not in self._told]
        random.shuffle(new)  # other agents have the same ones: let each begin with another
        self._waiting |= dict.fromkeys(new, now)

    def seconds_until_due(self, now: float, most: float) -> float:
        """Until there is one to tell."""
        since = next(iter(self._waiting.values()), None)
        return most if since is None else max(0.0, since + SETTLED - now)

    def due(self, now: float) -> Problem | None:
        for problem, since in self._waiting.items():
            return problem if now >= since + SETTLED else None
        return None

    def told(self, problem: Problem) -> None:
        self._waiting.pop(problem, None)
        self._told.add(problem)

    def _is_ours(self, problem: Problem) -> bool:
        """Each Node tells of itself. What is wrong with a Node is seen by all others, and they may see it wrongly."""
        about = problem.regarding
        return about is not None and (about.kind != "Node" or about.name == self._node_name)
