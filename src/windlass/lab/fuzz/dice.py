"""Repeatable randomness. Each part of a cluster has its own stream, so that leaving one out does not change others."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Dice:
    def __init__(self, *names: object) -> None:
        """The same names give the same numbers on any machine."""
        self._random = random.Random("/".join(map(str, names)))  # noqa: S311 (it must be repeatable)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def number(self, lowest: int, highest: int) -> int:
        return self._random.randint(lowest, highest)

    def one(self, options: Sequence[_T]) -> _T:
        return self._random.choice(options)

    def weighted(self, options: Mapping[_T, float]) -> _T:
        return self._random.choices(list(options), list(options.values()))[0]

    def some(self, options: Sequence[_T], count: int) -> list[_T]:
        """A sample of this size, or all options, in random order."""
        return self._random.sample(options, min(count, len(options)))
