"""The rules of the Pods with the same policies, and what they say about a class of peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from windlass.model.policies import Direction
from windlass.model.port_sets import ALL_PORTS, PortSet, union
from windlass.policy.classes import ClassPart, PeerClass
from windlass.policy.rules import (
    BlockPeers,
    PodPeers,
    PolicyRule,
    RuleAction,
    RulePeers,
    UnlistedPods,
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

# How sure it is that a rule matches a peer. In order: a rule is followed by denials of peers that it may match.
_MATCHES, _NAMESPACE_IS_UNKNOWN, _POD_IS_UNKNOWN = range(3)
_REASONS = {
    _NAMESPACE_IS_UNKNOWN: "the namespace of the other Pod is not known yet",
    _POD_IS_UNKNOWN: "the other Pod is not known yet",
}
_Place: TypeAlias = tuple[int, int]  # of a rule in its subject, and how sure it is that it matches
_Resolve: TypeAlias = Callable[[Subject, Sequence[TierRule], Sequence[NumberedPort]], PortSet]


class RulesOfSubject:
    """The rules of a subject, indexed by the selectors and blocks that they use."""

    def __init__(self, subject: Subject, direction: Direction) -> None:
        self.subject = subject
        self.peers: dict[int, RulePeers | UnlistedPods] = {}
        # Named ports of the peers. For ingress, named ports are those of the subject.
        self.names = subject.port_names if direction is Direction.EGRESS else frozenset()
        # By selector or block, and for all peers: the places of rules, and their ports.
        self._by_peers: dict[int, list[_Place]] = defaultdict(list)
        self._ports_by_peers: dict[int, set[PortSet]] = defaultdict(set)
        self._for_everyone: list[_Place] = []
        self._ports_for_everyone: set[PortSet] = set()
        self._known: dict[tuple[_Resolve, tuple[_Place, ...], tuple[NumberedPort, ...]], PortSet] = {}
        for place, one in enumerate(subject.rules):
            if one.rule.peers is None:
                self._for_everyone.append((place, _MATCHES))
                self._ports_for_everyone.add(one.rule.ports)
            for peers in one.rule.peers or ():
                number = number_of(peers)
                self.peers[number] = peers
                self._by_peers[number].append((place, _MATCHES))
                self._ports_by_peers[number].add(one.rule.ports)
            if one.rule.action is not RuleAction.ACCEPT:
                self._add_possible_peers(place, one.rule)
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
        return self._rules_at(self._places(peer_class))

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
            rules = self._rules_at(key[1])
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = known = resolve(self.subject, rules, peer_class.named_ports)
        return known

    def _places(self, peer_class: PeerClass) -> tuple[_Place, ...]:
        """In order, each once: several peers of a rule may match."""
        matched = [self._by_peers[peers] for peers in peer_class.peers if peers in self._by_peers]
        return tuple(sorted({*self._for_everyone, *chain.from_iterable(matched)}))

    def _rules_at(self, places: Iterable[_Place]) -> list[TierRule]:
        rules = self.subject.rules
        return [rules[place] if sure == _MATCHES else self._denial(rules[place], sure) for place, sure in places]

    def _denial(self, one: TierRule, sure: int) -> TierRule:
        """While it is not known whether a rule that denies or passes matches some peers, it denies them."""
        rule = one.rule
        may_be_any_port = sure == _POD_IS_UNKNOWN and self._has_names(rule)
        ports, name = ALL_PORTS if may_be_any_port else rule.ports, f"{rule.name} ({_REASONS[sure]})"
        return TierRule(one.tier, PolicyRule(name, RuleAction.DENY, rule.peers, ports, rule.named_ports))

    def _add_possible_peers(self, place: int, rule: PolicyRule) -> None:
        pods = dict.fromkeys(peers for peers in rule.peers or () if isinstance(peers, PodPeers))
        for peers in pods:
            self._by_peers[possible_number_of(number_of(peers))].append((place, _NAMESPACE_IS_UNKNOWN))
        unlisted = [UnlistedPods(peers) for peers in pods]
        if self._has_names(rule) and rule.peers is None:
            unlisted.append(UnlistedPods(PodPeers()))
        elif self._has_names(rule):
            blocks = (number_of(peers) for peers in rule.peers or () if isinstance(peers, BlockPeers))
            unlisted += [UnlistedPods(PodPeers(), block) for block in blocks]
        for possible in unlisted:
            number = number_of(possible)
            self.peers[number] = possible
            self._by_peers[number].append((place, _POD_IS_UNKNOWN))

    def _has_names(self, rule: PolicyRule) -> bool:
        return bool(self.names and rule.named_ports)
