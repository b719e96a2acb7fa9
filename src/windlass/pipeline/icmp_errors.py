"""ICMP errors ("fragmentation needed", "unreachable", "time exceeded") find the connection that they are about.

Connection tracking finds the connection by the packet that the error quotes. The error then takes the path of that
connection and is translated as its packets are, the quoted packet included, so that the sender recognises its packet.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family
from windlass.model.nodes import LocalNode
from windlass.openflow.actions import Ct, Move, Nat, Output
from windlass.openflow.conditions import destination, icmp
from windlass.openflow.fields import CT_IPV6_DST, IPV6_SRC, LOCAL_PORT
from windlass.openflow.flows import Flow
from windlass.openflow.matches import Condition
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import CONNTRACK, CONNTRACK_STAGE, CONNTRACK_STATE, ROUTE_STAGE, UPLINK
from windlass.pipeline.packet_marks import FROM_UPLINK
from windlass.pipeline.priorities import HIGH, NORMAL, TOP
from windlass.pipeline.tracking import CT_SERVICE, INVALID, POD_ZONE, RELATED, RELATED_REPLY

ICMP_ERRORS = {Family.IPV4: (3, 11, 12), Family.IPV6: (1, 2, 3, 4)}


def flows(node: LocalNode) -> Iterator[Flow]:
    datapath = datapath_of(node)
    for family in node.families:
        yield from from_the_wire(node, family)
        if family is Family.IPV6 and datapath.damages_icmpv6_errors:
            yield from translated_source()
        if datapath.translates_related_by_commit:
            yield from translated_by_commit(family)


def from_the_wire(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Errors to any address: of the Node, of a Pod, or an external address of a Service."""
    datapath = datapath_of(node)
    to_node = destination(node.addresses[family].ip)
    for kind in ICMP_ERRORS[family]:
        error: Condition = icmp(family, kind)
        yield UPLINK.flow(HIGH, error, () if datapath.icmp_errors else to_node).then(
            goto(CONNTRACK_STAGE), why="ICMP error from the wire: look up the connection that it is about"
        )
        yield CONNTRACK_STATE.flow(TOP, FROM_UPLINK, error, INVALID).then(
            Output(LOCAL_PORT),
            why="ICMP error from the wire about no connection of Pods or Services: deliver to the host",
        )
        if not datapath.icmp_errors:
            # Connection tracking reports it as invalid, and leaves it as it is.
            yield CONNTRACK.flow(NORMAL, FROM_UPLINK, to_node, error).then(
                Ct(POD_ZONE, table=CONNTRACK.onward, nat=Nat()), why="ICMP error: look up its connection"
            )


def translated_by_commit(family: Family) -> Iterator[Flow]:
    """Committing a connection that exists changes nothing else. See `Datapath` for the reason."""
    for kind in ICMP_ERRORS[family]:
        yield CONNTRACK.flow(HIGH, icmp(family, kind)).then(
            Ct(POD_ZONE, table=CONNTRACK.onward, commit=True, nat=Nat()),
            why="ICMP error: look up the connection that it is about and translate, in both directions",
        )


def translated_source() -> Iterator[Flow]:
    """Write the source that translation will give the error anyway (see `Datapath.damages_icmpv6_errors`).

    An error about a packet to a Service gets the Service's address as source. A first lookup without translation finds
    that address in the connection. The destination needs no such step: its translation damages only the quoted source,
    which is written later.
    """
    for kind in ICMP_ERRORS[Family.IPV6]:
        yield CONNTRACK.flow(HIGH, icmp(Family.IPV6, kind)).then(
            Ct(POD_ZONE, table=CONNTRACK.onward), why="ICMPv6 error: look up its connection, do not translate yet"
        )
    translate = Ct(POD_ZONE, table=ROUTE_STAGE.entry, nat=Nat())
    yield CONNTRACK_STATE.flow(HIGH, icmp(Family.IPV6), RELATED).then(
        translate, why="ICMPv6 error about a known connection: translate it"
    )
    yield CONNTRACK_STATE.flow(TOP, icmp(Family.IPV6), RELATED_REPLY, CT_SERVICE).then(
        Move(CT_IPV6_DST.whole, IPV6_SRC.whole),
        translate,
        why="ICMPv6 error about a packet to a Service: set the Service's address as source, then translate",
    )
