"""Chance that can be repeated. Each part of a cluster has a stream of its own: to leave one out moves no other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Dice:
    def __init__(self, *names: object) -> None:
        """The same names give the same throws, on any machine."""
        self._random = random.Random("/".join(map(str, names)))  # noqa: S311 (to be repeated is the point)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def number(self, lowest: int, highest: int) -> int:
        return self._random.randint(lowest, highest)

    def one(self, options: Sequence[_T]) -> _T:
        return self._random.choice(options)

    def weighted(self, options: Mapping[_T, float]) -> _T:
        return self._random.choices(list(options), list(options.values()))[0]

    def some(self, options: Sequence[_T], count: int) -> list[_T]:
        """So many of them, or all there are; in a new order."""
        return self._random.sample(options, min(count, len(options)))
