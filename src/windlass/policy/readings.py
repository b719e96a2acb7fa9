"""Converts the API's policy objects to the rules of the compiler. Pure.

What this version cannot read fails closed, and the rest is used. A rule of a NetworkPolicy omits the peer or port that
cannot be read, and so matches less. In a ClusterNetworkPolicy, as its API says, a rule that accepts then matches
nothing, and a rule that denies or passes becomes one that denies everything. A selector of subjects omits the
requirement that cannot be read, so the policy applies to too many Pods and not to too few. Such a policy only denies,
because these Pods must not be open to what it accepts for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv6Network, ip_network

from msgspec.structs import replace

from windlass.cluster.policy_objects import (
    ClusterNetworkPolicy,
    ClusterNetworkPolicyPeer,
    ClusterNetworkPolicyProtocol,
    ClusterNetworkPolicyRule,
    DestinationPort,
    EgressRule,
    IngressRule,
    IPBlock,
    LabelSelector,
    NetworkPolicy,
    NetworkPolicyPeer,
    NetworkPolicyPort,
)
from windlass.model.policies import Direction
from windlass.model.port_sets import ALL_PORTS, PortSet, ports, union
from windlass.model.services import Protocol
from windlass.policy.rules import (
    BlockPeers,
    NamedPort,
    NodePeers,
    PodPeers,
    PolicyRule,
    ReadPolicy,
    RuleAction,
    RulePeers,
    Tier,
)
from windlass.policy.selectors import EVERYTHING, Selector, read_selector, selector_of_labels

_LAST_PORT = 0xFFFF
_PROTOCOLS = {protocol.name: protocol for protocol in Protocol}
_PRIORITIES, _BEFORE_ALL = range(1001), -1
_TIERS = {"Admin": Tier.ADMIN, "Baseline": Tier.BASELINE}
_DIRECTIONS = {"Ingress": Direction.INGRESS, "Egress": Direction.EGRESS}


class _Unreadable(Exception):
    """The message says which field is wrong, and why."""


class _PolicyReader:
    """Reads one policy, and collects a sentence for each part that it cannot use."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.selects_more = False  # a part of the subject cannot be read

    # --- NetworkPolicy ------------------------------------------------------------------------------------------------

    def network_policy(self, policy: NetworkPolicy) -> ReadPolicy:
        spec, namespace = policy.spec, policy.metadata.namespace or "default"
        name = f"NetworkPolicy {policy.key}"
        directions = self._directions(policy)
        return ReadPolicy(
            name=name,
            tier=Tier.NETWORK_POLICY,
            priority=0,
            subject=PodPeers(namespace=namespace, pods=self._subject_selector("podSelector", spec.pod_selector)),
            ingress=self._allow_rules(name, namespace, Direction.INGRESS, spec.ingress or (), directions),
            egress=self._allow_rules(name, namespace, Direction.EGRESS, spec.egress or (), directions),
        )

    def _directions(self, policy: NetworkPolicy) -> set[Direction]:
        directions: set[Direction] = set()
        for word in policy.spec.policy_types or (("Ingress", "Egress") if policy.spec.egress else ("Ingress",)):
            if word in _DIRECTIONS:
                directions.add(_DIRECTIONS[word])
            else:
                self.problems.append(f"policyTypes: {word} is neither Ingress nor Egress; the policy affects both")
                directions.update(Direction)
        return directions

    def _allow_rules(
        self,
        policy: str,
        namespace: str,
        direction: Direction,
        rules: Iterable[IngressRule | EgressRule],
        directions: set[Direction],
    ) -> tuple[PolicyRule, ...] | None:
        if direction not in directions:
            return None
        word = direction.value
        return tuple(
            [self._allow_rule(policy, namespace, f"{word}[{index}]", rule) for index, rule in enumerate(rules)]
        )

    def _allow_rule(self, policy: str, namespace: str, where: str, rule: IngressRule | EgressRule) -> PolicyRule:
        peers: list[RulePeers] = []
        listed = rule.peers
        for index, peer in enumerate(listed):
            try:
                peers.append(_network_policy_peers(namespace, peer))
            except _Unreadable as error:
                self.problems.append(f"{where}, peer {index}: {error}; this peer is allowed nothing")
        ports, named, unreadable = _network_policy_ports(rule.ports or ())
        for index, reason in unreadable:
            self.problems.append(f"{where}, port {index}: {reason}; this port is not allowed")
        return PolicyRule(
            name=f"{policy} {where}",
            action=RuleAction.ACCEPT,
            peers=tuple(peers) if listed else None,
            ports=ports,
            named_ports=named,
        )

    # --- ClusterNetworkPolicy -----------------------------------------------------------------------------------------

    def cluster_network_policy(self, policy: ClusterNetworkPolicy) -> ReadPolicy:
        name = f"ClusterNetworkPolicy {policy.key}"
        tier = _TIERS.get(policy.spec.tier)
        if tier is None:
            self.problems.append(f"tier: {policy.spec.tier} is neither Admin nor Baseline; its rules deny everything")
        has_priority = policy.spec.priority in _PRIORITIES
        if not has_priority:
            self.problems.append(f"priority: {policy.spec.priority} is outside 0-1000; its rules deny everything")
        has_place = tier is not None and has_priority
        return ReadPolicy(
            name=name,
            tier=Tier.ADMIN if tier is None else tier,
            priority=policy.spec.priority if has_priority else _BEFORE_ALL,
            subject=self._cluster_subject(policy),
            ingress=self._tier_rules(name, Direction.INGRESS, policy.spec.ingress, has_place=has_place),
            egress=self._tier_rules(name, Direction.EGRESS, policy.spec.egress, has_place=has_place),
        )

    def _cluster_subject(self, policy: ClusterNetworkPolicy) -> PodPeers:
        subject = policy.spec.subject
        if (subject.namespaces is None) == (subject.pods is None):
            self.selects_more = True
            self.problems.append(
                "subject: exactly one of namespaces and pods is expected; the policy selects all Pods, and only denies"
            )
            return PodPeers()
        if subject.pods is None:
            return PodPeers(namespaces=self._subject_selector("subject.namespaces", subject.namespaces))
        if subject.pods.pod_selector is None:
            self.selects_more = True
            self.problems.append("subject.pods.podSelector is missing; the policy selects more Pods, and only denies")
        return PodPeers(
            namespaces=self._subject_selector("subject.pods.namespaceSelector", subject.pods.namespace_selector),
            pods=self._subject_selector("subject.pods.podSelector", subject.pods.pod_selector),
        )

    def _tier_rules(
        self,
        policy: str,
        direction: Direction,
        rules: Iterable[ClusterNetworkPolicyRule] | None,
        *,
        has_place: bool,
    ) -> tuple[PolicyRule, ...] | None:
        if not rules:
            return None
        if not has_place:
            return (PolicyRule(f"{policy} {direction.value}", RuleAction.DENY),)
        return tuple(self._tier_rule(policy, direction, index, rule) for index, rule in enumerate(rules))

    def _tier_rule(self, policy: str, direction: Direction, index: int, rule: ClusterNetworkPolicyRule) -> PolicyRule:
        where = f"{direction.value}[{index}]"
        name = f"{policy} {where}" + (f" ({rule.name})" if rule.name else "")
        peers: list[RulePeers] = []
        numbered: list[PortSet] = []
        named: list[NamedPort] = []
        unreadable = [*_unreadable_parts(rule)]
        for number, peer in enumerate(rule.peers):
            try:
                peers += _cluster_peers(peer, direction)
            except _Unreadable as error:
                unreadable.append(f"peer {number}: {error}")
        for number, protocol in enumerate(rule.protocols or ()):
            try:
                read = _cluster_protocol(protocol)
            except _Unreadable as error:
                unreadable.append(f"protocol {number}: {error}")
            else:
                (named if isinstance(read, NamedPort) else numbered).append(read)  # type: ignore[arg-type]
        accepts = rule.action == RuleAction.ACCEPT.value
        now = "the rule accepts nothing" if accepts else "the rule denies everything instead"
        self.problems += [f"{where}, {sentence}; {now}" for sentence in unreadable]
        if unreadable:
            return PolicyRule(name, RuleAction.ACCEPT, peers=()) if accepts else PolicyRule(name, RuleAction.DENY)
        return PolicyRule(
            name, RuleAction(rule.action), tuple(peers), union(numbered) if rule.protocols else ALL_PORTS, tuple(named)
        )

    # --- both kinds ---------------------------------------------------------------------------------------------------

    def _subject_selector(self, where: str, selector: LabelSelector | None) -> Selector:
        read, unreadable = read_selector(selector)
        for reason in unreadable:
            self.selects_more = True
            self.problems.append(
                f"{where}: {reason}; the requirement is ignored: the policy may select more Pods, and only denies"
            )
        return read


def read_network_policy(policy: NetworkPolicy) -> tuple[ReadPolicy, list[str]]:
    """The policy in the form of the compiler, and a sentence for each part that cannot be used."""
    reader = _PolicyReader()
    read = reader.network_policy(policy)
    return _only_denying(read) if reader.selects_more else read, reader.problems


def read_cluster_network_policy(policy: ClusterNetworkPolicy) -> tuple[ReadPolicy, list[str]]:
    reader = _PolicyReader()
    read = reader.cluster_network_policy(policy)
    return _only_denying(read) if reader.selects_more else read, reader.problems


def _only_denying(policy: ReadPolicy) -> ReadPolicy:
    """Rules that accept match nothing. Rules that pass deny: without them, a later rule might accept the traffic."""

    def closed(rule: PolicyRule) -> PolicyRule:
        return replace(rule, peers=()) if rule.action is RuleAction.ACCEPT else replace(rule, action=RuleAction.DENY)

    ingress, egress = (
        None if rules is None else tuple(map(closed, rules)) for rules in (policy.ingress, policy.egress)
    )
    return replace(policy, ingress=ingress, egress=egress)


def _network_policy_peers(namespace: str, peer: NetworkPolicyPeer) -> RulePeers:
    if peer.ip_block is not None:
        if peer.pod_selector is not None or peer.namespace_selector is not None:
            raise _Unreadable("it has both an ipBlock and a selector")
        return _block(peer.ip_block)
    if peer.pod_selector is None and peer.namespace_selector is None:
        raise _Unreadable("it has neither a selector nor an ipBlock")
    pods = _peer_selector("podSelector", peer.pod_selector)
    if peer.namespace_selector is None:
        return _pod_peers(namespace, EVERYTHING, pods)
    return _pod_peers(None, _peer_selector("namespaceSelector", peer.namespace_selector), pods)


_pod_peers = lru_cache(4096)(PodPeers)  # rules with the same peers share one object, which caches its hash


@lru_cache(4096)  # many rules have the same ports
def _network_policy_ports(
    listed: tuple[NetworkPolicyPort, ...],
) -> tuple[PortSet, tuple[NamedPort, ...], tuple[tuple[int, str], ...]]:
    """The ports with numbers, those with names, and which cannot be read for what reason. No ports stand for all."""
    numbered: list[PortSet] = []
    named: list[NamedPort] = []
    unreadable: list[tuple[int, str]] = []
    for index, port in enumerate(listed):
        try:
            read = _network_policy_port(port)
        except _Unreadable as error:
            unreadable.append((index, str(error)))
        else:
            (named if isinstance(read, NamedPort) else numbered).append(read)  # type: ignore[arg-type]
    return union(numbered) if listed else ALL_PORTS, tuple(named), tuple(unreadable)


def _network_policy_port(port: NetworkPolicyPort) -> PortSet | NamedPort:
    name = port.protocol or "TCP"
    protocol = _PROTOCOLS.get(name)
    if protocol is None:
        raise _Unreadable(f"protocol: {name} is none of {', '.join(_PROTOCOLS)}")
    match port.port:
        case None if port.end_port is not None:
            raise _Unreadable("endPort without port")
        case None:
            return ports(protocol)
        case str(named) if port.end_port is not None:
            raise _Unreadable(f"endPort with the named port {named}")
        case str(named) if not any(map(str.isalpha, named)):
            raise _Unreadable(f'port: "{named}" is text, but no name of a port; a number has no quotes')
        case str(named):
            return NamedPort(named, protocol)
        case int(first):
            return _port_range(protocol, first, first if port.end_port is None else port.end_port)


def _cluster_peers(peer: ClusterNetworkPolicyPeer, direction: Direction) -> list[RulePeers]:
    kinds = {
        "namespaces": peer.namespaces,
        "pods": peer.pods,
        "nodes": peer.nodes,
        "networks": peer.networks,
        "domainNames": peer.domain_names,
    }
    names = [name for name, value in kinds.items() if value is not None]
    if len(names) != 1:
        raise _Unreadable(
            f"exactly one of {', '.join(kinds)} is expected{', not ' if names else ''}{' and '.join(names)}"
        )
    if names == ["domainNames"]:
        raise _Unreadable("domainNames are not supported")
    if direction is Direction.INGRESS and names[0] in {"nodes", "networks"}:
        raise _Unreadable(f"{names[0]} are peers of egress rules only")
    if peer.networks == ():
        raise _Unreadable("networks: at least one is expected")
    if peer.namespaces is not None:
        return [PodPeers(namespaces=_peer_selector("namespaces", peer.namespaces))]
    if peer.pods is not None:
        if peer.pods.pod_selector is None:
            raise _Unreadable("pods.podSelector is missing")
        namespaces = _peer_selector("pods.namespaceSelector", peer.pods.namespace_selector)
        return [PodPeers(namespaces=namespaces, pods=_peer_selector("pods.podSelector", peer.pods.pod_selector))]
    if peer.nodes is not None:
        return [NodePeers(_peer_selector("nodes", peer.nodes))]
    return [BlockPeers(_network(text)) for text in peer.networks or ()]


def _cluster_protocol(protocol: ClusterNetworkPolicyProtocol) -> PortSet | NamedPort:
    transports = {
        Protocol.TCP: protocol.tcp,
        Protocol.UDP: protocol.udp,
        Protocol.SCTP: protocol.sctp,
    }
    given = [(transport, attributes) for transport, attributes in transports.items() if attributes is not None]
    if len(given) + bool(protocol.destination_named_port) != 1:
        raise _Unreadable("exactly one of tcp, udp, sctp and destinationNamedPort is expected")
    if protocol.destination_named_port:
        return NamedPort(protocol.destination_named_port)
    transport, attributes = given[0]
    if attributes.destination_port is None:  # the only field that is known, and the API requires one
        raise _Unreadable(f"{transport.name.lower()}: destinationPort is expected")
    return _destination_ports(transport, attributes.destination_port)


def _destination_ports(protocol: Protocol, port: DestinationPort) -> PortSet:
    if (port.number is None) == (port.range is None):
        raise _Unreadable("destinationPort: exactly one of number and range is expected")
    if port.range is not None:
        return _port_range(protocol, port.range.start, port.range.end)
    return _port_range(protocol, port.number or 0, port.number or 0)


def _port_range(protocol: Protocol, first: int, last: int) -> PortSet:
    if not 1 <= first <= last <= _LAST_PORT:
        raise _Unreadable(f"{first} to {last} is not a range of ports" if last != first else f"{first} is not a port")
    return ports(protocol, first, last)


def _block(block: IPBlock) -> BlockPeers:
    return BlockPeers(_network(block.cidr), tuple(sorted({_network(text) for text in block.except_ or ()})))


def _network(text: str) -> str:
    """`ip_network` also reads addresses alone, masks, zones and IPv4 networks in IPv6 notation, which no packet has."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise _Unreadable(f"{text} is not a CIDR") from None
    is_mapped = isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None
    if is_mapped or "%" in text or not text.rpartition("/")[2].isdecimal():
        raise _Unreadable(f"{text} is not a CIDR")
    return str(network)


def _peer_selector(where: str, selector: LabelSelector | None) -> Selector:
    if selector is None or not selector.match_expressions:  # most: there are ten thousand of them in a large cluster
        return selector_of_labels(selector.match_labels) if selector else EVERYTHING
    read, unreadable = read_selector(selector)
    if unreadable:
        raise _Unreadable(f"{where}: {unreadable[0]}")
    return read


def _unreadable_parts(rule: ClusterNetworkPolicyRule) -> Iterator[str]:
    if rule.action not in {action.value for action in RuleAction}:
        yield f"action: {rule.action or 'nothing'} is none of Accept, Deny and Pass"
    if not rule.peers:
        yield "no peers"
