"""Judges what a probe observed by what it expects. Pure; traffic.py sends the packets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from windlass.lab.scenarios.directives import Expectation, Probe
from windlass.lab.scenarios.objects import ProbeOutcome
from windlass.model.families import IPAddress


@dataclass(frozen=True, slots=True)
class Attempt:
    """One connection."""

    outcome: ProbeOutcome
    backend: str = ""  # the one that answered
    client: str = ""  # the client address that it saw
    local: str = ""  # the client's own address
    fault: str = ""  # another error; the probe fails with it, whatever it expects


@dataclass(frozen=True, slots=True)
class Observation:
    attempts: tuple[Attempt, ...]
    failures: int = 0  # connections of a rate that got no answer in time
    max_gap: float | None = None  # the longest gap of a held connection, in seconds
    broken: str = ""  # why a held connection ended before the scenario

    @property
    def outcome(self) -> ProbeOutcome:
        """The worst outcome: `Connected` means that all connections were."""
        seen = {attempt.outcome for attempt in self.attempts}
        return next(
            (o for o in (ProbeOutcome.TIMEOUT, ProbeOutcome.REFUSED, ProbeOutcome.CONNECTED) if o in seen),
            ProbeOutcome.TIMEOUT,
        )

    @property
    def backends(self) -> dict[str, int]:
        """How many connections each backend answered."""
        counted = Counter(attempt.backend for attempt in self.attempts if attempt.backend)
        return dict(sorted(counted.items()))

    @property
    def client_addresses(self) -> list[str]:
        return sorted({attempt.client for attempt in self.attempts if attempt.client})


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    probe: str
    step: str
    observation: Observation
    reasons: tuple[str, ...] = field(default=())  # why it failed; empty if it passed
    difference: str = ""  # why another result was expected than on Linux

    @property
    def passed(self) -> bool:
        return not self.reasons


def judge(
    probe: Probe, step: str, observation: Observation, seen_as: IPAddress | None, difference: str = ""
) -> ProbeVerdict:
    """`seen_as` is the client address that the backends must see, unless it is the client's own or any."""
    return ProbeVerdict(probe.name, step, observation, tuple(_reasons(probe, observation, seen_as)), difference)


def _reasons(probe: Probe, observation: Observation, seen_as: IPAddress | None) -> Iterator[str]:
    expect = probe.spec.expect
    yield from sorted({attempt.fault for attempt in observation.attempts if attempt.fault})
    if probe.spec.rate and expect.outcome is ProbeOutcome.CONNECTED:
        if observation.failures > expect.failures:
            total = len(observation.attempts)
            counted = Counter(attempt.outcome for attempt in observation.attempts)
            kinds = ", ".join(
                f"{counted[one]} {one.value}" for one in ProbeOutcome if counted[one] and one is not expect.outcome
            )
            yield f"{observation.failures} of {total} connections failed ({kinds}); at most {expect.failures} may"
    elif any(attempt.outcome is not expect.outcome for attempt in observation.attempts):
        yield f"expected {expect.outcome.value}, saw {_summary(observation)}"
    if observation.broken:
        yield f"the held connection broke: {observation.broken}"
    yield from _gap_reasons(expect, observation)
    yield from _backend_reasons(expect, observation)
    yield from _address_reasons(expect, observation, seen_as)


def _gap_reasons(expect: Expectation, observation: Observation) -> Iterator[str]:
    longest, limit = observation.max_gap, expect.max_gap_milliseconds
    if longest is not None and limit is not None and longest * 1000 > limit:
        yield f"silent for {longest * 1000:.0f} ms; at most {limit} ms expected"


def _backend_reasons(expect: Expectation, observation: Observation) -> Iterator[str]:
    answered = set(observation.backends)
    if expect.backends is not None:
        missing, extra = sorted(set(expect.backends) - answered), sorted(answered - set(expect.backends))
        if missing:
            yield f"no answer from {', '.join(missing)}"
        if extra:
            yield f"unexpected answer from {', '.join(extra)}"
    if expect.sticky and len(answered) > 1:
        yield f"not sticky: {', '.join(sorted(answered))} answered"


def _address_reasons(expect: Expectation, observation: Observation, seen_as: IPAddress | None) -> Iterator[str]:
    if expect.client_address is None:
        return
    connected = [attempt for attempt in observation.attempts if attempt.outcome is ProbeOutcome.CONNECTED]
    if any(not attempt.client for attempt in connected):
        yield "the backend did not report which client address it saw"
    seen = {(attempt.client, str(seen_as or attempt.local)) for attempt in connected if attempt.client}
    for saw, expected in sorted(seen):
        if saw != expected:
            meaning = "" if expect.client_address == expected else f" ({expect.client_address})"
            yield f"the backend saw the client as {saw}, expected {expected}{meaning}"


def _summary(observation: Observation) -> str:
    """`Timeout`, or `Connected 7 of 10, Timeout 3 of 10`."""
    counted = Counter(attempt.outcome for attempt in observation.attempts)
    total = len(observation.attempts)
    if len(counted) == 1:
        return observation.outcome.value
    return ", ".join(f"{outcome.value} {counted[outcome]} of {total}" for outcome in ProbeOutcome if counted[outcome])
