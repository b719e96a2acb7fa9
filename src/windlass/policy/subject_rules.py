"""The rules of the Pods with the same policies, and what they say about a class of peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from windlass.model.policies import Direction
from windlass.model.port_sets import PortSet, union
from windlass.policy.classes import ClassPart, PeerClass
from windlass.policy.rules import (
    BlockPeers,
    PodPeers,
    PolicyRule,
    RuleAction,
    RulePeers,
    number_of,
    possible_number_of,
)
from windlass.policy.subjects import (
    NumberedPort,
    RuleOutcome,
    Subject,
    TierRule,
    allowed_ports,
    allowed_to_itself,
    outcomes,
    without_overlap,
)

MOST_KNOWN = 4096  # verdicts that a subject keeps; peers that come and go may have any numbers for their named ports

_Resolve: TypeAlias = Callable[[Subject, Sequence[TierRule], Sequence[NumberedPort]], PortSet]


class RulesOfSubject:
    """The rules of a subject, indexed by the selectors and blocks that they use."""

    def __init__(self, subject: Subject, direction: Direction) -> None:
        self.subject = subject
        self.peers: dict[int, RulePeers] = {}
        # Named ports of the peers. For ingress, named ports are those of the subject.
        self.names = subject.port_names if direction is Direction.EGRESS else frozenset()
        # By selector or block, and for all peers: the places of rules, and their ports. An odd place is for peers that
        # the rule before may match.
        self._by_peers: dict[int, list[int]] = defaultdict(list)
        self._ports_by_peers: dict[int, set[PortSet]] = defaultdict(set)
        self._for_everyone: list[int] = []
        self._ports_for_everyone: set[PortSet] = set()
        self._known: dict[tuple[_Resolve, tuple[int, ...], tuple[NumberedPort, ...]], PortSet] = {}
        for place, one in enumerate(subject.rules):
            if one.rule.peers is None:
                self._for_everyone.append(2 * place)
                self._ports_for_everyone.add(one.rule.ports)
            for peers in one.rule.peers or ():
                number = number_of(peers)
                self.peers[number] = peers
                self._by_peers[number].append(2 * place)
                self._ports_by_peers[number].add(one.rule.ports)
                if isinstance(peers, PodPeers) and one.rule.action is not RuleAction.ACCEPT:
                    self._by_peers[possible_number_of(number)].append(2 * place + 1)
        # Most subjects have NetworkPolicies and port numbers only: then all matching rules add to what is allowed.
        self._is_sum = subject.isolated and not subject.has_tiers and not subject.port_names

    @property
    def names_ports_of_anyone(self) -> bool:
        """Whether a rule has a named port for all peers, or for a block: any Pod may have that port."""
        return bool(self.names) and any(
            one.rule.named_ports
            and (one.rule.peers is None or any(isinstance(peers, BlockPeers) for peers in one.rule.peers))
            for one in self.subject.rules
        )

    @property
    def parts(self) -> Iterator[ClassPart]:
        yield from self._by_peers
        yield from self.names

    def matching(self, peer_class: PeerClass) -> list[TierRule]:
        return [self._rule_at(place) for place in self._places(peer_class)]

    def outcomes(self, peer_class: PeerClass) -> tuple[RuleOutcome, ...]:
        return tuple(outcomes(self.subject, self.matching(peer_class), peer_class.named_ports))

    def parts_by_rule(self, peer_class: PeerClass) -> tuple[RuleOutcome, ...]:
        """What each rule decides; together they cover all ports, each once."""
        return tuple(without_overlap(self.outcomes(peer_class)))

    def allowed(self, peer_class: PeerClass) -> PortSet:
        if self._is_sum:
            matched = [self._ports_by_peers[peers] for peers in peer_class.peers if peers in self.peers]
            return union(self._ports_for_everyone.union(*matched))
        return self._resolved(allowed_ports, peer_class)

    def allowed_to_itself(self, peer_class: PeerClass) -> PortSet:
        return self._resolved(allowed_to_itself, peer_class)

    def _resolved(self, resolve: _Resolve, peer_class: PeerClass) -> PortSet:
        key = resolve, self._places(peer_class), peer_class.named_ports
        if (known := self._known.get(key)) is None:
            rules = [self._rule_at(place) for place in key[1]]
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = known = resolve(self.subject, rules, peer_class.named_ports)
        return known

    def _places(self, peer_class: PeerClass) -> tuple[int, ...]:
        """In order, each once: several peers of a rule may match."""
        matched = [self._by_peers[peers] for peers in peer_class.peers if peers in self._by_peers]
        return tuple(sorted({*self._for_everyone, *chain.from_iterable(matched)}))

    def _rule_at(self, place: int) -> TierRule:
        one = self.subject.rules[place // 2]
        return denial_of(one) if place % 2 else one


def denial_of(one: TierRule) -> TierRule:
    """For peers that a rule may match, which denies or passes: it denies until the labels of their namespace are known.

    A rule that accepts does not match such peers.
    """
    rule = one.rule
    name = f"{rule.name} (the namespace of the other Pod is not known yet)"
    return TierRule(one.tier, PolicyRule(name, RuleAction.DENY, rule.peers, rule.ports, rule.named_ports))
