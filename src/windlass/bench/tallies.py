"""Counts of what became of a load's connections during a period. It sends and judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct


class Failure(Struct, frozen=True):
    """A new connection that was not established, or a held one that broke."""

    target: str
    what: str  # refused, reset, closed, no answer, or the system's error message
    began: float  # when its first packet was sent; the monotonic clock is the same for all processes
    ended: float
    port: int  # the client's


class Tally(Struct, frozen=True):
    """What happened during a period."""

    attempted: int
    failures: tuple[Failure, ...]
    broken: tuple[Failure, ...]  # held connections
    answered: dict[str, int]  # new connections, by target and server: `node-port by web-1`
    longest_gap: float  # seconds between two answers on a held connection
    longest_wait: float  # for the answer to a new connection
    longest_lag: float  # of this process itself: a busy machine, not a failing network


@dataclass(slots=True)
class RunningTally:
    """A tally that is being counted."""

    attempted: int = 0
    failures: list[Failure] = field(default_factory=list)
    broken: list[Failure] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    longest_gap: float = 0.0
    longest_wait: float = 0.0
    longest_lag: float = 0.0

    def tally(self) -> Tally:
        return Tally(
            self.attempted,
            tuple(self.failures),
            tuple(self.broken),
            dict(self.answered),
            self.longest_gap,
            self.longest_wait,
            self.longest_lag,
        )


def merged(tallies: Iterable[Tally]) -> Tally:
    """The tally of consecutive periods."""
    total = RunningTally()
    for tally in tallies:
        total.attempted += tally.attempted
        total.failures += tally.failures
        total.broken += tally.broken
        total.answered.update(tally.answered)
        total.longest_gap = max(total.longest_gap, tally.longest_gap)
        total.longest_wait = max(total.longest_wait, tally.longest_wait)
        total.longest_lag = max(total.longest_lag, tally.longest_lag)
    return total.tally()
