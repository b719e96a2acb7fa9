"""What came of a load in a stretch of time: counted by loads.py, told by continuity.py. It sends and judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct


class Failure(Struct, frozen=True):
    """A connection that was not made, or a held one that broke."""

    frontend: str
    what: str  # refused, reset, closed, no answer, or the system's own words
    began: float  # when its first packet was sent; the monotonic clock is the same for all processes
    ended: float
    port: int  # the client's


class Tally(Struct, frozen=True):
    """What happened in a stretch of time."""

    attempted: int
    failures: tuple[Failure, ...]
    broken: tuple[Failure, ...]  # held connections
    answered: dict[str, int]  # new connections, by frontend and server: `node-port by web-1`
    longest_gap: float  # seconds between two answers on a held connection
    longest_wait: float  # for the answer to a new connection
    longest_lag: float  # that this process was late itself: a starved machine, not a failing network


@dataclass(slots=True)
class Notes:
    """The tally as it grows."""

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
    """Of stretches of time that follow each other."""
    notes = Notes()
    for tally in tallies:
        notes.attempted += tally.attempted
        notes.failures += tally.failures
        notes.broken += tally.broken
        notes.answered.update(tally.answered)
        notes.longest_gap = max(notes.longest_gap, tally.longest_gap)
        notes.longest_wait = max(notes.longest_wait, tally.longest_wait)
        notes.longest_lag = max(notes.longest_lag, tally.longest_lag)
    return notes.tally()
