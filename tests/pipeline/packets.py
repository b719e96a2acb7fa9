"""A model of the switch: packets through the tables, groups and connections of a Program.

It covers what the tests of the core need: timeouts and ICMP errors are tested with real packets. Flows see no port of a
fragment, but connection tracking knows its connection. Where Open vSwitch has a choice (the bucket of a group, the port
of a translation), the caller of the model chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from windlass.model.families import IPAddress
from windlass.openflow.actions import (
    Actions,
    Clone,
    Ct,
    Goto,
    Learn,
    LearnMatch,
    Move,
    Nat,
    Output,
    OutputTo,
    Resubmit,
    Set,
    ToController,
    ToGroup,
)
from windlass.openflow.fields import (
    CT_LABEL,
    CT_MARK,
    CT_STATE,
    CT_ZONE,
    ETH_TYPE,
    IN_PORT,
    IN_PORT_PORT,
    IP_FRAG,
    IP_PROTO,
    IPV4_DST,
    IPV4_SRC,
    IPV6_DST,
    IPV6_SRC,
    REGISTERS,
    SCTP,
    SCTP_DST,
    SCTP_SRC,
    TCP,
    TCP_DST,
    TCP_FLAGS,
    TCP_SRC,
    UDP,
    UDP_DST,
    UDP_SRC,
    Bits,
    Field,
    Term,
)
from windlass.openflow.flows import Flow, Group
from windlass.openflow.matches import match as match_of
from windlass.pipeline.layout import LAYOUT
from windlass.program import Program

Packet = Mapping[Field, int]  # the fields of the packet; a condition on any other field does not match

NEW, ESTABLISHED, REPLY, INVALID, TRACKED, OTHER_SOURCE = 0x01, 0x02, 0x08, 0x10, 0x20, 0x40  # of ct_state
SYN, ACK, SYN_ACK = 0x02, 0x10, 0x12

_ETH_TYPES = {4: 0x0800, 6: 0x86DD}
_ADDRESSES: dict[int, tuple[Callable[[int], IPAddress], Field, Field]] = {
    0x0800: (IPv4Address, IPV4_SRC, IPV4_DST),
    0x86DD: (IPv6Address, IPV6_SRC, IPV6_DST),
}
_PORTS = {TCP: (TCP_SRC, TCP_DST), UDP: (UDP_SRC, UDP_DST), SCTP: (SCTP_SRC, SCTP_DST)}
_PORT_FIELDS = frozenset(field for ports in _PORTS.values() for field in ports)
_UNSET = {**dict.fromkeys(REGISTERS, 0), CT_STATE: 0, CT_ZONE: 0, CT_MARK: 0, CT_LABEL: 0, IP_FRAG: 0}
FRAGMENT = 3  # a later fragment; a flow sees no port of the first one either


# One table after the other, up to connection tracking --------------------------------------------------------------


def way(flows: Iterable[Flow], packet: Packet, start: int = 0) -> list[str]:
    """The names of the tables that the packet passes, up to the one that drops it, sends it out or tracks it."""
    return [LAYOUT.tables[table].name for table, _ in decisions(flows, packet, start)]


def decisions(flows: Iterable[Flow], packet: Packet, start: int = 0) -> Iterator[tuple[int, Flow | None]]:
    """The same tables by number, each with the flow that decides there."""
    tables = by_table(flows)
    fields = dict(packet)
    table: int | None = start
    while table is not None:
        flow = decides(tables.get(table, ()), fields)
        yield table, flow
        table = None
        for action in flow.actions if flow else ():
            match action:
                case Set(term):
                    fields[term.field] = written(fields.get(term.field, 0), term)
                case Goto(later):
                    table = later


def decides(flows: Iterable[Flow], packet: Packet) -> Flow | None:
    return max((flow for flow in flows if meets(packet, flow)), key=lambda flow: flow.priority, default=None)


def meets(packet: Packet, flow: Flow) -> bool:
    shown = {**packet, **dict.fromkeys(_PORT_FIELDS, 0)} if packet.get(IP_FRAG) else packet
    return all(term.field in shown and (shown[term.field] ^ term.value) & mask_of(term) == 0 for term in flow.match)


def written(before: int, term: Term) -> int:
    return before & ~mask_of(term) | term.value


def mask_of(term: Term) -> int:
    return (1 << term.field.bits) - 1 if term.mask is None else term.mask


def by_table(flows: Iterable[Flow]) -> dict[int, list[Flow]]:
    tables: dict[int, list[Flow]] = {}
    for flow in flows:
        tables.setdefault(flow.table, []).append(flow)
    return tables


# The ends of a connection -------------------------------------------------------------------------------------------


class Ends(NamedTuple):
    """The two ends of a connection, as a packet names them."""

    source: IPAddress
    source_port: int
    destination: IPAddress
    port: int
    protocol: int = TCP

    @property
    def back(self) -> Ends:
        """As in a reply."""
        return self._replace(
            source=self.destination, source_port=self.port, destination=self.source, port=self.source_port
        )

    @property
    def fields(self) -> dict[Field, int]:
        eth_type = _ETH_TYPES[self.source.version]
        _, source, destination = _ADDRESSES[eth_type]
        source_port, port = _PORTS[self.protocol]
        return {
            ETH_TYPE: eth_type,
            source: int(self.source),
            destination: int(self.destination),
            IP_PROTO: self.protocol,
            source_port: self.source_port,
            port: self.port,
        }


def ends(packet: Packet) -> Ends:
    address, source, destination = _ADDRESSES[packet[ETH_TYPE]]
    source_port, port = _PORTS[packet[IP_PROTO]]
    return Ends(
        address(packet[source]), packet[source_port], address(packet[destination]), packet[port], packet[IP_PROTO]
    )


# All tables, groups and connections --------------------------------------------------------------------------------


@dataclass(slots=True)
class Connection:
    original: Ends  # of its first packet
    answer: Ends  # of its replies
    mark: int = 0
    label: int = 0
    answered: bool = False


@dataclass(slots=True)
class Trip:
    """What happened to one packet: sent out, or handed to the agent; otherwise it was dropped."""

    out: list[tuple[int, Packet]] = field(default_factory=list)
    told: list[bytes] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    tracked: int = 0  # ct actions
    passes: int = 1  # through the datapath: each ct that leads to a table, and each group, is a further one
    buckets: int = 0  # how many the group had
    connection: tuple[int, Connection, bool] | None = (
        None  # what the last look-up found: zone, connection, whether it is a reply
    )


class Switch:
    """`portless`: protocols whose ports its connection tracking does not know. `reassembles`: connection tracking never
    passes on a fragment.
    """

    def __init__(self, program: Program, portless: Collection[int] = (), *, reassembles: bool = True) -> None:
        self._portless = portless
        self._reassembles = reassembles
        self._connections: dict[tuple[int, Ends], Connection] = {}  # by zone, each under both directions
        self.hold(program)

    def hold(self, program: Program) -> None:
        """This Program from now on. Connections stay."""
        parts = list(program.values())
        self._tables = by_table(flow for part in parts for flow in part.flows)
        self._groups: dict[int, Group] = {group.identity: group for part in parts for group in part.groups}

    def send(self, packet: Packet, bucket: int = 0) -> Trip:
        """Process a packet. Groups choose this bucket, modulo the number of their buckets."""
        trip = Trip()
        self._enter(0, {**_UNSET, **packet}, trip, bucket)
        return trip

    def _enter(self, table: int, fields: dict[Field, int], trip: Trip, bucket: int) -> None:
        trip.tables.append(LAYOUT.tables[table].name)
        flow = decides(self._tables.get(table, ()), fields)
        if flow is not None:
            self._do(flow.actions, fields, trip, bucket)

    def _do(self, actions: Actions, fields: dict[Field, int], trip: Trip, bucket: int) -> None:
        for action in actions:
            match action:
                case Set() | Move():
                    write(action, fields, fields)
                case Goto(table) | Resubmit(table):
                    self._enter(table, fields, trip, bucket)
                case Learn():
                    self._learn(action, fields)
                case Clone(copied):
                    self._do(copied, dict(fields), copy := Trip(), bucket)
                    trip.tracked += copy.tracked
                case Ct(table=table):
                    trip.tracked += 1
                    tracked = self._track(action, fields, trip)
                    if table is not None:
                        trip.passes += 1
                        self._enter(table, tracked, trip, bucket)
                case ToGroup(number):
                    group = self._groups[number]
                    buckets = group.buckets
                    trip.passes += group.by is None  # a field of the packet needs no further one
                    trip.buckets = len(buckets)
                    self._do(buckets[bucket % len(buckets)].actions, dict(fields), trip, bucket)
                case Output(port):
                    _leave(fields, fields[IN_PORT] if port == IN_PORT_PORT else port, trip, back=port == IN_PORT_PORT)
                case OutputTo(bits):
                    _leave(fields, read(bits, fields), trip, back=False)
                case ToController(userdata):
                    trip.told.append(userdata)
                case _:
                    raise NotImplementedError(action)

    def _learn(self, action: Learn, fields: Packet) -> None:
        """Install a flow made from this packet, in place of one with the same match."""
        matches: list[Term] = []
        loads: list[Set] = []
        for spec in action.specs:
            term = spec.to(spec.source if isinstance(spec.source, int) else read(spec.source, fields))
            if isinstance(spec, LearnMatch):
                matches.append(term)
            else:
                loads.append(Set(term))
        learned = Flow(action.table, action.priority, match_of(*matches), tuple(loads), "learned")
        table = self._tables.setdefault(action.table, [])
        table[:] = [*(flow for flow in table if flow.match != learned.match), learned]

    def _track(self, action: Ct, fields: Packet, trip: Trip) -> dict[Field, int]:
        """The packet as it is after connection tracking."""
        found = self._found(action, fields, trip)
        after = dict(fields)
        after[CT_ZONE] = action.zone if isinstance(action.zone, int) else read(action.zone, fields)
        if self._reassembles:
            after[IP_FRAG] = 0
        if found is None:
            after[CT_STATE], after[CT_MARK], after[CT_LABEL] = TRACKED | INVALID, 0, 0
            return after
        known, is_answer = found
        if action.nat is not None:
            after |= self._translated(ends(fields), known.original if is_answer else known.answer).fields
        if action.commit:
            marks = {CT_MARK: known.mark, CT_LABEL: known.label}
            for change in action.sets:
                write(change, fields, marks)
            known.mark, known.label = marks[CT_MARK], marks[CT_LABEL]
        # Until there is a reply, all packets of the client are as the first one.
        after[CT_STATE] = TRACKED | (ESTABLISHED if known.answered else NEW) | (REPLY if is_answer else 0)
        if action.nat is not None and not is_answer and known.original.source != known.answer.destination:
            after[CT_STATE] |= OTHER_SOURCE
        after[CT_MARK], after[CT_LABEL] = known.mark, known.label
        return after

    def _translated(self, named: Ends, other_direction: Ends) -> Ends:
        translated = other_direction.back
        if named.protocol in self._portless:
            return translated._replace(source_port=named.source_port, port=named.port)
        return translated

    def _found(self, action: Ct, fields: Packet, trip: Trip) -> tuple[Connection, bool] | None:
        """Its connection, and whether it is a reply; None if it belongs to none and cannot begin one."""
        zone = action.zone if isinstance(action.zone, int) else read(action.zone, fields)
        if trip.connection and trip.connection[0] == zone:
            return trip.connection[1:]  # also if it has been translated since
        named = self._known_of(ends(fields))
        known = self._connections.get((zone, named))
        if known is None:
            if fields.get(TCP_FLAGS) == SYN_ACK:
                return None
            if not action.commit:
                return Connection(named, named.back), False
            committed = self._commit(zone, named, action.nat)
            if committed is None:
                return None
            known = committed
        is_answer = named == known.answer
        known.answered |= is_answer
        trip.connection = (zone, known, is_answer)
        return known, is_answer

    def _known_of(self, named: Ends) -> Ends:
        """The part of a packet by which connection tracking finds its connection."""
        return named._replace(source_port=0, port=0) if named.protocol in self._portless else named

    def _commit(self, zone: int, named: Ends, nat: Nat | None) -> Connection | None:
        """None if its replies could not be distinguished from those of another connection."""
        connection = Connection(named, self._known_of(self._answer(zone, named, nat)))
        if (zone, connection.answer) in self._connections:
            return None
        for direction in (connection.original, connection.answer):
            self._connections[zone, direction] = connection
        return connection

    def _answer(self, zone: int, named: Ends, nat: Nat | None) -> Ends:
        """The ends of its replies, once it is translated."""
        match nat:
            case Nat(source=None, to=None) | None:
                return named.back
            case Nat(to=None, source=address, ports=(first, last)) if address:
                candidates = (named._replace(source=address, source_port=port).back for port in range(first, last + 1))
                return next(answer for answer in candidates if (zone, answer) not in self._connections)
            case Nat(to=None, source=address, ports=None) if address:
                return named._replace(source=address).back
            case Nat(source=None, to=address, ports=(first, last)) if address and first == last:
                return named._replace(destination=address, port=first).back
        raise NotImplementedError(nat)


def _leave(fields: Packet, port: int, trip: Trip, *, back: bool) -> None:
    if back or port != fields[IN_PORT]:  # an output to the ingress port does nothing, except by IN_PORT
        trip.out.append((port, dict(fields)))


def write(change: Set | Move, packet: Packet, target: dict[Field, int]) -> None:
    """Into a field of `target`: a value, or bits of the packet."""
    term = change.term if isinstance(change, Set) else change.to(read(change.source, packet))
    target[term.field] = written(target.get(term.field, 0), term)


def read(bits: Bits, packet: Packet) -> int:
    return (packet[bits.field] & bits.mask) >> bits.low
