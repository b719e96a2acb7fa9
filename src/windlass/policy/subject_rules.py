"""The rules of the Pods with the same policies, and what they say about a class of peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
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

_Resolve: TypeAlias = Callable[[Subject, Sequence[TierRule], Sequence[NumberedPort]], PortSet]


class RulesOfSubject:
    """The rules of a subject, indexed by the selectors and blocks that they use."""

    def __init__(self, subject: Subject, direction: Direction) -> None:
        self.subject = subject
        self.peers: dict[int, RulePeers | UnlistedPods] = {}
        # Named ports of the peers. For ingress, named ports are those of the subject.
        self.names = subject.port_names if direction is Direction.EGRESS else frozenset()
        # In order. A rule that denies or passes is followed by denials of peers that it may match.
        self._rules: list[TierRule] = []
        # By selector or block, and for all peers: the places of rules, and their ports.
        self._by_peers: dict[int, list[int]] = defaultdict(list)
        self._ports_by_peers: dict[int, set[PortSet]] = defaultdict(set)
        self._for_everyone: list[int] = []
        self._ports_for_everyone: set[PortSet] = set()
        self._known: dict[tuple[_Resolve, tuple[int, ...], tuple[NumberedPort, ...]], PortSet] = {}
        for one in subject.rules:
            if one.rule.peers is None:
                self._for_everyone.append(len(self._rules))
                self._ports_for_everyone.add(one.rule.ports)
            for peers in one.rule.peers or ():
                number = number_of(peers)
                self.peers[number] = peers
                self._by_peers[number].append(len(self._rules))
                self._ports_by_peers[number].add(one.rule.ports)
            self._rules.append(one)
            if one.rule.action is not RuleAction.ACCEPT:
                self._add_denials(one)
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
        return [self._rules[place] for place in self._places(peer_class)]

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
            rules = [self._rules[place] for place in key[1]]
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = known = resolve(self.subject, rules, peer_class.named_ports)
        return known

    def _places(self, peer_class: PeerClass) -> tuple[int, ...]:
        """In order, each once: several peers of a rule may match."""
        matched = [self._by_peers[peers] for peers in peer_class.peers if peers in self._by_peers]
        return tuple(sorted({*self._for_everyone, *chain.from_iterable(matched)}))

    def _add_denials(self, one: TierRule) -> None:
        """While it is not known whether a rule that denies or passes matches some peers, it denies them."""
        rule, place = one.rule, len(self._rules)
        pods = dict.fromkeys(peers for peers in rule.peers or () if isinstance(peers, PodPeers))
        self._rules.append(denial_of(one, "the namespace of the other Pod is not known yet", rule.ports))
        for peers in pods:
            self._by_peers[possible_number_of(number_of(peers))].append(place)
        has_names = bool(self.names and rule.named_ports)
        self._rules.append(denial_of(one, "the other Pod is not known yet", ALL_PORTS if has_names else rule.ports))
        unlisted = [UnlistedPods(peers) for peers in pods]
        if has_names and rule.peers is None:
            unlisted.append(UnlistedPods(PodPeers()))
        elif has_names:
            blocks = (number_of(peers) for peers in rule.peers or () if isinstance(peers, BlockPeers))
            unlisted += [UnlistedPods(PodPeers(), block) for block in blocks]
        for possible in unlisted:
            self.peers[number_of(possible)] = possible
            self._by_peers[number_of(possible)].append(place + 1)


def denial_of(one: TierRule, reason: str, ports: PortSet) -> TierRule:
    rule = one.rule
    denial = PolicyRule(f"{rule.name} ({reason})", RuleAction.DENY, rule.peers, ports, rule.named_ports)
    return TierRule(one.tier, denial)
