"""Reads what `ovs-appctl ofproto/trace` prints: text becomes passes, the flows met in each, and what was done. Pure.

A pass is one look-up in the datapath: connection tracking and the hash of a group send a packet around once more. It
runs nothing, and knows nothing of what a flow is for: `cookie` leads to that, by the agent's API.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field


class UnreadableTraceError(ValueError):
    """Not what `ofproto/trace` prints; the sentence quotes what was found."""


@dataclass(frozen=True, slots=True)
class MatchedFlow:
    """A flow that the packet met. Where no flow of the table matched, all but the table is empty."""

    table: int
    match: str = ""
    priority: int | None = None
    cookie: int | None = None
    actions: tuple[str, ...] = ()
    outer: bool = False  # by the packet that a tunnel makes of this one


@dataclass(frozen=True, slots=True)
class ChosenBucket:
    """What a select group chose."""

    group: int
    number: int


@dataclass(frozen=True, slots=True)
class CtAction:
    """A connection-tracking action of the datapath. `nat` is empty where nothing is translated."""

    zone: int
    commit: bool = False
    nat: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    packet: Mapping[str, str]  # what the look-up was for, by the names of fields; of a bare word the value is empty
    met: tuple[MatchedFlow, ...]
    buckets: tuple[ChosenBucket, ...]
    outputs: tuple[str, ...]  # OpenFlow ports: a number, or LOCAL, IN_PORT, CONTROLLER
    megaflow: str
    actions: tuple[str, ...]  # of the datapath; () for a drop
    resumed: int | None = None  # the table in which it goes on; None where it began anew
    error: str = ""

    @property
    def recirc_id(self) -> int:
        return int(self.packet.get("recirc_id", "0"), 16)

    @property
    def tables(self) -> tuple[int, ...]:
        return tuple(met.table for met in self.met)

    @property
    def ct(self) -> tuple[CtAction, ...]:
        return tuple(ct_actions(self.actions))


@dataclass(frozen=True, slots=True)
class Trace:
    """One packet. Behind the first pass, trace guesses the state of the connection unless it was told."""

    passes: tuple[Pass, ...]


def parse(text: str) -> Trace:
    readings: list[_Reading] = []
    for line in text.splitlines():
        if line.startswith("Flow: "):
            readings.append(_Reading(packet=_fields(line.removeprefix("Flow: "))))
        elif readings:
            readings[-1].read(line)
    if not readings:
        raise UnreadableTraceError(f"this is no trace, for it has no line that begins with `Flow: `: {text[:200]!r}")
    return Trace(tuple(reading.whole() for reading in readings))


# Actions of the datapath, which dumps of megaflows print likewise -----------------------------------------------


def split(text: str) -> tuple[str, ...]:
    """At the commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return tuple(part.strip() for part in parts if part.strip())


def datapath_actions(text: str) -> tuple[str, ...]:
    return () if text.strip() == "drop" else split(text)


def ct_actions(actions: Iterable[str]) -> Iterator[CtAction]:
    for action in actions:
        if action == "ct" or action.startswith("ct("):
            words = split(action[3:-1])
            zone = next((word.removeprefix("zone=") for word in words if word.startswith("zone=")), "0")
            nat = next((word for word in words if word == "nat" or word.startswith("nat(")), "")
            yield CtAction(int(zone), "commit" in words, nat)


def recirculations(actions: Iterable[str]) -> Iterator[int]:
    for action in actions:
        if action.startswith("recirc("):
            yield int(action[7:-1], 16)


# Reading ----------------------------------------------------------------------------------------------------------

_FLOW = re.compile(r"\s*(\d+)\. (?:(.*), )?priority (\d+)(?:, cookie (0x[0-9a-f]+))?$")
_MISS = re.compile(r"\s*(\d+)\. No match")
_RESUMED = re.compile(r"\s*Resuming from table (\d+)$")
_RESTORED = re.compile(r"\s*restored state: table=(\d+)")
_GROUP = re.compile(r"\s*group:(\d+)$")
_BUCKET = re.compile(r"\s*-> using bucket (\d+)$")
_OUTPUT = re.compile(r"\s+(?:output:)?(\d+|LOCAL|IN_PORT)$")
_CHOSEN_OUTPUT = re.compile(r"\s*-> output port is (\d+)$")
_CONTROLLER = re.compile(r"\s+controller\b", re.IGNORECASE)
_NOTE = re.compile(r"\s*(?:->|>>>>|bucket \d+$|thaw$|bridge\(|-+$)")
_LOCAL = "65534"


@dataclass(slots=True)
class _Reading:
    """A pass, as far as it has been read."""

    packet: Mapping[str, str]
    met: list[MatchedFlow] = field(default_factory=list)
    buckets: list[ChosenBucket] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    megaflow: str = ""
    actions: tuple[str, ...] = ()
    resumed: int | None = None
    error: str = ""
    bridges: int = 0
    group: int = 0
    ended: bool = False  # what follows is told of the whole pass

    def read(self, line: str) -> None:
        if line.startswith("Final flow: "):
            self.ended = True
        elif line.startswith("Megaflow: "):
            self.megaflow = line.removeprefix("Megaflow: ")
        elif line.startswith("Datapath actions: "):
            self.actions = datapath_actions(line.removeprefix("Datapath actions: "))
        elif line.startswith("Translation failed"):
            self.error = line
        elif line.startswith("bridge("):
            self.bridges += 1
        elif not self.ended:
            self._read_step(line)

    def _read_step(self, line: str) -> None:
        if found := _FLOW.match(line):
            table, match, priority, cookie = found.groups()
            number = int(cookie, 16) if cookie else None
            self.met.append(MatchedFlow(int(table), match or "", int(priority), number, outer=self.bridges > 1))
        elif found := _MISS.match(line):
            self.met.append(MatchedFlow(int(found[1]), outer=self.bridges > 1))
        elif found := _RESUMED.match(line) or _RESTORED.match(line):
            self.resumed = int(found[1])  # a group says table 0 first, and then the one that led to it
        elif found := _BUCKET.match(line):
            self.buckets.append(ChosenBucket(self.group, int(found[1])))
        else:
            self._read_action(line)

    def _read_action(self, line: str) -> None:
        if found := _GROUP.match(line):
            self.group = int(found[1])
        if found := _CHOSEN_OUTPUT.match(line) or _OUTPUT.match(line):
            self.outputs.append("LOCAL" if found[1] == _LOCAL else found[1])
        elif _CONTROLLER.match(line):
            self.outputs.append("CONTROLLER")
        if self.met and line.strip() and not _NOTE.match(line):
            last = self.met[-1]
            actions = (*last.actions, line.strip())
            self.met[-1] = MatchedFlow(last.table, last.match, last.priority, last.cookie, actions, last.outer)

    def whole(self) -> Pass:
        return Pass(
            packet=self.packet,
            met=tuple(self.met),
            buckets=tuple(self.buckets),
            outputs=tuple(self.outputs),
            megaflow=self.megaflow,
            actions=self.actions,
            resumed=self.resumed,
            error=self.error,
        )


def _fields(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in split(text))
    return {name: value for name, _, value in pairs}
