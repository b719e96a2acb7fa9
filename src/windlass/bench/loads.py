"""A load of connections: its plan, and the tally of what became of them. It sends and judges nothing."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class LoadServer(Struct, frozen=True):
    """Speaks as the lab's own servers do: sends its name to each client, then echoes what it receives."""

    name: str
    namespace: str
    port: int


class LoadTarget(Struct, frozen=True):
    """Where connections go, and the namespace in which they start."""

    name: str
    namespace: str
    address: str
    port: int


class LoadPlan(Struct, frozen=True):
    servers: tuple[LoadServer, ...]
    targets: tuple[LoadTarget, ...]
    per_second: int  # new connections to each target
    held: int  # connections to each target


class Failure(Struct, frozen=True):
    """A new connection that was not established, or a held one that broke."""

    target: str
    what: str  # refused, reset, closed, no answer, or the system's error message
    began: float  # when its first packet was sent; the monotonic clock is the same for all processes
    ended: float
    port: int  # the client's


class Tally(Struct):
    """What happened during a period."""

    attempted: int = 0
    failures: list[Failure] = []
    broken: list[Failure] = []  # held connections
    answered: dict[str, int] = {}  # new connections, by target and server: `node-port by web-1`
    longest_gap: float = 0.0  # seconds between two answers on a held connection
    longest_wait: float = 0.0  # until the answer to a new connection
    longest_lag: float = 0.0  # the delay of this process itself: a busy machine, not a failing network


def merged(tallies: Iterable[Tally]) -> Tally:
    """The tally of consecutive periods."""
    total = Tally()
    for tally in tallies:
        total.attempted += tally.attempted
        total.failures += tally.failures
        total.broken += tally.broken
        for key, count in tally.answered.items():
            total.answered[key] = total.answered.get(key, 0) + count
        total.longest_gap = max(total.longest_gap, tally.longest_gap)
        total.longest_wait = max(total.longest_wait, tally.longest_wait)
        total.longest_lag = max(total.longest_lag, tally.longest_lag)
    return total
