"""Parses the output of `ovs-appctl ofproto/trace` into passes, with the flows that matched in each. Pure.

A pass is one lookup in the datapath: connection tracking and the hash of a group recirculate a packet. The agent's API
explains a flow by its cookie.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field


class UnreadableTraceError(ValueError):
    """Not the output of `ofproto/trace`; the message quotes what was found."""


@dataclass(frozen=True, slots=True)
class MatchedFlow:
    """A flow that matched the packet. For a table miss, everything but the table is empty."""

    table: int
    match: str = ""
    priority: int | None = None
    cookie: int | None = None
    actions: tuple[str, ...] = ()
    outer: bool = False  # matched the tunnel packet around this one


@dataclass(frozen=True, slots=True)
class ChosenBucket:
    """The bucket that a select group chose."""

    group: int
    number: int


@dataclass(frozen=True, slots=True)
class CtAction:
    """A connection tracking action of the datapath. `nat` is empty if there is no translation."""

    zone: int
    commit: bool = False
    nat: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    packet: Mapping[str, str]  # the fields of the packet by name; a bare word has an empty value
    met: tuple[MatchedFlow, ...]
    buckets: tuple[ChosenBucket, ...]
    outputs: tuple[str, ...]  # OpenFlow ports: a number, or LOCAL, IN_PORT, CONTROLLER
    megaflow: str
    actions: tuple[str, ...]  # of the datapath; () for a drop
    resumed: int | None = None  # the table in which the packet resumes; None at the start
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
    """The trace of one packet. After the first pass, trace guesses the connection state unless it was given."""

    passes: tuple[Pass, ...]


def parse(text: str) -> Trace:
    readings: list[_Reading] = []
    for line in text.splitlines():
        if line.startswith("Flow: "):
            readings.append(_Reading(packet=_fields(line.removeprefix("Flow: "))))
        elif readings:
            readings[-1].read(line)
    if not readings:
        raise UnreadableTraceError(f"not a trace: no line begins with `Flow: `: {text[:200]!r}")
    return Trace(tuple(reading.whole() for reading in readings))


# Actions of the datapath, in the same form as in dumps of megaflows ---------------------------------------------


def split(text: str) -> tuple[str, ...]:
    """Splits at commas outside of brackets."""
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
    """A pass that is being parsed."""

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
    ended: bool = False  # the following lines summarize the pass

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
            self.resumed = int(found[1])  # a group prints table 0 first, and then the table that led to it
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
