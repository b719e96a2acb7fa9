"""Phases of a benchmark under a load of connections, with what was done meanwhile; and the figures of a phase."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field

from windlass.bench.load_processes import LoadProcess
from windlass.bench.reports import Figure, Say, figure
from windlass.bench.tallies import Failure, Tally

_MOST_FAILURES = 20  # to print


@dataclass(frozen=True, slots=True)
class LoadedPhase:
    name: str
    seconds: float
    tally: Tally
    events: tuple[tuple[float, str], ...] = ()  # what was done to the cluster, by the monotonic clock


@dataclass(slots=True)
class LoadedRun:
    load: LoadProcess
    targets: Sequence[str]
    say: Say
    _events: list[tuple[float, str]] = field(default_factory=list)

    async def phase(self, name: str, work: Awaitable[None]) -> LoadedPhase:
        """Load all targets while `work` is done, and print what happened."""
        self._events.clear()
        began = time.monotonic()
        await self.load.on(self.targets)
        try:
            await work
        finally:
            tally = await self.load.off()
        phase = LoadedPhase(name, time.monotonic() - began, tally, tuple(self._events))
        for sentence in sentences(phase):
            self.say(sentence)
        return phase

    def note(self, event: str) -> float:
        """Record what is done to the cluster, for the report of failures. Returns the time."""
        now = time.monotonic()
        self._events.append((now, event))
        return now


def figures_of(phase: LoadedPhase, quiet: LoadedPhase) -> list[Figure]:
    """The floor is a phase in which nothing was done."""
    ours, floor = phase.tally, quiet.tally
    return [
        figure(f"{phase.name}-attempted", ours.attempted, "connections"),
        figure(f"{phase.name}-failed", len(ours.failures), "connections", len(floor.failures)),
        figure(f"{phase.name}-longest-wait", 1000 * ours.longest_wait, "ms", 1000 * floor.longest_wait),
        figure(f"{phase.name}-held-broken", len(ours.broken), "connections", len(floor.broken)),
        figure(f"{phase.name}-held-longest-gap", 1000 * ours.longest_gap, "ms", 1000 * floor.longest_gap),
    ]


def summary(figures: Sequence[Figure]) -> list[Figure]:
    """The worst of all phases."""
    gaps = [each for each in figures if each.name.endswith("-held-longest-gap")]
    failed = [each for each in figures if each.name.endswith("-failed")]
    return [
        figure("failed", sum(each.value for each in failed), "connections", sum(each.floor or 0 for each in failed)),
        figure("held-longest-gap", max(each.value for each in gaps), "ms", max(each.floor or 0 for each in gaps)),
    ]


def sentences(phase: LoadedPhase) -> Iterator[str]:
    tally = phase.tally
    answered = ", ".join(f"{target} {count}" for target, count in sorted(tally.answered.items()))
    yield (
        f"{phase.name}: {len(tally.failures)} of {tally.attempted} new connections failed in {phase.seconds:.0f} s "
        f"(longest wait {1000 * tally.longest_wait:.0f} ms; answered: {answered}); {len(tally.broken)} held ones broke "
        f"(longest gap {1000 * tally.longest_gap:.0f} ms); the load was at most {1000 * tally.longest_lag:.0f} ms late"
    )
    failures = (*tally.broken, *tally.failures)  # the rarer ones first: not all are printed
    yield from (f"  {_sentence(failure, phase)}" for failure in failures[:_MOST_FAILURES])
    if len(failures) > _MOST_FAILURES:
        yield f"  and {len(failures) - _MOST_FAILURES} more"


def _sentence(failure: Failure, phase: LoadedPhase) -> str:
    """With the last event before the connection began: the likely reason."""
    at, event = max((event for event in phase.events if event[0] <= failure.began), default=(0.0, ""))
    after = f"; it began {failure.began - at:.3f} s after: {event}" if event else ""
    return (
        f"{failure.target} from port {failure.port}: {failure.what} after {failure.ended - failure.began:.3f} s{after}"
    )
