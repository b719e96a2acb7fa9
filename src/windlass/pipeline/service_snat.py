"""Clients of Services that an endpoint must see with another source, so that its replies come back to this Node.

ConntrackCommit translates the source, in a zone of its own; UnSNAT restores the client's address in replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from windlass.model.families import Family, IPAddress
from windlass.model.nodes import LocalNode
from windlass.openflow.actions import Ct, Nat, Set
from windlass.openflow.fields import destination, destination_port, icmp, source
from windlass.openflow.flows import Flow
from windlass.openflow.matches import Condition
from windlass.pipeline import sctp
from windlass.pipeline.connections import ANY_FRAGMENT
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto
from windlass.pipeline.icmp_errors import ICMP_ERRORS
from windlass.pipeline.layout import (
    CONNTRACK_COMMIT,
    CONNTRACK_STAGE,
    CT_MASQUERADE,
    CT_SERVICE,
    ESTABLISHED_ORIGINAL,
    FROM_GATEWAY,
    GATEWAY_SNAT_PORTS,
    HAIRPIN,
    HIGH,
    NEW,
    NORMAL,
    RELATED_ORIGINAL,
    SNAT,
    SNAT_VIRTUAL,
    SNAT_ZONE,
    TOP,
    UN_SNAT,
    UPLINK,
    VIRTUAL_CLIENT,
    VIRTUAL_SNAT_PORTS,
)
from windlass.pipeline.snat_ports import BESIDE_THE_HOST, Ports, beside_the_host, origins_of_replies, snat_ports


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
        yield UN_SNAT.flow(NORMAL, when, ANY_FRAGMENT).then(
            undo, why="fragment, without a port to match: look up whether it belongs to a reply to a translated client"
        )
        for kind in ICMP_ERRORS[family] if datapath_of(node).icmp_errors else ():
            yield UN_SNAT.flow(NORMAL, when, icmp(family, kind)).then(
                undo, why="ICMP error: look up whether it is about a packet of a translated client"
            )
    yield UN_SNAT.flow(NORMAL, FROM_GATEWAY, destination(VIRTUAL_CLIENT[family])).then(
        undo, why="reply of an endpoint on this host, to the virtual client: restore the client's address"
    )


def translations(node: LocalNode, family: Family) -> Iterator[Flow]:
    """L3Forwarding sets at most one of the flags. The matches say so, too: no two flows of one priority may match a
    packet.
    """
    gateway, as_node, virtual = node.gateway(family), node.addresses[family].ip, VIRTUAL_CLIENT[family]
    outside, on_host, itself = SNAT, (SNAT.unset, *SNAT_VIRTUAL), (SNAT.unset, SNAT_VIRTUAL.unset, *HAIRPIN)
    cases: tuple[tuple[int, Condition, IPAddress, Ports, str], ...] = (
        (
            TOP,
            outside,
            as_node,
            snat_ports(node).services,
            "Service connection to an endpoint outside: the source becomes the Node IP",
        ),
        (
            TOP,
            on_host,
            virtual,
            VIRTUAL_SNAT_PORTS,
            "Service connection to an endpoint on this host: the source becomes the virtual client",
        ),
        (
            TOP,
            itself,
            gateway,
            GATEWAY_SNAT_PORTS,
            "Service connection of a Pod to itself: the source becomes the gateway",
        ),
        (
            HIGH,
            CT_MASQUERADE,
            gateway,
            GATEWAY_SNAT_PORTS,
            "Service connection by policy Cluster: the source becomes the gateway",
        ),
    )
    table = CONNTRACK_COMMIT.onward
    for tracking, (priority, condition, seen_as, ports, why) in product(sctp.trackings(node), cases):
        when: tuple[Condition, ...] = (tracking.packets(family), CT_SERVICE, condition)
        nat = Nat(seen_as, ports=ports if tracking.with_ports else None)
        commit = Ct(tracking.snat_zone, table, commit=True, nat=nat)
        yield CONNTRACK_COMMIT.flow(priority + tracking.above, *when, NEW).then(commit, why=why)
        yield CONNTRACK_COMMIT.flow(priority + tracking.above, *when, ESTABLISHED_ORIGINAL).then(
            Ct(tracking.snat_zone, table, nat=Nat()), why=why
        )
    for above, packets, ports in beside_the_host(node, family, snat_ports(node).services):
        yield CONNTRACK_COMMIT.flow(TOP + above, packets, CT_SERVICE, outside, NEW).then(
            Ct(SNAT_ZONE, table, commit=True, nat=Nat(as_node, ports=ports)), why=f"{cases[0][-1]}{BESIDE_THE_HOST}"
        )
    if datapath_of(node).translates_related_by_commit:
        for priority, condition, _, _, why in cases:
            yield CONNTRACK_COMMIT.flow(priority + 1, icmp(family), RELATED_ORIGINAL, CT_SERVICE, condition).then(
                Ct(SNAT_ZONE, table, commit=True, nat=Nat()), why=f"ICMP error about a reply; {why}"
            )
    if family is Family.IPV6 and datapath_of(node).damages_icmpv6_errors:
        for priority, condition, seen_as, _, why in cases:
            error = (*icmp(family), RELATED_ORIGINAL, *CT_SERVICE)
            yield CONNTRACK_COMMIT.flow(priority + 1, error, condition).then(
                Set(source(seen_as)[1]),  # which translation would write anyway: now it changes nothing, so no checksum
                Ct(SNAT_ZONE, table, nat=Nat()),
                why=f"ICMPv6 error about a reply; {why}",
            )
