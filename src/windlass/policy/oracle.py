"""Decides about one packet as Kubernetes specifies it: allowed or denied, and by which rules. Simple and slow.

It reads the API's objects and shares no code with the compiler: tests compare both, and compare real packets with this.
The agent does not use it. Where the API leaves a choice, docs/policy.md states what Windlass does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from windlass.cluster.policy_objects import (
    ClusterNetworkPolicy,
    ClusterNetworkPolicyPeer,
    ClusterNetworkPolicyProtocol,
    ClusterNetworkPolicyRule,
    DestinationPort,
    EgressRule,
    IngressRule,
    IPBlock,
    Labels,
    LabelSelector,
    NamespacedPods,
    NetworkPolicy,
    NetworkPolicyPeer,
    NetworkPolicyPort,
    Requirement,
)
from windlass.model.families import IPAddress
from windlass.policy.worlds import PolicyPod, PolicyWorld


@dataclass(frozen=True, slots=True)
class PolicyPacket:
    """The first packet of a connection, with the addresses of the client and of the endpoint."""

    source: IPAddress
    destination: IPAddress
    protocol: str  # TCP, UDP, SCTP, or a protocol without ports such as ICMP
    port: int | None = None  # of the destination


@dataclass(frozen=True, slots=True)
class Judgement:
    """The decision in one direction."""

    allowed: bool
    rules: tuple[str, ...]  # that decided, or the reason why no rule did


@dataclass(frozen=True, slots=True)
class PacketJudgement:
    egress: Judgement
    ingress: Judgement

    @property
    def allowed(self) -> bool:
        return self.egress.allowed and self.ingress.allowed


def judge(world: PolicyWorld, packet: PolicyPacket) -> PacketJudgement:
    return PacketJudgement(egress=judge_egress(world, packet), ingress=judge_ingress(world, packet))


def judge_egress(world: PolicyWorld, packet: PolicyPacket) -> Judgement:
    subject = pod_at(world, packet.source)
    if subject is None:
        return Judgement(allowed=True, rules=("the source is not a Pod",))
    to_own_node = any(packet.destination in node.addresses for node in world.nodes if node.name == subject.node)
    return _judge(world, packet, subject, packet.destination, "Egress", to_own_node=to_own_node)


def judge_ingress(world: PolicyWorld, packet: PolicyPacket) -> Judgement:
    subject = pod_at(world, packet.destination)
    if subject is None:
        return Judgement(allowed=True, rules=("the destination is not a Pod",))
    if any(packet.source in node.addresses for node in world.nodes if node.name == subject.node):
        return Judgement(allowed=True, rules=("a Pod always accepts its own Node",))
    return _judge(world, packet, subject, packet.source, "Ingress", to_own_node=False)


def _judge(
    world: PolicyWorld, packet: PolicyPacket, subject: PolicyPod, peer: IPAddress, direction: str, *, to_own_node: bool
) -> Judgement:
    """Admin tier, then NetworkPolicies, then the Baseline tier, then the default: allow."""
    if (decision := _tier(world, packet, subject, peer, direction, "Admin")) is not None:
        return decision
    selecting = [p for p in world.network_policies if _selects(p, subject) and direction in _policy_types(p)]
    if selecting:
        if peer in subject.addresses:
            return Judgement(allowed=True, rules=("a NetworkPolicy cannot deny a Pod access to itself",))
        if to_own_node:
            return Judgement(allowed=True, rules=("a NetworkPolicy cannot deny a Pod access to its own Node",))
        allowing = tuple(
            f"NetworkPolicy {policy.key} {direction.lower()}[{index}]"
            for policy in selecting
            if _is_readable_selector(policy.spec.pod_selector or LabelSelector())
            for index, rule in enumerate(_allow_rules(policy, direction))
            if (not rule.peers or any(_is_network_policy_peer(world, policy, one, peer) for one in rule.peers))
            and (not rule.ports or any(_is_network_policy_port(world, packet, port) for port in rule.ports))
        )
        if allowing:
            return Judgement(allowed=True, rules=allowing)
        return Judgement(allowed=False, rules=tuple(f"NetworkPolicy {policy.key}" for policy in selecting))
    if (decision := _tier(world, packet, subject, peer, direction, "Baseline")) is not None:
        return decision
    return Judgement(allowed=True, rules=("no policy decides",))


# --- NetworkPolicy ----------------------------------------------------------------------------------------------------


def _selects(policy: NetworkPolicy, pod: PolicyPod) -> bool:
    selector = policy.spec.pod_selector or LabelSelector()
    return _namespace_of(policy) == pod.namespace and _matches(selector, pod.labels, unknown=True)


def _policy_types(policy: NetworkPolicy) -> tuple[str, ...]:
    """A type that this version does not know fails closed: the policy affects both directions."""
    if policy.spec.policy_types:
        known = {"Ingress", "Egress"}.issuperset(policy.spec.policy_types)
        return policy.spec.policy_types if known else ("Ingress", "Egress")
    return ("Ingress", "Egress") if policy.spec.egress else ("Ingress",)


def _allow_rules(policy: NetworkPolicy, direction: str) -> Sequence[IngressRule | EgressRule]:
    return (policy.spec.ingress if direction == "Ingress" else policy.spec.egress) or ()


def _is_network_policy_peer(
    world: PolicyWorld, policy: NetworkPolicy, peer: NetworkPolicyPeer, address: IPAddress
) -> bool:
    if peer.ip_block is not None:
        if peer.pod_selector is not None or peer.namespace_selector is not None:
            return False  # the API allows an ipBlock only alone: such a peer allows nothing
        return _in_block(peer.ip_block, address)
    if peer.pod_selector is None and peer.namespace_selector is None:
        return False
    pod = pod_at(world, address)
    if pod is None:
        return False
    if peer.namespace_selector is None:
        in_namespace = pod.namespace == _namespace_of(policy)
    else:
        in_namespace = _matches(peer.namespace_selector, _namespace_labels(world, pod), unknown=False)
    return in_namespace and _matches(peer.pod_selector or LabelSelector(), pod.labels, unknown=False)


def _in_block(block: IPBlock, address: IPAddress) -> bool:
    if not all(map(_is_cidr, (block.cidr, *(block.except_ or ())))):
        return False
    cidr, *excepted = (ip_network(text, strict=False) for text in (block.cidr, *(block.except_ or ())))
    return address in cidr and not any(address in one for one in excepted)


def _is_network_policy_port(world: PolicyWorld, packet: PolicyPacket, port: NetworkPolicyPort) -> bool:
    protocol = port.protocol or "TCP"
    if packet.protocol != protocol or packet.port is None:
        return False
    match port.port:
        case None:
            return port.end_port is None
        case int(first):
            return first <= packet.port <= (first if port.end_port is None else port.end_port)
        case str(name):
            return port.end_port is None and (name, protocol, packet.port) in _named_ports(world, packet)


# --- ClusterNetworkPolicy ---------------------------------------------------------------------------------------------


def _tier(
    world: PolicyWorld, packet: PolicyPacket, subject: PolicyPod, peer: IPAddress, direction: str, tier: str
) -> Judgement | None:
    """The decision of a tier; None if it leaves the packet to the next one."""
    policies = [policy for policy in world.cluster_network_policies if _tier_of(policy) == tier]
    for policy in sorted(policies, key=lambda one: (_has_priority(one), one.spec.priority, one.key)):
        if not _is_cluster_subject(world, policy, subject):
            continue
        ingress, egress = policy.spec.ingress or (), policy.spec.egress or ()
        rules: Sequence[ClusterNetworkPolicyRule] = ingress if direction == "Ingress" else egress
        for index, rule in enumerate(rules):
            has_place = policy.spec.tier == tier and _has_priority(policy)
            action = _action(world, packet, rule, peer, direction) if has_place else "Deny"
            if not _is_readable_subject(policy):
                action = "Deny" if action in {"Pass", "Deny"} else None
            named = f" ({rule.name})" if rule.name else ""
            rule_name = f"ClusterNetworkPolicy {policy.key} {direction.lower()}[{index}]{named}"
            if action == "Pass":
                return None
            if action is not None:
                return Judgement(allowed=action == "Accept", rules=(rule_name,))
    return None


def _has_priority(policy: ClusterNetworkPolicy) -> bool:
    return 0 <= policy.spec.priority <= 1000  # another one fails closed, as an unknown tier does


def _tier_of(policy: ClusterNetworkPolicy) -> str:
    """A tier that this version does not know fails closed: its rules deny everything, before all others."""
    return policy.spec.tier if policy.spec.tier in {"Admin", "Baseline"} else "Admin"


def _action(
    world: PolicyWorld, packet: PolicyPacket, rule: ClusterNetworkPolicyRule, peer: IPAddress, direction: str
) -> str | None:
    """What the rule does with the packet; None if it does not match.

    A rule that this version cannot read fails closed, as the API requires: an Accept rule matches nothing, any other
    rule denies everything.
    """
    if rule.action not in {"Accept", "Deny", "Pass"}:
        return "Deny"
    readable = (
        bool(rule.peers)
        and all(_is_readable_peer(one, direction) for one in rule.peers)
        and all(_is_readable_protocol(one) for one in rule.protocols or ())
    )
    if not readable:
        return None if rule.action == "Accept" else "Deny"
    matches = any(_is_cluster_peer(world, one, peer) for one in rule.peers) and (
        not rule.protocols or any(_is_cluster_protocol(world, packet, one) for one in rule.protocols)
    )
    return rule.action if matches else None


def _is_cluster_subject(world: PolicyWorld, policy: ClusterNetworkPolicy, pod: PolicyPod) -> bool:
    """A subject that cannot be read selects more Pods: the policy then applies to too many Pods, not to too few."""
    subject = policy.spec.subject
    if (subject.namespaces is None) == (subject.pods is None):
        return True
    if subject.namespaces is not None:
        return _matches(subject.namespaces, _namespace_labels(world, pod), unknown=True)
    assert subject.pods is not None  # noqa: S101 - exactly one of the two is set
    return _is_namespaced_pod(world, subject.pods, pod, unknown=True)


def _is_readable_subject(policy: ClusterNetworkPolicy) -> bool:
    """Otherwise the policy may apply to too many Pods, so it only denies."""
    subject = policy.spec.subject
    if (subject.namespaces is None) == (subject.pods is None):
        return False
    pods = subject.pods or NamespacedPods()
    if subject.pods is not None and pods.pod_selector is None:
        return False
    selectors = (subject.namespaces, pods.namespace_selector, pods.pod_selector)
    return all(_is_readable_selector(one) for one in selectors if one is not None)


def _is_cluster_peer(world: PolicyWorld, peer: ClusterNetworkPolicyPeer, address: IPAddress) -> bool:
    pod = pod_at(world, address)
    if peer.namespaces is not None:
        return pod is not None and _matches(peer.namespaces, _namespace_labels(world, pod), unknown=False)
    if peer.pods is not None:
        return pod is not None and _is_namespaced_pod(world, peer.pods, pod, unknown=False)
    if peer.nodes is not None:
        nodes = [node for node in world.nodes if _matches(peer.nodes, node.labels, unknown=False)]
        return any(address in node.addresses for node in nodes)
    return any(address in ip_network(network, strict=False) for network in peer.networks or ())


def _is_namespaced_pod(world: PolicyWorld, selected: NamespacedPods, pod: PolicyPod, *, unknown: bool) -> bool:
    namespaces, pods = selected.namespace_selector or LabelSelector(), selected.pod_selector or LabelSelector()
    return _matches(namespaces, _namespace_labels(world, pod), unknown=unknown) and _matches(
        pods, pod.labels, unknown=unknown
    )


def _is_cluster_protocol(world: PolicyWorld, packet: PolicyPacket, protocol: ClusterNetworkPolicyProtocol) -> bool:
    if packet.port is None:
        return False
    if protocol.destination_named_port:
        return (protocol.destination_named_port, packet.protocol, packet.port) in _named_ports(world, packet)
    for name, attributes in (("TCP", protocol.tcp), ("UDP", protocol.udp), ("SCTP", protocol.sctp)):
        if attributes is not None and packet.protocol == name:
            port = attributes.destination_port
            return port is not None and packet.port in _span(port)
    return False


def _span(port: DestinationPort) -> range:
    if port.range is not None:
        return range(port.range.start, port.range.end + 1)
    return range(port.number or 0, (port.number or 0) + 1)


def _is_readable_peer(peer: ClusterNetworkPolicyPeer, direction: str) -> bool:
    everywhere, egress_only = (peer.namespaces, peer.pods), (peer.nodes, peer.networks)
    kinds = (*everywhere, *egress_only) if direction == "Egress" else everywhere
    is_set = [kind is not None for kind in (*everywhere, *egress_only, peer.domain_names)]
    if sum(is_set) != 1 or all(kind is None for kind in kinds) or peer.networks == ():
        return False
    selectors = [peer.namespaces, peer.nodes]
    if peer.pods is not None:
        if peer.pods.pod_selector is None:  # the API requires it, but not the other one
            return False
        selectors += [peer.pods.namespace_selector, peer.pods.pod_selector]
    return all(_is_readable_selector(one) for one in selectors if one) and all(map(_is_cidr, peer.networks or ()))


def _is_readable_protocol(protocol: ClusterNetworkPolicyProtocol) -> bool:
    """The API allows no empty objects: a later version of it has fields there that this one does not know."""
    transports = [one for one in (protocol.tcp, protocol.udp, protocol.sctp) if one is not None]
    if len(transports) + bool(protocol.destination_named_port) != 1:
        return False
    ports = [one.destination_port for one in transports]
    return all(port is not None and _is_readable_port(port) for port in ports)


def _is_readable_port(port: DestinationPort) -> bool:
    span = _span(port)
    return (port.number is None) != (port.range is None) and bool(span) and span[0] >= 1 and span[-1] <= 0xFFFF


# --- what both share --------------------------------------------------------------------------------------------------


def pod_at(world: PolicyWorld, address: IPAddress) -> PolicyPod | None:
    return next((pod for pod in world.pods if address in pod.addresses), None)


def _namespace_of(policy: NetworkPolicy) -> str:
    return policy.metadata.namespace or "default"


def _namespace_labels(world: PolicyWorld, pod: PolicyPod) -> Labels:
    return world.namespaces.get(pod.namespace, {"kubernetes.io/metadata.name": pod.namespace})


def _named_ports(world: PolicyWorld, packet: PolicyPacket) -> Iterator[tuple[str, str, int]]:
    pod = pod_at(world, packet.destination)
    return iter(pod.named_ports if pod else ())


def _matches(selector: LabelSelector, labels: Labels, *, unknown: bool) -> bool:
    """`unknown`: the result of a requirement that this version cannot read."""
    equal = all(labels.get(key) == value for key, value in (selector.match_labels or {}).items())
    return equal and all(_meets(one, labels, unknown=unknown) for one in selector.match_expressions or ())


def _meets(requirement: Requirement, labels: Labels, *, unknown: bool) -> bool:
    if not _is_readable_requirement(requirement):
        return unknown
    value, values = labels.get(requirement.key), requirement.values or ()
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


def _is_readable_selector(selector: LabelSelector) -> bool:
    return all(_is_readable_requirement(one) for one in selector.match_expressions or ())


def _is_readable_requirement(requirement: Requirement) -> bool:
    operators = {"In", "NotIn"} if requirement.values else {"Exists", "DoesNotExist"}
    return requirement.operator in operators


def _is_cidr(text: str) -> bool:
    """As Kubernetes defines it: an address without a zone, and a number of bits. No IPv4 address in IPv6 notation."""
    if not re.fullmatch(r"[0-9a-fA-F.:]+/[0-9]+", text):
        return False
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return False
    return network.version == 4 or network.network_address not in ip_network("::ffff:0:0/96")
