"""Resolves all policies that select a Pod, for one class of peers, to one exact set of ports. Pure.

The tiers are resolved here, so the switch needs neither an order of rules nor priorities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from windlass.model.policies import Direction, digest_of
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, PortSet, difference, intersection, ports, union
from windlass.model.services import Protocol
from windlass.policy.rules import OwnNode, PolicyRule, ReadPolicy, RuleAction, Tier

NumberedPort = tuple[str, Protocol, int]  # a named port of a container


class TierRule(Struct, frozen=True, gc=False):
    tier: Tier
    rule: PolicyRule


class Subject(Struct, frozen=True, gc=False):
    """The rules that apply to a Pod in one direction, in order. Pods with the same rules share it."""

    number: int  # a digest of the other fields
    rules: tuple[TierRule, ...]
    isolated: bool  # a NetworkPolicy selects the Pod: traffic that no NetworkPolicy allows is denied
    has_tiers: bool  # a ClusterNetworkPolicy selects the Pod: nothing else can deny a Pod access to itself
    port_names: frozenset[str]  # that the rules have
    named_ports: tuple[NumberedPort, ...]  # ingress only: the Pod's ports with these names


def subject_of(
    policies: Iterable[tuple[int, ReadPolicy]], direction: Direction, pod_ports: Sequence[NumberedPort]
) -> Subject | None:
    """`policies`: those that select the Pod, with their digests. None if none of them affects this direction."""
    concerned = sorted(
        ((number, policy) for number, policy in policies if policy.rules(direction) is not None),
        key=lambda one: one[1].order,
    )
    if not concerned:
        return None
    tiers = {policy.tier for _, policy in concerned}
    isolated = Tier.NETWORK_POLICY in tiers
    rules = [TierRule(p.tier, rule) for _, p in concerned for rule in p.rules(direction) or ()]
    if isolated and direction is Direction.EGRESS:
        own_node = PolicyRule(
            "a NetworkPolicy cannot deny a Pod access to its own Node", RuleAction.ACCEPT, (OwnNode(),)
        )
        rules.append(TierRule(Tier.NETWORK_POLICY, own_node))
    names = frozenset([named.name for one in rules for named in one.rule.named_ports])
    known = tuple(sorted(port for port in pod_ports if port[0] in names)) if direction is Direction.INGRESS else ()
    number = digest_of((direction.value, [number for number, _ in concerned], known))
    return Subject(number, tuple(rules), isolated, tiers != {Tier.NETWORK_POLICY}, names, known)


class RuleOutcome(Struct, frozen=True, gc=False):
    """The ports that one rule decides about for a class of peers."""

    rule: PolicyRule | None  # None: the default
    allows: bool
    ports: PortSet


def outcomes(
    subject: Subject, matching: Sequence[TierRule], peer_ports: Sequence[NumberedPort]
) -> Iterator[RuleOutcome]:
    """Which rule decides about which ports; together the outcomes cover all ports.

    `matching`: the subject's rules that match the peers. `peer_ports`: for egress, the named ports of the peers; for
    ingress the subject has its own.
    """
    left = ALL_PORTS
    for tier in Tier:
        rules = [one.rule for one in matching if one.tier is tier]
        if tier is Tier.NETWORK_POLICY and subject.isolated:
            for rule in rules:
                yield RuleOutcome(rule, allows=True, ports=intersection(left, _rule_ports(subject, rule, peer_ports)))
            allowed = union(_rule_ports(subject, rule, peer_ports) for rule in rules)
            yield RuleOutcome(None, allows=False, ports=difference(left, allowed))
            return
        passed: PortSet = NO_PORTS
        for rule in rules:
            hit = intersection(left, _rule_ports(subject, rule, peer_ports))
            left = difference(left, hit)
            if rule.action is RuleAction.PASS:
                passed = union((passed, hit))
            else:
                yield RuleOutcome(rule, allows=rule.action is RuleAction.ACCEPT, ports=hit)
        left = union((left, passed))
    yield RuleOutcome(None, allows=True, ports=left)


def without_overlap(decided: Iterable[RuleOutcome]) -> Iterator[RuleOutcome]:
    """Traffic that several NetworkPolicy rules allow belongs to the first. Outcomes without traffic are omitted."""
    left = ALL_PORTS
    for one in decided:
        if own := intersection(left, one.ports):
            left = difference(left, own)
            yield RuleOutcome(one.rule, one.allows, own)


def allowed_ports(subject: Subject, matching: Sequence[TierRule], peer_ports: Sequence[NumberedPort]) -> PortSet:
    if subject.isolated and all(one.tier is Tier.NETWORK_POLICY for one in matching):  # most: no order to resolve
        return union(_rule_ports(subject, one.rule, peer_ports) for one in matching)
    return union(one.ports for one in outcomes(subject, matching, peer_ports) if one.allows)


def allowed_to_itself(subject: Subject, matching: Sequence[TierRule], peer_ports: Sequence[NumberedPort]) -> PortSet:
    """For a Pod that reaches itself through a Service: a NetworkPolicy cannot deny that, a ClusterNetworkPolicy can."""
    itself = TierRule(Tier.NETWORK_POLICY, PolicyRule("a Pod may reach itself", RuleAction.ACCEPT))
    return allowed_ports(subject, (*matching, itself) if subject.isolated else matching, peer_ports)


def _rule_ports(subject: Subject, rule: PolicyRule, peer_ports: Sequence[NumberedPort]) -> PortSet:
    if not rule.named_ports:
        return rule.ports
    named = (
        ports(protocol, port, port)
        for wanted in rule.named_ports
        for name, protocol, port in (*subject.named_ports, *peer_ports)
        if name == wanted.name and wanted.protocol in {None, protocol}
    )
    return union((rule.ports, *named))
