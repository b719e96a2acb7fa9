"""SCTP where connection tracking does not know its ports: the userspace datapath of Open vSwitch before 3.2.

There all SCTP between two addresses is one connection, and translation leaves ports as they are. So:

- Each client's port has a zone of its own: the zone is that port. Which end is the client is not known before a
  look-up. SCTPDirection looks in the zone of the port that the packet goes to: who is an answer there is one; all
  others are their client's, in the zone of the port that they come from.
- Another source is given in a second zone: the client's port turned by one bit. (That is another number but for 65535,
  which nobody takes by chance.) The source keeps the client's port, by which answers find that zone. Of a Pod that
  leaves as its Node, too: the server may in turn ask this Node on its behalf, and so with the same port.
- A Service's connection remembers in its label the endpoint's port and the one that was asked. SCTPPorts writes them.
- An ICMP error tells no zone. So that those about what Pods send find their way, a connection is committed in the usual
  zone as well: there it stands for all between the two addresses.

Where connection tracking does know the ports (from 3.2 on), all this changes nothing that it has not done already. It
can go, with everything that names it, when no older switch is to be served.

What it cannot do: see docs/decisions/0009-sctp-in-user-space.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from windlass.model.families import Family
from windlass.model.nodes import LocalNode
from windlass.model.services import Endpoint
from windlass.openflow.actions import Clone, Ct, Move, Nat, Set
from windlass.openflow.fields import SCTP, SCTP_DST, SCTP_SRC, Bits, Field, Term, destination, ip, protocol
from windlass.openflow.flows import Flow
from windlass.pipeline.connections import ANY_FRAGMENT
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import (
    ANSWER,
    ASKED_PORT,
    CLIENT_SNAT_ZONE,
    CLIENT_ZONE,
    CONNTRACK,
    CONNTRACK_COMMIT,
    CONNTRACK_STATE,
    CT_ASKED_PORT,
    CT_ENDPOINT_PORT,
    CT_SERVICE,
    CT_SNAT,
    ESTABLISHED_ORIGINAL,
    FROM_GATEWAY,
    FROM_UPLINK,
    HIGH,
    L2_FORWARDING_OUT,
    L3_FORWARDING,
    LOW,
    NEW,
    NORMAL,
    ORIGINAL,
    POD_ZONE,
    SCTP_DIRECTION,
    SCTP_PORTS,
    SNAT,
    SNAT_ZONE,
    TOP,
    UN_SNAT,
    UPLINK,
    VALID,
    VIRTUAL_CLIENT,
)


class Tracking(NamedTuple):
    """Of which packets the clients are given another source in which zone, and whether they get another port."""

    number: int | None  # a protocol; None: all that have no tracking of their own
    snat_zone: int | Bits
    with_ports: bool
    above: int  # to add to the priority of a flow: the particular comes before the general

    def packets(self, family: Family) -> tuple[Term, ...]:
        return (ip(family),) if self.number is None else protocol(family, self.number)


_USUAL = Tracking(None, SNAT_ZONE, with_ports=True, above=0)
_BY_CLIENT_PORT = Tracking(SCTP, CLIENT_SNAT_ZONE.bits, with_ports=False, above=1)


def trackings(node: LocalNode) -> tuple[Tracking, ...]:
    return (_USUAL, _BY_CLIENT_PORT) if SCTP in datapath_of(node).portless else (_USUAL,)


def flows(node: LocalNode) -> Iterator[Flow]:
    if SCTP not in datapath_of(node).portless:
        return
    for family in node.families:
        yield from fragments(family)
        yield from answers(node, family)
        yield from look_up(family)
        yield from ports(family)
        yield from commit(node, family)


def fragments(family: Family) -> Iterator[Flow]:
    yield UN_SNAT.flow(HIGH, protocol(family, SCTP), ANY_FRAGMENT).then(
        goto(L3_FORWARDING), why="all but the first have no port to tell the zone: they go on without"
    )


def answers(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Answers to clients that were given another source. Their port tells nothing: it is the client's own."""
    sctp, to_node = protocol(family, SCTP), destination(node.addresses[family].ip)
    yield UPLINK.flow(NORMAL, to_node, sctp).then(
        goto(UN_SNAT), why="an answer to somebody who left as the Node, or for a NodePort, or the host's own?"
    )
    for given in (
        destination(node.gateway(family)),
        (*FROM_UPLINK, *to_node),
        (*FROM_GATEWAY, *destination(VIRTUAL_CLIENT[family])),
    ):
        yield UN_SNAT.flow(NORMAL + 1, given, sctp).then(
            *_snat_zone(SCTP_DST),
            Ct(CLIENT_SNAT_ZONE.bits, table=SCTP_DIRECTION.number),
            why="does an endpoint answer a client that it knows by this address?",
        )
    yield UN_SNAT.flow(LOW, sctp).then(goto(SCTP_DIRECTION), why="nobody was given this address")
    yield SCTP_DIRECTION.flow(HIGH, sctp, ANSWER).then(
        _zone(SCTP_DST),
        Ct(CLIENT_SNAT_ZONE.bits, table=CONNTRACK.number, nat=Nat()),
        why="it does: to the client's own address",
    )


def look_up(family: Family) -> Iterator[Flow]:
    sctp = protocol(family, SCTP)
    yield SCTP_DIRECTION.flow(NORMAL, sctp).then(
        _zone(SCTP_DST), Ct(CLIENT_ZONE.bits, table=CONNTRACK.number), why="does it answer the port that it goes to?"
    )
    known = Ct(CLIENT_ZONE.bits, table=CONNTRACK_STATE.number, nat=Nat())
    yield CONNTRACK.flow(HIGH, sctp, ANSWER).then(known, why="an answer: translate it as one")
    yield CONNTRACK.flow(NORMAL, sctp).then(
        *(_zone(SCTP_SRC), *_snat_zone(SCTP_SRC), Move(SCTP_DST.whole, ASKED_PORT.bits)),
        known,
        why="from the client: look its connection up and translate it",
    )


def ports(family: Family) -> Iterator[Flow]:
    of_service = (*protocol(family, SCTP), *CT_SERVICE)
    yield CONNTRACK_STATE.flow(TOP, of_service, VALID).then(
        goto(SCTP_PORTS), why="a connection to a Service: its addresses are translated, its ports are not"
    )
    yield SCTP_PORTS.flow(NORMAL, of_service, ANSWER).then(
        Move(CT_ASKED_PORT.bits, SCTP_SRC.whole), goto(L3_FORWARDING), why="an answer: from the port that was asked"
    )
    yield SCTP_PORTS.flow(NORMAL, of_service, ORIGINAL).then(
        Move(CT_ENDPOINT_PORT.bits, SCTP_DST.whole), goto(L3_FORWARDING), why="to the endpoint's port"
    )


def commit(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Connections that are of no Service."""
    begins = (*protocol(family, SCTP), NEW, CT_SERVICE.unset)
    yield CONNTRACK_COMMIT.flow(NORMAL + 1, begins).then(
        Ct(POD_ZONE, commit=True),
        Ct(CLIENT_ZONE.bits, commit=True),
        goto(L2_FORWARDING_OUT),
        why="the first packet of a connection: remember it",
    )
    when, table = (*protocol(family, SCTP), *SNAT, CT_SERVICE.unset), L2_FORWARDING_OUT.number
    as_node = Nat(source=node.addresses[family].ip)
    yield CONNTRACK_COMMIT.flow(HIGH + 1, when, NEW).then(
        Clone((Ct(POD_ZONE, commit=True, nat=as_node),)),  # a copy, for this already translates
        Ct(CLIENT_ZONE.bits, commit=True, sets=(CT_SNAT.set(),)),
        Ct(CLIENT_SNAT_ZONE.bits, table, commit=True, nat=as_node),
        why="a Pod's first packet to the outside: from now on this connection leaves as the Node",
    )
    yield CONNTRACK_COMMIT.flow(HIGH + 1, when, ESTABLISHED_ORIGINAL).then(
        Ct(CLIENT_SNAT_ZONE.bits, table, nat=Nat()), why="a Pod's connection to the outside leaves as the Node"
    )


def to_endpoint(endpoint: Endpoint, marks: tuple[Set | Move, ...]) -> Ct:
    """The port stands in the translation, too, for connection tracking that can do it."""
    return Ct(
        CLIENT_ZONE.bits,
        table=SCTP_PORTS.number,
        commit=True,
        nat=Nat(to=endpoint.address, ports=(endpoint.port, endpoint.port)),
        sets=(*marks, Set(CT_ENDPOINT_PORT.is_(endpoint.port)), Move(ASKED_PORT.bits, CT_ASKED_PORT.bits)),
    )


def _zone(port: Field) -> Move:
    return Move(port.whole, CLIENT_ZONE.bits)


def _snat_zone(port: Field) -> tuple[Move, Move]:
    """The port turned by one bit."""
    zone = CLIENT_SNAT_ZONE.bits
    return Move(port[0:15], Bits(zone.field, zone.low + 1, 15)), Move(port[15], Bits(zone.field, zone.low, 1))
