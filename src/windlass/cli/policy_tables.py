"""How `windlass policy` prints: tables of peers, traffic, verdicts and rules, with short names for many Pods."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import click

from windlass.policy.connectivity import Connectivity
from windlass.policy.counters import PolicyCounter
from windlass.policy.explanations import (
    ITSELF,
    OWN_NODE,
    REPLICAS,
    ConnectivityDifference,
    DirectionExplanation,
    PeerGroup,
    PodExplanation,
)

_FEW = 4  # how many names of one namespace are listed
_MANY = 10  # how many policies, rules or other names are listed
_WIDTH = 120  # columns, if the output is not a terminal


def explanation_lines(explanation: PodExplanation, names: PeerNames) -> Iterator[str]:
    where = f" on {explanation.node}" if explanation.node else ""
    addresses = ", ".join(explanation.addresses) or "no address known"
    yield f"Pod {click.style(explanation.pod, bold=True)}{where}: {addresses}"
    for title, end, side in (
        ("What may reach it", "FROM", explanation.ingress),
        ("What it may reach", "TO", explanation.egress),
    ):
        yield ""
        yield click.style(title, bold=True)
        yield f"  selected by: {listed(side.policies) or 'no policy'}"
        if side is explanation.egress and _is_about_itself(side) and side.peers == explanation.ingress.peers:
            yield "  the same as what may reach it"
        else:
            yield from _table((end, "TRAFFIC", "VERDICT", "BECAUSE OF"), _explanation_rows(side, names))


def difference_lines(difference: ConnectivityDifference, names: PeerNames) -> Iterator[str]:
    if not difference:
        yield "no change of connectivity"
        return
    for pods, what in ((difference.added_pods, "only in NEW"), (difference.removed_pods, "only in OLD")):
        if pods:
            yield f"{what}: {'Pod' if len(pods) == 1 else f'{len(pods)} Pods'} {listed(pods)}"
    rows = []
    for one in difference.changes:
        source, destination = names.of(one.source), names.of(one.destination)
        reasons = "\n".join(
            (
                *(f"now: {rule}" for rule in _first(one.rules_now)),
                *(f"was: {rule}" for rule in _first(one.rules_before)),
            )
        )
        rows.append(_Row((one.change.lower(), source, destination, one.traffic, reasons), one.change == "Added"))
    if rows:
        yield from _table(("CHANGE", "FROM", "TO", "TRAFFIC", "BECAUSE OF"), rows)


def counter_lines(counters: Iterable[PolicyCounter]) -> Iterator[str]:
    return _table(("POD", "PEERS", "PACKETS", "TRAFFIC", "VERDICT", "BECAUSE OF"), _counter_rows(counters))


def listed(names: Sequence[str]) -> str:
    return ", ".join(_first(names))


def _first(names: Sequence[str]) -> list[str]:
    return [*names[:_MANY], *([f"and {len(names) - _MANY:,} more"] if len(names) > _MANY else [])]


class PeerNames:
    """Short names for many Pods: a whole namespace is one name."""

    def __init__(self, connectivity: Connectivity) -> None:
        self._pods = Counter(pod.namespace for pod in connectivity.world.pods)
        self._nodes = len(connectivity.world.nodes)

    def of(self, peers: PeerGroup) -> str:
        return ", ".join(
            (
                *self._pods_in_words(peers.pods),
                *self._nodes_in_words(peers),
                *_few([_network_in_words(name) for name in peers.networks], "network"),
            )
        )

    def _pods_in_words(self, pods: Iterable[str]) -> Iterator[str]:
        by_namespace: dict[str, list[str]] = {}
        for pod in pods:
            by_namespace.setdefault(pod.partition("/")[0] if "/" in pod else "", []).append(pod)
        for namespace, names in by_namespace.items():
            yield from _all_or_few(names, self._pods[namespace], "Pod", f" of {namespace}")

    def _nodes_in_words(self, peers: PeerGroup) -> Iterator[str]:
        names = [name if name.startswith(OWN_NODE) else f"Node {name}" for name in peers.nodes]
        words = [*_all_or_few(names, self._nodes, "Node")]
        return iter([f"{', '.join(words)} except {OWN_NODE}"] if peers.except_own_node else words)


def _all_or_few(names: Sequence[str], total: int, noun: str, of: str = "") -> Iterator[str]:
    """`all 5 Pods of shop` if these are all, `all 5 Pods of shop (IPv4)` if these are all with one IP version."""
    by_version: dict[str, list[str]] = {}  # or by address
    for name in names:
        found = re.search(r" \((IPv[46]|[0-9a-f.:]+)\)$", name)
        by_version.setdefault(found[0] if found else "", []).append(name)
    some: list[str] = []
    for version, members in by_version.items():
        if len(members) == total > 1:
            yield f"all {total} {noun}s{of}{version}"
        else:
            some += members
    yield from _few(some, noun, of)


def _few(names: Sequence[str], noun: str, of: str = "") -> Iterator[str]:
    yield from names[:_FEW]
    more = len(names) - _FEW
    if more > 0:
        yield f"{more} more {noun}{'s' if more > 1 else ''}{of}"


def _network_in_words(name: str) -> str:
    return {"0.0.0.0/0": "any other IPv4 address", "::/0": "any other IPv6 address"}.get(name, name)


class _Row(NamedTuple):
    cells: tuple[str, ...]
    is_good: bool  # green or red


def _is_about_itself(side: DirectionExplanation) -> bool:
    """Whether the only peer is the Pod, with its replicas: each packet is both ingress and egress traffic of it."""
    groups = [row.peers for row in side.peers]
    if any(group.nodes or group.networks for group in groups):
        return False
    return all(pod.startswith((ITSELF, REPLICAS)) for group in groups for pod in group.pods)


def _explanation_rows(side: DirectionExplanation, names: PeerNames) -> Iterator[_Row]:
    for row in side.peers:
        peers = names.of(row.peers)
        for one in row.verdicts:
            cells = peers, one.traffic, one.verdict.lower(), "\n".join(_first(one.rules))
            yield _Row(cells, one.verdict == "Allow")
            peers = ""  # only in the first line


def _counter_rows(counters: Iterable[PolicyCounter]) -> Iterator[_Row]:
    for one in counters:
        end = "from" if one.direction == "ingress" else "to"
        first = listed(one.pods), f"{end} {listed(one.peers) or 'all others'}"
        together = f"{one.packets:,}"
        for decision in one.decisions:
            packets = together if decision.packets is None else f"{decision.packets:,}"
            verdict = "allow" if decision.allows else "deny"
            yield _Row((*first, packets, decision.traffic, verdict, decision.rule), decision.allows)
            first, together = ("", ""), ""  # only in the first line


def _table(header: tuple[str, ...], rows: Iterable[_Row]) -> Iterator[str]:
    """Columns are as wide as their content; if the terminal is too narrow, the widest columns share what is left.

    A name that is longer than its column is broken on a terminal. In other output it widens the column: it stays whole
    for searches.
    """
    listed = [*rows]
    columns = [*zip(header, *(row.cells for row in listed), strict=True)]
    needed = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    if sys.stdout.isatty():
        widths = _shared(needed, shutil.get_terminal_size((_WIDTH, 0)).columns - 2 * len(header))
    else:
        longest = [max(len(word) for cell in column for word in cell.split()) for column in columns]
        widths = [*map(max, longest, _shared(needed, _WIDTH - 2 * len(header)))]
    yield click.style(
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(header, widths, strict=True)).rstrip(), dim=True
    )
    for row in listed:
        wrapped = [
            [
                part
                for line in cell.split("\n")
                for words in textwrap.wrap(line, w, break_long_words=False, break_on_hyphens=False) or [""]
                for part in textwrap.wrap(words, w) or [""]  # a single long word, at a hyphen if it has one
            ]
            for cell, w in zip(row.cells, widths, strict=True)
        ]
        for number in range(max(map(len, wrapped))):
            cells = [lines[number] if number < len(lines) else "" for lines in wrapped]
            text = "  " + "  ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip()
            yield click.style(text, fg="green" if row.is_good else "red")


def _shared(needed: Sequence[int], available: int) -> list[int]:
    """The widths of the columns: the needed one, or an equal share of what the narrower columns leave."""
    widths, left, columns = dict.fromkeys(range(len(needed)), 0), available, len(needed)
    for index in sorted(range(len(needed)), key=lambda i: needed[i]):
        widths[index] = min(needed[index], max(left // columns, 12))
        left, columns = left - widths[index], columns - 1
    return [widths[index] for index in range(len(needed))]
