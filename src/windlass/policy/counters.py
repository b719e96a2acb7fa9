"""Counters of packets with the rules that decided about them. Pure.

The switch counts the packets of each verdict: those between Pods with the same policies and one class of peers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct

from windlass.model.policies import NO_CLASS, PolicySubject
from windlass.model.port_sets import in_words
from windlass.model.prefixes import Prefix, address_of, prefix_text
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.explanations import NO_POLICY
from windlass.policy.subjects import RuleOutcome


class Decision(Struct, frozen=True):
    """What one rule decides. Where several of them decide about some traffic, the counter is that of all of them."""

    traffic: str
    allows: bool
    rule: str


class PolicyCounter(Struct, frozen=True):
    """Counts from 0 again when the policies of these Pods change, or what the rules select of these peers."""

    pods: tuple[str, ...]
    direction: str
    peers: tuple[str, ...]  # empty: all peers without a counter of their own
    packets: int
    decisions: tuple[Decision, ...]


def counter_of(
    compiler: PolicyCompiler, subject: PolicySubject, pods: list[str], peer_class: int, packets: int
) -> PolicyCounter:
    direction = subject.direction
    compiled = compiler.of(direction)
    entries = compiled.entries.items() if peer_class != NO_CLASS else ()
    peers = sorted({_name(compiler, prefix) for prefix, number in entries if number == peer_class})
    isolating = ", ".join(compiler.isolating(direction, pods[0]))
    default = f"no {direction.value} rule of {isolating} allows it" if isolating else ""
    decisions = _decisions(compiled.decisions(subject.number, peer_class), default)
    return PolicyCounter(tuple(pods), direction.value, tuple(peers), packets, tuple(decisions))


def _decisions(outcomes: Collection[RuleOutcome], no_rule_allows: str) -> Iterator[Decision]:
    """`no_rule_allows`: why traffic is denied that no rule decides about; empty: it is allowed."""
    by_rules = [(one.ports, one.allows, one.rule.name) for one in outcomes if one.rule and one.ports]
    for ports, allows, name in dict.fromkeys(by_rules):
        yield Decision(in_words(ports), allows, name)
    if any(one.ports for one in outcomes if one.rule is None):
        traffic = "everything else" if by_rules else "all traffic"
        yield Decision(traffic, not no_rule_allows, no_rule_allows or NO_POLICY)


def _name(compiler: PolicyCompiler, prefix: Prefix) -> str:
    """The Pod or Node with this address; otherwise the network itself."""
    address = address_of(prefix)
    return (compiler.name_of(address) if address else "") or prefix_text(prefix)
