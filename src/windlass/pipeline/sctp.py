"""SCTP where connection tracking does not know its ports: the userspace datapath of Open vSwitch before 3.2.

There, all SCTP between two addresses is one connection, and translation leaves ports unchanged. So:

- Each client port has its own zone: the zone number is the port. Which end is the client is not known before a look-up.
  SCTPDirection looks in the zone of the destination port: a packet that is a reply there is a reply; any other comes
  from its client and belongs to the zone of its source port.
- Source translation happens in a second zone: the client's port, rotated left by one bit. (That is a different number,
  except for 65535, which clients do not choose by chance.) The translated source keeps the client's port, so that
  replies find that zone. The same holds for a Pod that leaves as its Node: the server may be a proxy that connects to
  this Node on behalf of the Pod, with the same port.
- A Service connection stores the endpoint's port and the Service port in its label. SCTPPorts writes them.
- An ICMP error does not show the zone. So that errors about packets of Pods find their connection, a connection is
  committed in the usual zone as well: there it stands for all SCTP between the two addresses.

If connection tracking knows the ports (Open vSwitch 3.2 and later), these flows change nothing that it has done. When
no older switch has to be supported, delete this module and everything that refers to it.

Its limits are in docs/decisions/0009-sctp-in-user-space.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from windlass.model.families import Family
from windlass.model.nodes import LocalNode
from windlass.model.services import Endpoint
from windlass.openflow.actions import Clone, Ct, Move, Nat, Set
from windlass.openflow.conditions import destination, ip, protocol
from windlass.openflow.fields import SCTP, SCTP_DST, SCTP_SRC, Bits, Field, Term
from windlass.openflow.flows import Flow
from windlass.pipeline.connections import ANY_FRAGMENT
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto, onward
from windlass.pipeline.layout import (
    CONNTRACK,
    CONNTRACK_COMMIT,
    CONNTRACK_STAGE,
    CONNTRACK_STATE,
    ROUTE_STAGE,
    SCTP_DIRECTION,
    SCTP_PORTS,
    SCTP_STAGE,
    UN_SNAT,
    UPLINK,
)
from windlass.pipeline.packet_marks import CLIENT_SNAT_ZONE, CLIENT_ZONE, FROM_CLIENT, FROM_GATEWAY, SERVICE_PORT, SNAT
from windlass.pipeline.priorities import HIGH, LOW, NORMAL, TOP
from windlass.pipeline.reserved import VIRTUAL_CLIENT
from windlass.pipeline.snat_ports import origins_of_replies
from windlass.pipeline.tracking import (
    CT_ENDPOINT_PORT,
    CT_SERVICE,
    CT_SERVICE_PORT,
    CT_SHARED,
    CT_SNAT,
    ESTABLISHED_ORIGINAL,
    NEW,
    ORIGINAL,
    POD_ZONE,
    REPLY,
    SNAT_ZONE,
    VALID,
)


class SourceTracking(NamedTuple):
    """The zones in which packets are tracked and their sources translated, and whether they get another source port."""

    number: int | None  # a protocol; None: all protocols without an entry of their own
    zone: int | Bits
    snat_zone: int | Bits
    with_ports: bool
    snat_marks: tuple[Set, ...]  # of the entry in `snat_zone`
    above: int  # added to the priority of flows: flows of a certain protocol come before those of all others

    def packets(self, family: Family) -> tuple[Term, ...]:
        return (ip(family),) if self.number is None else protocol(family, self.number)


_USUAL = SourceTracking(None, POD_ZONE, SNAT_ZONE, with_ports=True, snat_marks=(), above=0)
_BY_CLIENT_PORT = SourceTracking(
    SCTP, CLIENT_ZONE.bits, CLIENT_SNAT_ZONE.bits, with_ports=False, snat_marks=(CT_SHARED.set(),), above=1
)


def trackings(node: LocalNode) -> tuple[SourceTracking, ...]:
    return (_USUAL, _BY_CLIENT_PORT) if SCTP in datapath_of(node).portless else (_USUAL,)


def flows(node: LocalNode) -> Iterator[Flow]:
    if SCTP not in datapath_of(node).portless:
        return
    for family in node.families:
        yield from fragments(family)
        yield from replies(node, family)
        yield from look_up(family)
        yield from foreign_entries(family)
        yield from ports(family)
        yield from commit(node, family)


def fragments(family: Family) -> Iterator[Flow]:
    yield UN_SNAT.flow(HIGH, protocol(family, SCTP), ANY_FRAGMENT).then(
        goto(ROUTE_STAGE),
        why="SCTP fragment: route it untracked, only a first fragment has the port that gives the zone",
    )


def replies(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Replies to clients with a translated source. The port does not identify them, because it is the client's own."""
    sctp, to_node = protocol(family, SCTP), destination(node.addresses[family].ip)
    yield UPLINK.flow(NORMAL, to_node, sctp).then(
        goto(CONNTRACK_STAGE),
        why="SCTP to the Node IP: look up whether it is a reply to a translated client, or to a NodePort",
    )
    for translated in (
        destination(node.gateway(family)),
        *((*origin, *to_node) for origin in origins_of_replies(node)),
        (*FROM_GATEWAY, *destination(VIRTUAL_CLIENT[family])),
    ):
        yield UN_SNAT.flow(NORMAL + 1, translated, sctp).then(
            *_snat_zone(SCTP_DST),
            Ct(CLIENT_SNAT_ZONE.bits, table=SCTP_DIRECTION.number),
            why="SCTP to an address of translated clients: look up whether it is a reply to one",
        )
    yield UN_SNAT.flow(LOW, sctp).then(
        goto(SCTP_DIRECTION), why="SCTP to an address that no translated client has: find the client's port"
    )
    yield SCTP_DIRECTION.flow(HIGH, sctp, REPLY).then(
        _zone(SCTP_DST),
        Ct(CLIENT_SNAT_ZONE.bits, table=SCTP_DIRECTION.onward, nat=Nat()),
        why="SCTP reply to a translated client: restore the client's address",
    )


def look_up(family: Family) -> Iterator[Flow]:
    sctp = protocol(family, SCTP)
    yield SCTP_DIRECTION.flow(NORMAL, sctp).then(
        _zone(SCTP_DST),
        Ct(CLIENT_ZONE.bits, table=SCTP_DIRECTION.onward),
        why="SCTP: look up whether the destination port is the client's, so whether it is a reply",
    )
    known = Ct(CLIENT_ZONE.bits, table=CONNTRACK.onward, nat=Nat())
    yield CONNTRACK.flow(HIGH, sctp, REPLY).then(known, why="SCTP reply: look up the connection and translate")
    yield CONNTRACK.flow(NORMAL, sctp).then(
        *(_zone(SCTP_SRC), *_snat_zone(SCTP_SRC), Move(SCTP_DST.whole, SERVICE_PORT.bits), FROM_CLIENT.set()),
        known,
        why="SCTP from a client: look up the connection and translate",
    )


def foreign_entries(family: Family) -> Iterator[Flow]:
    """An entry has no ports, so a packet may find one that is not its own. Such a packet must not pass as a reply."""
    for found, what in (
        ((*FROM_CLIENT, REPLY), "an entry in which its source is the server"),
        (CT_SHARED, "an entry that is not in the zone of its client's port"),
    ):
        yield CONNTRACK_STATE.flow(TOP + 2, protocol(family, SCTP), found).drop(
            why=f"SCTP of a connection that cannot be tracked, because the look-up finds {what}: drop"
        )


def ports(family: Family) -> Iterator[Flow]:
    of_service = (*protocol(family, SCTP), *CT_SERVICE)
    yield CONNTRACK_STATE.flow(TOP, of_service, VALID).then(
        goto(SCTP_STAGE), why="SCTP of a Service connection: addresses are translated, write the ports"
    )
    yield SCTP_PORTS.flow(NORMAL, of_service, REPLY).then(
        Move(CT_SERVICE_PORT.bits, SCTP_SRC.whole), goto(ROUTE_STAGE), why="SCTP reply: set the Service port as source"
    )
    yield SCTP_PORTS.flow(NORMAL, of_service, ORIGINAL).then(
        Move(CT_ENDPOINT_PORT.bits, SCTP_DST.whole),
        goto(ROUTE_STAGE),
        why="SCTP to a Service: set the endpoint's port as destination",
    )


def commit(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Connections that are not to a Service."""
    begins, shared = (*protocol(family, SCTP), NEW, CT_SERVICE.unset), (CT_SHARED.set(),)
    yield CONNTRACK_COMMIT.flow(NORMAL + 1, begins).then(
        Ct(POD_ZONE, commit=True, sets=shared),
        Ct(CLIENT_ZONE.bits, commit=True),
        onward(CONNTRACK_COMMIT),
        why="first packet of an SCTP connection: commit the connection",
    )
    when, table = (*protocol(family, SCTP), *SNAT, CT_SERVICE.unset), CONNTRACK_COMMIT.onward
    as_node = Nat(source=node.addresses[family].ip)
    yield CONNTRACK_COMMIT.flow(HIGH + 1, when, NEW).then(
        # On a copy, because the commit translates the packet.
        Clone((Ct(POD_ZONE, commit=True, nat=as_node, sets=shared),)),
        Ct(CLIENT_ZONE.bits, commit=True, sets=(CT_SNAT.set(),)),
        Ct(CLIENT_SNAT_ZONE.bits, table, commit=True, nat=as_node, sets=shared),
        why="first packet of a Pod's SCTP connection to the outside: commit it, with the Node IP as source",
    )
    yield CONNTRACK_COMMIT.flow(HIGH + 1, when, ESTABLISHED_ORIGINAL).then(
        Ct(CLIENT_SNAT_ZONE.bits, table, nat=Nat()),
        why="SCTP of a Pod's connection to the outside: set the Node IP as source",
    )


def to_endpoint(endpoint: Endpoint, marks: tuple[Set | Move, ...]) -> Ct:
    """The translation also names the port, for connection tracking that can translate it."""
    return Ct(
        CLIENT_ZONE.bits,
        table=SCTP_STAGE.entry,
        commit=True,
        nat=Nat(to=endpoint.address, ports=(endpoint.port, endpoint.port)),
        sets=(*marks, Set(CT_ENDPOINT_PORT.is_(endpoint.port)), Move(SERVICE_PORT.bits, CT_SERVICE_PORT.bits)),
    )


def _zone(port: Field) -> Move:
    return Move(port.whole, CLIENT_ZONE.bits)


def _snat_zone(port: Field) -> tuple[Move, Move]:
    """The port, rotated left by one bit."""
    zone = CLIENT_SNAT_ZONE.bits
    return Move(port[0:15], Bits(zone.field, zone.low + 1, 15)), Move(port[15], Bits(zone.field, zone.low, 1))
