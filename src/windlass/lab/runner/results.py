"""Reports the verdicts of a run: the table for people, the JSON for programs, the exit status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from rich.table import Table
from rich.text import Text

from windlass.lab.probing.verdicts import ProbeVerdict

PASSED, FAILED, TROUBLE = 0, 1, 2  # exit status


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    name: str
    dataplane: str
    seconds: float
    verdicts: tuple[ProbeVerdict, ...] = ()
    error: str = ""  # why it could not be read or brought up


def status(results: Iterable[ScenarioResult]) -> int:
    seen = list(results)
    if any(result.error for result in seen):
        return TROUBLE
    return PASSED if all(v.passed for result in seen for v in result.verdicts) else FAILED


def to_json(results: Sequence[ScenarioResult]) -> bytes:
    """The report that docs/scenarios.md describes. A scenario that could not run has an additional `error`."""
    verdicts = [verdict for result in results for verdict in result.verdicts]
    report = {
        "passed": sum(verdict.passed for verdict in verdicts),
        "failed": sum(not verdict.passed for verdict in verdicts),
        "scenarios": [
            {
                "name": result.name,
                "dataplane": result.dataplane,
                "seconds": round(result.seconds, 1),
                "probes": [_probe(verdict) for verdict in result.verdicts],
                **({"error": result.error} if result.error else {}),
            }
            for result in results
        ],
    }
    return msgspec.json.format(msgspec.json.encode(report)) + b"\n"


def table(results: Sequence[ScenarioResult]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("scenario", "probe", "outcome"):
        shown.add_column(column, no_wrap=True)
    for column in ("backends", "client seen as", "result"):
        shown.add_column(column, overflow="fold")
    for result in results:
        name = result.name
        for verdict in result.verdicts:
            observation = verdict.observation
            shown.add_row(
                name,
                verdict.probe,
                observation.outcome.value,
                ", ".join(f"{backend} x{count}" for backend, count in observation.backends.items()),
                ", ".join(observation.client_addresses),
                _result(verdict),
            )
            name = ""  # only in the first row of the scenario
        if result.error:
            shown.add_row(name, "", "", "", "", Text(f"error: {result.error}", style="bold red"))
    return shown


def failed(results: Sequence[ScenarioResult]) -> list[Text]:
    """One line for each failure, to be printed below the table of a long run."""
    lines = []
    for result in results:
        lines += [f"{result.name}, {v.step}, {v.probe}: {'; '.join(v.reasons)}" for v in result.verdicts if v.reasons]
        lines += [f"{result.name}: error: {result.error}"] if result.error else []
    return [Text(line, style="bold red") for line in lines]


def summary(results: Sequence[ScenarioResult]) -> str:
    verdicts = [verdict for result in results for verdict in result.verdicts]
    parts = [f"{sum(v.passed for v in verdicts)} passed", f"{sum(not v.passed for v in verdicts)} failed"]
    if different := sum(v.passed and bool(v.difference) for v in verdicts):
        parts[0] += f" ({different} with a declared difference of the host)"
    trouble = sum(bool(result.error) for result in results)
    if trouble:
        parts.append(f"{trouble} {'scenario' if trouble == 1 else 'scenarios'} could not run")
    return ", ".join(parts)


def _probe(verdict: ProbeVerdict) -> dict[str, object]:
    seen = verdict.observation
    return {
        "name": verdict.probe,
        "step": verdict.step,
        "passed": verdict.passed,
        "outcome": seen.outcome.value,
        "backends": seen.backends,
        "clientAddresses": seen.client_addresses,
        "maxGapMilliseconds": None if seen.max_gap is None else round(seen.max_gap * 1000),
        "failures": seen.failures,
        "reason": "; ".join(verdict.reasons),
        **({"difference": verdict.difference} if verdict.difference else {}),
    }


def _result(verdict: ProbeVerdict) -> Text:
    if not verdict.passed:
        return Text(f"FAIL: {'; '.join(verdict.reasons)}", style="bold red")
    gap = verdict.observation.max_gap
    if verdict.difference:
        return Text(f"pass, differs: {verdict.difference}", style="yellow")
    return Text("pass" if gap is None else f"pass, longest gap {gap * 1000:.0f} ms", style="green")
