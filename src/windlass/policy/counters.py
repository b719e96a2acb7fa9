"""Counters of packets with the rules that decided about them. Pure.

The switch counts the packets of each verdict: those between Pods with the same policies and one class of peers. If the
agent's configuration asks for it, it counts those of each rule of the verdict, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from windlass.model.policies import NO_CLASS, Direction, PolicySubject
from windlass.model.port_sets import ALL_PORTS, contains, in_words
from windlass.model.prefixes import Prefix, address_of, prefix_text
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.explanations import NO_POLICY
from windlass.policy.subjects import RuleOutcome


class Decision(Struct, frozen=True, omit_defaults=True):
    """What one rule decides."""

    traffic: str
    allows: bool
    rule: str
    packets: int | None = None  # None: only the packets of all decisions together are counted


class PolicyCounter(Struct, frozen=True):
    """Starts from 0 again when the policies of these Pods change, or what the rules select of these peers."""

    pods: tuple[str, ...]
    direction: str
    peers: tuple[str, ...]  # empty: all peers without a counter of their own
    packets: int
    decisions: tuple[Decision, ...]


class PacketCount(NamedTuple):
    peer_class: int
    packets: int
    by_rule: Sequence[int] = ()  # of each part of `PolicySubject.by_rule`


def peers_by_class(compiler: PolicyCompiler, direction: Direction) -> dict[int, tuple[str, ...]]:
    """The names of the peers of each class. NO_CLASS has none: those are all others."""
    names: dict[int, set[str]] = {}
    for prefix, number in compiler.of(direction).entries.items():
        if number != NO_CLASS:
            names.setdefault(number, set()).add(_name(compiler, prefix))
    return {number: tuple(sorted(found)) for number, found in names.items()}


def counter_of(
    compiler: PolicyCompiler, subject: PolicySubject, pods: list[str], peers: tuple[str, ...], count: PacketCount
) -> PolicyCounter:
    direction = subject.direction
    compiled = compiler.of(direction)
    isolating = ", ".join(compiler.isolating(direction, pods[0]))
    default = f"no {direction.value} rule of {isolating} allows it" if isolating else ""
    if parts := compiled.verdicts[subject.number].by_rule.get(count.peer_class):
        counts = count.by_rule or (count.packets,)  # one rule decides about everything
        decisions = [_decision(one, default, packets) for one, packets in zip(parts, counts, strict=True)]
    else:
        decisions = [*_decisions(compiled.decisions(subject.number, count.peer_class), default)]
    return PolicyCounter(tuple(pods), direction.value, peers, count.packets, tuple(decisions))


def _decisions(outcomes: Collection[RuleOutcome], no_rule_allows: str) -> Iterator[Decision]:
    """`no_rule_allows`: why traffic is denied that no rule decides about; empty: it is allowed."""
    by_rules = [(one.ports, one.allows, one.rule.name) for one in outcomes if one.rule and one.ports]
    for ports, allows, name in dict.fromkeys(by_rules):
        yield Decision(in_words(ports), allows, name)
    if any(one.ports for one in outcomes if one.rule is None):
        traffic = "everything else" if by_rules else "all traffic"
        yield Decision(traffic, not no_rule_allows, no_rule_allows or NO_POLICY)


def _decision(outcome: RuleOutcome, no_rule_allows: str, packets: int) -> Decision:
    rule = outcome.rule.name if outcome.rule else no_rule_allows or NO_POLICY
    is_rest = outcome.ports != ALL_PORTS and contains(outcome.ports, None, None)  # often all ports but a few
    return Decision("everything else" if is_rest else in_words(outcome.ports), outcome.allows, rule, packets)


def _name(compiler: PolicyCompiler, prefix: Prefix) -> str:
    """The Pod or Node with this address; otherwise the network itself."""
    address = address_of(prefix)
    return (compiler.name_of(address) if address else "") or prefix_text(prefix)
