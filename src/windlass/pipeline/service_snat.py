"""Clients of Services whose source is translated, so that replies of the endpoint come back to this Node.

ConntrackCommit translates the source, in a zone of its own; UnSNAT restores the client's address in replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from windlass.model.families import Family, IPAddress
from windlass.model.nodes import LocalNode
from windlass.openflow.actions import Ct, Nat, Set
from windlass.openflow.conditions import destination, destination_port, icmp, protocol, source
from windlass.openflow.fields import Term
from windlass.openflow.flows import Flow
from windlass.openflow.matches import Condition
from windlass.pipeline import sctp
from windlass.pipeline.connections import ANY_FRAGMENT
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto
from windlass.pipeline.icmp_errors import ICMP_ERRORS
from windlass.pipeline.layout import CONNTRACK_COMMIT, CONNTRACK_STAGE, UN_SNAT, UPLINK
from windlass.pipeline.packet_marks import FROM_GATEWAY, HAIRPIN, SNAT, SNAT_VIRTUAL
from windlass.pipeline.priorities import HIGH, NORMAL, TOP
from windlass.pipeline.reserved import GATEWAY_SNAT_PORTS, VIRTUAL_CLIENT, VIRTUAL_SNAT_PORTS
from windlass.pipeline.snat_ports import (
    FREE_OF_HOST_PORTS,
    SnatRange,
    free_of_host_ports,
    origins_of_replies,
    snat_ports,
)
from windlass.pipeline.tracking import CT_MASQUERADE, CT_SERVICE, ESTABLISHED_ORIGINAL, NEW, RELATED_ORIGINAL, SNAT_ZONE


def flows(node: LocalNode) -> Iterator[Flow]:
    for family in node.families:
        yield from replies(node, family)
        yield from translations(node, family)


def replies(node: LocalNode, family: Family) -> Iterator[Flow]:
    node_ip = node.addresses[family].ip
    undo = Ct(SNAT_ZONE, table=UN_SNAT.onward, nat=Nat())
    to_node = [(*origin, *destination(node_ip)) for origin in origins_of_replies(node)]
    for number in datapath_of(node).transports:
        by_gateway = destination_port(family, number, *GATEWAY_SNAT_PORTS.mask)
        yield UN_SNAT.flow(NORMAL, destination(node.gateway(family)), by_gateway).then(
            undo, why="reply to a client that was masqueraded as the gateway: restore the client's address"
        )
    for number, ports in product(datapath_of(node).transports, snat_ports(node).service_replies):
        ours = destination_port(family, number, *ports.mask)
        yield UPLINK.flow(NORMAL, destination(node_ip), ours).then(
            goto(CONNTRACK_STAGE),
            why="to an SNAT port of Services at the Node IP: look up whether it is a reply to a client of a Service",
        )
        for when in to_node:
            yield UN_SNAT.flow(NORMAL, when, ours).then(
                undo, why="reply of an endpoint to a client that it sees as the Node: restore the client's address"
            )
    for when in (destination(node.gateway(family)), *to_node):
        for packets in _trackable(node, family):
            yield UN_SNAT.flow(NORMAL, when, packets, ANY_FRAGMENT).then(
                undo,
                why="fragment, without a port to match: look up whether it belongs to a reply to a translated client",
            )
        for kind in ICMP_ERRORS[family] if datapath_of(node).icmp_errors else ():
            yield UN_SNAT.flow(NORMAL, when, icmp(family, kind)).then(
                undo, why="ICMP error: look up whether it is about a packet of a translated client"
            )
    for packets in _trackable(node, family):
        yield UN_SNAT.flow(NORMAL, FROM_GATEWAY, destination(VIRTUAL_CLIENT[family]), packets).then(
            undo, why="reply of an endpoint on this host, to the virtual client: restore the client's address"
        )


def _trackable(node: LocalNode, family: Family) -> list[tuple[Term, ...]]:
    """A datapath that cannot track a protocol would drop its packets."""
    datapath = datapath_of(node)
    return [()] if datapath.others else [protocol(family, number) for number in datapath.transports]


class SourceCase(NamedTuple):
    """Which Service connections get another source address, and which address."""

    priority: int
    condition: Condition
    seen_as: IPAddress
    ports: SnatRange
    why: str


def cases(node: LocalNode, family: Family) -> tuple[SourceCase, ...]:
    """L3Forwarding sets at most one of the flags. The matches exclude the other flags explicitly, because no packet may
    match two flows of the same priority.
    """
    gateway, as_node, virtual = node.gateway(family), node.addresses[family].ip, VIRTUAL_CLIENT[family]
    on_host, itself = (SNAT.unset, *SNAT_VIRTUAL), (SNAT.unset, SNAT_VIRTUAL.unset, *HAIRPIN)
    to_outside = "Service connection to an endpoint outside: the source becomes the Node IP"
    to_host = "Service connection to an endpoint on this host: the source becomes the virtual client"
    to_itself = "Service connection of a Pod to itself: the source becomes the gateway"
    masquerade = "Service connection, policy Cluster: the source becomes the gateway"
    return (
        SourceCase(TOP, SNAT, as_node, snat_ports(node).services, to_outside),
        SourceCase(TOP, on_host, virtual, VIRTUAL_SNAT_PORTS, to_host),
        SourceCase(TOP, itself, gateway, GATEWAY_SNAT_PORTS, to_itself),
        SourceCase(HIGH, CT_MASQUERADE, gateway, GATEWAY_SNAT_PORTS, masquerade),
    )


def translations(node: LocalNode, family: Family) -> Iterator[Flow]:
    table = CONNTRACK_COMMIT.onward
    for tracking, case in product(sctp.trackings(node), cases(node, family)):
        when: tuple[Condition, ...] = (tracking.packets(family), CT_SERVICE, case.condition)
        nat = Nat(case.seen_as, ports=case.ports if tracking.with_ports else None)
        commit = Ct(tracking.snat_zone, table, commit=True, nat=nat, sets=tracking.snat_marks)
        yield CONNTRACK_COMMIT.flow(case.priority + tracking.above, *when, NEW).then(commit, why=case.why)
        yield CONNTRACK_COMMIT.flow(case.priority + tracking.above, *when, ESTABLISHED_ORIGINAL).then(
            Ct(tracking.snat_zone, table, nat=Nat()), why=case.why
        )
    outside, *_ = cases(node, family)
    for above, packets, ports in free_of_host_ports(node, family, snat_ports(node).services):
        yield CONNTRACK_COMMIT.flow(TOP + above, packets, CT_SERVICE, outside.condition, NEW).then(
            Ct(SNAT_ZONE, table, commit=True, nat=Nat(outside.seen_as, ports=ports)),
            why=f"{outside.why}{FREE_OF_HOST_PORTS}",
        )
    yield from errors_about_replies(node, family)


def errors_about_replies(node: LocalNode, family: Family) -> Iterator[Flow]:
    """ICMP errors of clients; most datapaths translate them as the connection was."""
    table, error = CONNTRACK_COMMIT.onward, (*icmp(family), RELATED_ORIGINAL, *CT_SERVICE)
    if datapath_of(node).translates_related_by_commit:
        for case in cases(node, family):
            yield CONNTRACK_COMMIT.flow(case.priority + 1, error, case.condition).then(
                Ct(SNAT_ZONE, table, commit=True, nat=Nat()), why=f"ICMP error about a reply; {case.why}"
            )
    if family is Family.IPV6 and datapath_of(node).damages_icmpv6_errors:
        for case in cases(node, family):
            yield CONNTRACK_COMMIT.flow(case.priority + 1, error, case.condition).then(
                Set(source(case.seen_as)[1]),  # as the translation would: so the translation changes no checksum
                Ct(SNAT_ZONE, table, nat=Nat()),
                why=f"ICMPv6 error about a reply; {case.why}",
            )
