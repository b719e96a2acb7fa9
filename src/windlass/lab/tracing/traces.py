"""Parses the output of `ovs-appctl ofproto/trace` into passes, with the flows that matched in each. Pure.

A pass is one lookup in the datapath: connection tracking and the hash of a group recirculate a packet. The agent's API
explains a flow by its cookie.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


class UnreadableTraceError(ValueError):
    """Not the output of `ofproto/trace`; the message quotes what was found."""


@dataclass(frozen=True, slots=True)
class MatchedFlow:
    """A flow that matched the packet; without a cookie, no flow of the table did."""

    table: int
    cookie: int | None = None
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
    actions: tuple[str, ...]  # the actions of the datapath; () for a drop

    @property
    def ct(self) -> tuple[CtAction, ...]:
        return tuple(ct_actions(self.actions))


def parse(text: str) -> tuple[Pass, ...]:
    """The passes of one packet. After the first one, trace guesses the connection state unless it was given."""
    starts = [found.start() for found in re.finditer(r"^Flow: ", text, re.MULTILINE)]
    if not starts:
        raise UnreadableTraceError(f"not a trace: no line begins with `Flow: `: {text[:200]!r}")
    return tuple(_pass(text[start:end].splitlines()) for start, end in pairwise((*starts, len(text))))


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

_FLOW = re.compile(r"\s*(\d+)\. (?:.*, )?priority \d+(?:, cookie (0x[0-9a-f]+))?$")
_MISS = re.compile(r"\s*(\d+)\. No match")
_GROUP = re.compile(r"\s*group:(\d+)$")
_BUCKET = re.compile(r"\s*-> using bucket (\d+)$")


def _pass(lines: Sequence[str]) -> Pass:
    met: list[MatchedFlow] = []
    buckets: list[ChosenBucket] = []
    group = 0
    actions: tuple[str, ...] = ()
    bridges = 0  # the second one is for the tunnel packet
    for line in lines[1:]:
        if line.startswith("bridge("):
            bridges += 1
        elif line.startswith("Datapath actions: "):
            actions = datapath_actions(line.removeprefix("Datapath actions: "))
        elif found := _FLOW.match(line):
            met.append(MatchedFlow(int(found[1]), int(found[2], 16) if found[2] else None, bridges > 1))
        elif found := _MISS.match(line):
            met.append(MatchedFlow(int(found[1]), outer=bridges > 1))
        elif found := _GROUP.match(line):
            group = int(found[1])
        elif found := _BUCKET.match(line):
            buckets.append(ChosenBucket(group, int(found[1])))
    return Pass(_fields(lines[0].removeprefix("Flow: ")), tuple(met), tuple(buckets), actions)


def _fields(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in split(text))
    return {name: value for name, _, value in pairs}
