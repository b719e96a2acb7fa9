"""The generated text of a case: its picture, its cost, and the flows that its packets met, in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from case_pages.flow_words import bucket_in_words, in_words, rendered
from case_pages.marks import Case
from case_pages.pictures import summary
from case_pages.travels import Travelled
from windlass.lab.tracing.journeys import PacketPath, SwitchVisit
from windlass.lab.tracing.megaflows import Phase
from windlass.lab.tracing.traces import MatchedFlow

_PACKETS = {Phase.FIRST: "Request", Phase.REPLY: "Reply"}
_INTERFACES = {"windlass-gw0": "the gateway", "br-int": "the bridge interface", "eth0": "the uplink"}


class StaleTraceError(Exception):
    """A trace contains a flow that the pipeline does not compute from the same manifests."""


def text(root: Path, case: Case, travelled: Travelled) -> str:
    lines = [f"![{summary(travelled)}](pictures/{case.picture})", "", _origin(case, travelled)]
    for phase, title in _PACKETS.items():
        way = travelled.journey.paths.get(phase)
        for visit in way.visits if way else ():
            lines += ["", f"**{title}, from {_entry(visit)}, on {visit.node}**", "", "```text"]
            lines += _flows(root, case, travelled, visit)
            lines.append("```")
    return "\n".join(lines)


def costs(way: PacketPath) -> tuple[int, int]:
    """Passes and ct actions where the packet enters."""
    entry = way.visits[0]
    return len(entry.passes), entry.ct


def _origin(case: Case, travelled: Travelled) -> str:
    ways = travelled.journey.paths
    passes, ct = costs(ways[Phase.FIRST])
    node = ways[Phase.FIRST].visits[0].node
    cost = f"The first packet takes {_count(passes, 'pass', 'passes')} and {_count(ct, 'ct action', 'ct actions')}"
    if Phase.ESTABLISHED in ways:
        later = costs(ways[Phase.ESTABLISHED])
        cost += f" on {node}, those that follow {later[0]} and {later[1]}."
    else:
        cost += f" on {node}."
    return f"{cost} Probe `{case.probe}` of `{case.scenario}/{case.step}`."


def _flows(root: Path, case: Case, travelled: Travelled, visit: SwitchVisit) -> Iterator[str]:
    for number, this in enumerate(visit.passes):
        if number:
            yield ""
        for met in this.met:
            yield from _met(root, case, travelled, visit, met)
        for chosen in this.buckets:
            words, why = bucket_in_words(root / case.scenario, visit.node, chosen.group, chosen.number)
            yield from (f"# {why}", words)


def _met(root: Path, case: Case, travelled: Travelled, visit: SwitchVisit, met: MatchedFlow) -> Iterator[str]:
    known = travelled.journey.known[visit.node].get(met.cookie or 0)
    if known is None:
        raise StaleTraceError(f"{case.probe}: table {met.table} on {visit.node} met no flow of the agent's: {met}")
    words = in_words(known.symbolic, travelled.journey.pods[visit.node])
    if words not in rendered(root / case.scenario, visit.node):
        raise StaleTraceError(f"{case.probe}: {visit.node} has this flow, but not by its manifests: {words}")
    yield f"# {'the packet around it: ' if met.outer else ''}{known.why}"
    yield words


def _entry(visit: SwitchVisit) -> str:
    if visit.interface.startswith("pod/"):
        return f"Pod {visit.interface.removeprefix('pod/')}"
    return _INTERFACES[visit.interface]


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
