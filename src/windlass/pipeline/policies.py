"""Policies: what local Pods may send and receive. The switch looks up what `windlass.policy` has resolved.

A packet of a Pod with policies needs four lookups in each direction: the Pod's subject, the class of its peer, the
ports that the policies of this subject allow for this class, and its own port among them. Every packet from the client
of a connection is judged, whatever the state of the connection; replies and related ICMP errors are not.

These tables are between L3Forwarding and ConntrackCommit: there a packet has the addresses of the endpoint and of the
real client, and a denied connection is not committed. A Service connection is committed before, when its endpoint is
chosen, and a new policy may deny an open connection: then the connection is marked, and its replies are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from windlass.model.families import Family
from windlass.model.nodes import AttachedPod, LocalNode
from windlass.model.policies import NO_CLASS, Direction, PeerEntry, PodPolicies, PodPolicy, PolicySubject, digest_of
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, PortSet, by_protocol, contains, is_partial
from windlass.model.services import Protocol
from windlass.openflow.actions import Action, Actions, Ct, ToController
from windlass.openflow.conditions import destination, destination_port, ip, protocol, source
from windlass.openflow.fields import IN_PORT, IPV6_FRAGMENT, Term
from windlass.openflow.flows import Flow, Meter
from windlass.pipeline import sctp
from windlass.pipeline.connections import ANY_FRAGMENT
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import Table, goto, onward
from windlass.pipeline.layout import (
    DENIAL_STAGE,
    DENIED,
    DENIED_BEFORE,
    EGRESS_PEER,
    EGRESS_PORTS,
    EGRESS_SUBJECT,
    EGRESS_VERDICT,
    INGRESS_PEER,
    INGRESS_PORTS,
    INGRESS_SUBJECT,
    INGRESS_VERDICT,
)
from windlass.pipeline.packet_marks import FROM_BRIDGE, FROM_GATEWAY, HAIRPIN, OUT_PORT, PEER_CLASS, PORT_SET, SUBJECT
from windlass.pipeline.priorities import DEFAULT, HIGH, LOW, NORMAL, PREFIX, TOP
from windlass.pipeline.reserved import DENIAL, DENIAL_BURST, DENIAL_METER, DENIALS_PER_SECOND
from windlass.pipeline.tracking import (
    CT_DENIED,
    CT_SERVICE,
    ESTABLISHED_ORIGINAL,
    NEW,
    OPENING,
    OPENING_TRACKED,
    RELATED_ORIGINAL,
    REPLY,
)


class PolicyTables(NamedTuple):
    subject: Table
    peer: Table
    verdict: Table
    ports: Table


TABLES = {
    Direction.EGRESS: PolicyTables(EGRESS_SUBJECT, EGRESS_PEER, EGRESS_VERDICT, EGRESS_PORTS),
    Direction.INGRESS: PolicyTables(INGRESS_SUBJECT, INGRESS_PEER, INGRESS_VERDICT, INGRESS_PORTS),
}


# --- flows that do not depend on the policies -------------------------------------------------------------------------


def flows(node: LocalNode) -> Iterator[Flow]:
    for family in node.families:
        for tracking in sctp.trackings(node):
            yield from denials(node, tracking, family)
    yield from counted_denials(node).values()
    yield DENIED_BEFORE.flow(HIGH, CT_DENIED, REPLY).drop(why="reply of a connection that a policy denies: drop")
    yield DENIED_BEFORE.flow(HIGH, CT_DENIED, RELATED_ORIGINAL).drop(
        why="ICMP error of the client about a connection that a policy denies: drop"
    )


def meters(node: LocalNode) -> Iterator[Meter]:
    """Limits the denied packets that the agent gets."""
    if datapath_of(node).meters:
        yield Meter(DENIAL_METER, DENIALS_PER_SECOND, DENIAL_BURST, "denied packets to log")


def counted_denials(node: LocalNode) -> dict[str, Flow]:
    """The flows that drop denied packets, by what is counted."""
    of_marked = DENIED.flow(HIGH, CT_DENIED).drop(why="denied by a policy, and its connection is marked: drop")
    log = _to_log(node)
    why = "denied by a policy: log it, at a limited rate, and drop it" if log else "denied by a policy: drop"
    rest = {f"new, {family}": DENIED.flow(DEFAULT, ip(family)).then(*log, why=why) for family in node.families}
    return {"existing": of_marked, **rest}


def _to_log(node: LocalNode) -> tuple[Action, ...]:
    """Without meters nothing is logged, because a flood would overload the agent."""
    return (ToController(DENIAL, meter=DENIAL_METER),) if datapath_of(node).meters else ()


def denials(node: LocalNode, tracking: sctp.SourceTracking, family: Family) -> Iterator[Flow]:
    packets, above = tracking.packets(family), tracking.above
    mark = Ct(tracking.zone, commit=True, sets=(CT_DENIED.set(),))
    log = _to_log(node)
    does = f"{'log it, ' if log else ''}mark the connection and drop the packet"
    for existing in (ESTABLISHED_ORIGINAL, (NEW, *CT_SERVICE)):
        yield DENIED.flow(NORMAL + above, packets, existing, CT_DENIED.unset).then(
            *log, mark, why=f"denied by a policy, but its connection exists: {does}"
        )
    yield DENIED_BEFORE.flow(NORMAL + above, packets, CT_DENIED, OPENING_TRACKED).then(
        Ct(tracking.zone, commit=True, sets=(CT_DENIED.clear(),)),
        onward(DENIED_BEFORE),
        why="policies allow the connection again: remove the mark and send the packet on",
    )


# --- flows of one Pod, one address and one subject --------------------------------------------------------------------


def pod_flows(node: LocalNode, pod: AttachedPod, policies: PodPolicies) -> Iterator[Flow]:
    if policies.egress is not None:
        yield EGRESS_SUBJECT.flow(NORMAL, IN_PORT(pod.ofport), OPENING).then(
            *SUBJECT.load(policies.egress.subject),
            goto(EGRESS_PEER),
            why=f"from Pod {pod.key}, which egress policies select: look up what they allow",
        )
        yield from to_itself(node, pod, Direction.EGRESS, policies.egress)
    if policies.ingress is not None:
        yield INGRESS_SUBJECT.flow(NORMAL, OUT_PORT.is_(pod.ofport), OPENING).then(
            *SUBJECT.load(policies.ingress.subject),
            *PEER_CLASS.load(0),  # an egress policy may have set it
            goto(INGRESS_PEER),
            why=f"to Pod {pod.key}, which ingress policies select: look up what they allow",
        )
        yield from to_itself(node, pod, Direction.INGRESS, policies.ingress)
        yield from from_own_node(node, pod)


def to_itself(node: LocalNode, pod: AttachedPod, direction: Direction, policy: PodPolicy) -> Iterator[Flow]:
    """A Pod reaches itself through a Service. NetworkPolicies cannot deny that, ClusterNetworkPolicies can."""
    tables = TABLES[direction]
    for (version, _, _), ports in policy.itself:
        if node.has_family(version):
            yield tables.subject.flow(TOP, IN_PORT(pod.ofport), ip(Family(version)), HAIRPIN, OPENING).then(
                *_allows(tables, tables.subject, ports),
                why=f"from Pod {pod.key} to itself: only ClusterNetworkPolicies can deny that",
            )
            yield from port_flows(node, direction, ports)


def from_own_node(node: LocalNode, pod: AttachedPod) -> Iterator[Flow]:
    """A Pod accepts everything from its own Node, for example the kubelet's probes."""
    for family in node.families:
        for address in (node.gateway(family), *node.own_addresses(family)):
            for origin in (FROM_GATEWAY, FROM_BRIDGE):
                yield INGRESS_SUBJECT.flow(HIGH, OUT_PORT.is_(pod.ofport), origin, source(address)).then(
                    onward(INGRESS_SUBJECT), why=f"from this Node itself to Pod {pod.key}: always allowed"
                )


def peer_flows(node: LocalNode, peer: PeerEntry) -> tuple[Flow, ...]:
    """The flows are made without `Table.flow`, which takes longer: there are ten thousand peers."""
    prefix, priority = peer.prefix, PREFIX + peer.prefix[2]
    flows: tuple[Flow, ...] = ()
    if not node.has_family(prefix[0]):
        return flows
    if peer.egress is not None:
        does = _set_class(EGRESS_VERDICT, peer.egress)
        flows = (Flow(EGRESS_PEER.number, priority, destination(prefix), does, _TO_PEER),)
    if peer.ingress is not None:
        does = _set_class(INGRESS_VERDICT, peer.ingress)
        flows += (Flow(INGRESS_PEER.number, priority, source(prefix), does, _FROM_PEER),)
    return flows


_TO_PEER, _FROM_PEER = (
    f"{end} a peer of policies: set its class, by the selectors and blocks that match its address"
    for end in ("to", "from")
)
_CLASSES = 4096  # classes whose conditions and actions are cached: many subjects and peers share a class
_is_class = lru_cache(_CLASSES)(PEER_CLASS.is_)


@lru_cache(_CLASSES)
def _set_class(verdicts: Table, number: int) -> Actions:
    return (*PEER_CLASS.load(number), goto(verdicts))


def subject_flows(subject: PolicySubject) -> Iterator[Flow]:
    """The flows of a subject, without those of its sets of ports, which subjects may share."""
    tables, of_subject = TABLES[subject.direction], SUBJECT.is_(subject.number)
    port_sets = {subject.default, *subject.verdicts.values()}
    actions = {allowed: _allows(tables, tables.verdict, allowed) for allowed in port_sets}
    by_rule = {one: _looks_up_rule(tables, subject, one) for one in subject.by_rule}
    yield tables.verdict.flow(LOW, of_subject).then(
        *by_rule.get(NO_CLASS, actions[subject.default]),
        why=f"{subject.direction.value} policies: allowed traffic with peers that no rule selects",
    )
    why = f"{subject.direction.value} policies: allowed traffic with this class of peers"
    table = tables.verdict.number
    for peer_class, allowed in subject.verdicts.items():
        does = by_rule[peer_class] if peer_class in by_rule else actions[allowed]
        # Faster than `flow`, for thousands of classes; the registers of the subject come before those of the class.
        yield Flow(table, NORMAL, (*of_subject, *_is_class(peer_class)), does, why)


def _looks_up_rule(tables: PolicyTables, subject: PolicySubject, peer_class: int) -> tuple[Action, ...]:
    return (*PORT_SET.load(digest_of((subject.number, peer_class))), goto(tables.ports))


def rule_flows(node: LocalNode, subject: PolicySubject) -> Iterator[Flow]:
    """The flows of the classes for which the switch counts the packets of each rule."""
    for peer_class in subject.by_rule:
        yield from chain.from_iterable(flows_by_rule(node, subject, peer_class))
        allowed = subject.verdicts.get(peer_class, subject.default)
        for family in node.families:
            yield from _fragment_flows(family, subject.direction, digest_of((subject.number, peer_class)), allowed)


def flows_by_rule(node: LocalNode, subject: PolicySubject, peer_class: int) -> Iterator[tuple[Flow, ...]]:
    """The flows of each part of `subject.by_rule`, in that order.

    The part with the protocols that have no ports is often all ports but a few. It gets one flow, for the rest.
    """
    table, of_set = TABLES[subject.direction].ports, PORT_SET.is_(digest_of((subject.number, peer_class)))
    for part in subject.by_rule[peer_class]:
        does = onward(table) if part.allows else goto(DENIAL_STAGE)
        why = f"a rule {'allows' if part.allows else 'denies'} this: {'send it on' if part.allows else 'deny'}, counted"
        if contains(part.ports, None, None):
            yield (table.flow(LOW, of_set).then(does, why=why),)
        else:
            yield tuple(
                table.flow(NORMAL, of_set, condition).then(does, why=why)
                for family in node.families
                for number, first, last in by_protocol(part.ports)
                for condition in _conditions(family, number, first, last)
            )


def _allows(tables: PolicyTables, table: Table, ports: PortSet) -> tuple[Action, ...]:
    if ports == ALL_PORTS:
        return (onward(table),)
    if ports == NO_PORTS:
        return (goto(DENIAL_STAGE),)
    return (*PORT_SET.load(digest_of(ports)), goto(tables.ports))


def port_flows(node: LocalNode, direction: Direction, ports: PortSet) -> tuple[Flow, ...]:
    """The flows of one set of ports. Subjects with the same set share them."""
    return () if ports in {ALL_PORTS, NO_PORTS} else _port_flows(node.families, direction, ports)


@lru_cache(1024)
def _port_flows(families: tuple[Family, ...], direction: Direction, ports: PortSet) -> tuple[Flow, ...]:
    return tuple(_flows_of_ports(families, direction, ports))


def _flows_of_ports(families: tuple[Family, ...], direction: Direction, ports: PortSet) -> Iterator[Flow]:
    table, of_set = TABLES[direction].ports, PORT_SET.is_(digest_of(ports))
    ranges = [*by_protocol(ports)]
    for family in families:
        for number, first, last in ranges:
            for condition in _conditions(family, number, first, last):
                yield table.flow(NORMAL if number else DEFAULT, of_set, condition).then(
                    onward(table), why="to a port that policies allow: send it on"
                )
        if any(number is None for number, _, _ in ranges):
            for number in Protocol:  # the flows of allowed ports have a higher priority
                yield table.flow(LOW, of_set, protocol(family, number)).then(
                    goto(DENIAL_STAGE), why=f"to a {number.name} port that policies do not allow: deny"
                )
        yield from _fragment_flows(family, direction, digest_of(ports), ports)


def _fragment_flows(family: Family, direction: Direction, port_set: int, allowed: PortSet) -> Iterator[Flow]:
    """On a datapath that forwards fragments, they have no port. An earlier packet of the connection had one.

    If policies deny the connection later, its next packet with a port marks it, or the agent does. If all ports of a
    protocol are allowed, or none, the port does not matter. Later fragments of IPv6 do not even show their protocol.
    """
    table, of_set = TABLES[direction].ports, PORT_SET.is_(port_set)
    numbers: list[int] = [number for number in Protocol if is_partial(allowed, number)]
    if family is Family.IPV6:
        numbers.append(IPV6_FRAGMENT)
    for number in numbers:
        fragment = (*protocol(family, number), ANY_FRAGMENT)
        yield table.flow(HIGH + 1, of_set, fragment, ESTABLISHED_ORIGINAL, CT_DENIED.unset).then(
            onward(table), why="fragment of an established connection, which policies allowed by its port: send it on"
        )
        yield table.flow(HIGH, of_set, fragment).then(
            goto(DENIAL_STAGE),
            why="fragment of no established connection, or of a denied one: deny, policies allow some ports only",
        )


def _conditions(family: Family, number: Protocol | None, first: int, last: int) -> Iterator[tuple[Term, ...]]:
    if number is None:
        yield (ip(family),)
    elif (first, last) == (0, 0xFFFF):
        yield protocol(family, number)
    else:
        for value, mask in masks(first, last):
            yield destination_port(family, number, value, mask)


def masks(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The fewest blocks of ports that share their first bits and make up the range, each as value and mask."""
    while first <= last:
        size = first & -first or 0x10000
        while first + size - 1 > last:
            size >>= 1
        yield first, 0xFFFF & ~(size - 1)
        first += size
