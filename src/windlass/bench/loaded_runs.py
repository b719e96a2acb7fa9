"""Phases of a benchmark under a load of connections: the load's process, what was done meanwhile, and the figures."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from windlass.bench.loads import Failure, LoadPlan, Tally, merged
from windlass.bench.reports import Figure, figure
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.processes import Child
from windlass.lab.sandbox.progress import Say

LONGEST_TALLY = 1 << 24  # bytes: thousands of failures
_MOST_FAILURES = 20  # that are printed


@dataclass(slots=True)
class LoadProcess:
    """Collects the tallies since the load was last off."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _tallies: list[Tally] = field(default_factory=list)

    async def on(self, targets: Sequence[str]) -> None:
        """Load these targets and no others. Returns when no connection to the others is pending."""
        self._writer.write(msgspec.json.encode(targets) + b"\n")
        reply = await self._reader.readline()
        if not reply:
            raise LabError("it ended by itself")
        self._tallies.append(msgspec.json.decode(reply, type=Tally))

    async def off(self) -> Tally:
        """Stop the load. Returns the tally since it was last off."""
        await self.on(())
        tallies, self._tallies = self._tallies, []
        return merged(tallies)


@asynccontextmanager
async def loading(plan: LoadPlan, folder: Path) -> AsyncIterator[LoadProcess]:
    """The folder is a lab's: after a crash, `lab down` finds the process by it."""
    plan_file, socket = folder / "load.json", folder / "load.sock"
    socket.unlink(missing_ok=True)  # the socket of a former load, which was killed
    plan_file.write_bytes(msgspec.json.encode(plan))
    process = Child(
        "the load",
        [sys.executable, "-m", "windlass.bench.load_generators", str(plan_file), str(socket)],
        namespace=plan.servers[0].namespace,
        folder=folder,
        log=folder / "load.log",
        environment={},
    )
    try:
        await process.listening(socket)
        reader, writer = await asyncio.open_unix_connection(socket, limit=LONGEST_TALLY)
        try:
            yield LoadProcess(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()
    except LabError as error:
        raise LabError(str(error) if process.alive else process.failure(str(error))) from None
    finally:
        await process.kill()


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
    """Names the last event before the connection began, which is the likely reason."""
    at, event = max((event for event in phase.events if event[0] <= failure.began), default=(0.0, ""))
    after = f"; it began {failure.began - at:.3f} s after: {event}" if event else ""
    return (
        f"{failure.target} from port {failure.port}: {failure.what} after {failure.ended - failure.began:.3f} s{after}"
    )
