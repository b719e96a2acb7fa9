"""Hypothesis strategies for every flow, group and meter that our types can express and Open vSwitch accepts."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from windlass.model.families import Family
from windlass.openflow import conditions, fields
from windlass.openflow.actions import (
    Action,
    Actions,
    Clone,
    Ct,
    Goto,
    Learn,
    LearnLoad,
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
from windlass.openflow.fields import Bits, Field, Notation, Term
from windlass.openflow.flows import Bucket, Flow, Group, Meter
from windlass.openflow.matches import match

T = TypeVar("T")

GROUPS = (1, 2, 3)  # the groups that a flow may lead to: the test must have made them
METERS = (1, 7)  # no test needs to make them: a meter that is not there limits nothing

_u8, _u16, _u32, _u64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
_tables = st.integers(0, 253)
_real_ports = st.integers(1, 0xFEFF)
_ports = st.one_of(_real_ports, st.just(fields.LOCAL_PORT))

_METADATA = (
    *(fields.TUN_IPV4_SRC, fields.TUN_IPV4_DST, fields.TUN_IPV6_SRC, fields.TUN_IPV6_DST),
    *fields.REGISTERS,
    fields.PKT_MARK,
)
_TRACKED = (fields.CT_MARK, fields.CT_LABEL)
_ETHERNET = (fields.ETH_SRC, fields.ETH_DST)


@dataclass(frozen=True)
class Packets:
    """A kind of packets: the conditions that select it, and the fields that such packets have."""

    conditions: tuple[Term, ...] = ()
    family: Family | None = None
    readable: tuple[Field, ...] = _ETHERNET
    writable: tuple[Field, ...] = _ETHERNET


def _ip(family: Family) -> Packets:
    source, to = (fields.IPV4_SRC, fields.IPV4_DST) if family is Family.IPV4 else (fields.IPV6_SRC, fields.IPV6_DST)
    addresses = (*_ETHERNET, source, to)
    return Packets((conditions.ip(family),), family, addresses, addresses)


def _transport(family: Family, protocol: int, *ports: Field, read_only: tuple[Field, ...] = ()) -> Packets:
    ip = _ip(family)
    return Packets(
        conditions.protocol(family, protocol), family, (*ip.readable, *ports, *read_only), (*ip.writable, *ports)
    )


def _neighbours(kind: int, link_layer: Field) -> Packets:
    ip = _ip(Family.IPV6)
    found = (fields.ND_RESERVED, fields.ND_TARGET, fields.ND_OPTIONS_TYPE, link_layer)
    return Packets(conditions.icmp(Family.IPV6, kind), Family.IPV6, (*ip.readable, *found), (*ip.writable, *found))


_ARP = (fields.ARP_OP, fields.ARP_SPA, fields.ARP_TPA, fields.ARP_SHA, fields.ARP_THA)
KINDS = (
    Packets(),
    Packets((fields.ETH_TYPE(0x88CC),)),
    Packets((conditions.ARP,), None, (*_ETHERNET, *_ARP), (*_ETHERNET, *_ARP)),
    *(_ip(family) for family in Family),
    *(
        _transport(family, fields.TCP, fields.TCP_SRC, fields.TCP_DST, read_only=(fields.TCP_FLAGS,))
        for family in Family
    ),
    *(_transport(family, fields.UDP, fields.UDP_SRC, fields.UDP_DST) for family in Family),
    *(_transport(family, fields.SCTP, fields.SCTP_SRC, fields.SCTP_DST) for family in Family),
    _transport(Family.IPV4, fields.ICMP, fields.ICMP_TYPE, fields.ICMP_CODE),
    _transport(Family.IPV6, fields.ICMPV6, fields.ICMPV6_TYPE, fields.ICMPV6_CODE),
    _neighbours(135, fields.ND_SLL),
    _neighbours(136, fields.ND_TLL),
)


def _values(field: Field, *, masked: bool) -> SearchStrategy[Term]:
    every_bit = (1 << field.bits) - 1
    if field is fields.ARP_OP:
        every_bit = 0xFF
    exact = st.integers(0, every_bit).map(field)
    if not (masked and field.maskable):
        return exact
    # ovs-ofctl takes an IPv6 mask that begins with a decimal digit for the length of a prefix.
    always = 0xF << 124 if field.notation is Notation.IPV6 else 0
    under_mask = st.tuples(st.integers(0, every_bit), st.integers(1, every_bit).map(lambda mask: mask | always))
    return st.one_of(exact, under_mask.map(lambda pair: field(pair[0] & pair[1], pair[1])))


_WRITTEN = {field: _values(field, masked=True).map(Set) for field in fields.FIELDS}
_CONDITIONS = {
    **{field: _values(field, masked=True) for field in fields.FIELDS},
    fields.IN_PORT: _ports.map(fields.IN_PORT),
    # An invalid connection cannot be committed, so Open vSwitch refuses a flow that says +inv and commits.
    fields.CT_STATE: st.tuples(_u8, st.integers(1, 0xFF)).map(
        lambda pair: fields.CT_STATE(pair[0] & pair[1] & ~0x10, pair[1])
    ),
}
# The five things that a person can say about fragments, and ovs-ofctl read.
_FRAGMENTS = st.sampled_from(
    [
        *(fields.IP_FRAG(0), fields.IP_FRAG(1), fields.IP_FRAG(3)),
        *(fields.IP_FRAG(1, 1), fields.IP_FRAG(0, 2)),
    ]
)
_ANYWHERE = (fields.IN_PORT, *_METADATA, fields.CT_STATE, fields.CT_ZONE, *_TRACKED)


def _some(of: tuple[T, ...], most: int) -> SearchStrategy[list[T]]:
    return st.lists(st.sampled_from(of), max_size=most, unique=True)


@st.composite
def _matches(draw: DrawFn, packets: Packets) -> tuple[Term, ...]:
    chosen = [*draw(_some(_ANYWHERE, 4)), *draw(_some(packets.readable, 3))]
    terms = [draw(_CONDITIONS[field]) for field in chosen]
    transport = len(packets.conditions) > 1
    if packets.family and not transport and draw(st.booleans()):  # later fragments have no ports to match on
        terms.append(draw(_FRAGMENTS))
    return match(packets.conditions, terms)


@st.composite
def _bits(draw: DrawFn, of: tuple[Field, ...], width: int | None = None) -> Bits:
    field = draw(st.sampled_from([field for field in of if width is None or field.bits >= width]))
    if draw(st.booleans()) and width in {None, field.bits}:
        return field.whole
    width = draw(st.integers(1, field.bits)) if width is None else width
    low = draw(st.integers(0, field.bits - width))
    return Bits(field, low, width)


@st.composite
def _moves(draw: DrawFn, packets: Packets) -> Move:
    source = draw(_bits((*_METADATA, *_TRACKED, fields.IN_PORT, *packets.writable)))
    return Move(source, draw(_bits((*_METADATA, *packets.writable), source.width)))


def _address(family: Family) -> SearchStrategy[IPv4Address | IPv6Address]:
    return (
        st.integers(1, (1 << 32) - 1).map(IPv4Address)
        if family is Family.IPV4
        else st.integers(1, (1 << 128) - 1).map(IPv6Address)
    )


@st.composite
def _nats(draw: DrawFn, family: Family) -> Nat:
    ports = st.lists(st.integers(1, 0xFFFF), min_size=2, max_size=2).map(lambda pair: tuple(sorted(pair)))
    span = draw(st.one_of(st.none(), st.integers(1, 0xFFFF).map(lambda port: (port, port)), ports))
    address = draw(_address(family))
    return Nat(source=address, ports=span) if draw(st.booleans()) else Nat(to=address, ports=span)


@st.composite
def _tracking(draw: DrawFn, family: Family) -> Ct:
    zone = draw(st.one_of(_u16, _bits((*fields.REGISTERS, fields.CT_MARK, fields.CT_LABEL), 16)))
    table = draw(st.one_of(st.none(), _tables))
    if not draw(st.booleans()):
        return Ct(zone, table, nat=draw(st.sampled_from([None, Nat()])))
    nat = draw(st.one_of(st.none(), st.just(Nat()), _nats(family)))
    sets = draw(st.lists(st.one_of(_WRITTEN[fields.CT_MARK], _WRITTEN[fields.CT_LABEL]), max_size=2))
    return Ct(zone, table, commit=True, nat=nat, sets=tuple(sets))


def _copies(family: Family) -> SearchStrategy[Clone]:
    return st.lists(_tracking(family), max_size=2).map(lambda actions: Clone(tuple(actions)))


@st.composite
def _learning(draw: DrawFn, packets: Packets) -> Learn:
    # A learned flow needs the conditions without which its fields make no sense, like any other.
    specs: list[LearnMatch | LearnLoad] = [LearnMatch(term.field.whole, term.value) for term in packets.conditions]
    for field in draw(_some((*packets.readable, *fields.REGISTERS), 3)):
        to = draw(_bits((field,)))
        specs.append(
            LearnMatch(to, draw(st.integers(0, (1 << to.width) - 1)))
            if draw(st.booleans())
            else LearnMatch(
                to, draw(_bits((*fields.REGISTERS, *packets.readable, fields.IN_PORT, fields.CT_LABEL), to.width))
            )
        )
    for field in draw(_some((*fields.REGISTERS, fields.PKT_MARK), 2)):
        to = draw(_bits((field,)))
        specs.append(
            LearnLoad(to, draw(st.integers(0, (1 << to.width) - 1)))
            if draw(st.booleans())
            else LearnLoad(
                to, draw(_bits((*fields.REGISTERS, *packets.readable, fields.IN_PORT, fields.CT_LABEL), to.width))
            )
        )
    return Learn(
        *(draw(_tables), draw(_u16), draw(_u64), tuple(specs)),
        idle_timeout=draw(_u16),
        delete_learned=draw(st.booleans()),
    )


_SENT = st.builds(ToController, st.binary(min_size=1, max_size=24), st.sampled_from((0, *METERS)))
_OUTPUTS = st.one_of(_real_ports, st.sampled_from([fields.LOCAL_PORT, fields.IN_PORT_PORT])).map(Output)


def _actions(packets: Packets) -> SearchStrategy[Action]:
    kinds: list[SearchStrategy[Action]] = [
        _OUTPUTS,
        _bits(fields.REGISTERS).map(OutputTo),
        st.sampled_from((*_METADATA, *packets.writable)).flatmap(_WRITTEN.__getitem__),
        _moves(packets),
        _tables.map(Resubmit),
        st.sampled_from(GROUPS).map(ToGroup),
        _SENT,
        _learning(packets),
    ]
    if packets.family:
        kinds += [_tracking(packets.family), _copies(packets.family)]
    return st.one_of(kinds)


@st.composite
def flows(draw: DrawFn) -> Flow:
    packets = draw(st.sampled_from(KINDS))
    table = draw(_tables)
    does: Actions = tuple(draw(st.lists(_actions(packets), max_size=4)))
    if draw(st.booleans()):
        does += (Goto(draw(st.integers(table + 1, 254))),)
    return Flow(table, draw(_u16), draw(_matches(packets)), does, "a property holds for it")


@st.composite
def _buckets(draw: DrawFn, identity: int) -> Bucket:
    family = draw(st.sampled_from(Family))
    does = st.one_of(
        _OUTPUTS,
        _tracking(family),
        _copies(family),
        _tables.map(Resubmit),
        st.sampled_from(fields.REGISTERS).flatmap(_WRITTEN.__getitem__),
    )
    return Bucket(identity, tuple(draw(st.lists(does, max_size=3))), draw(_u16))


@st.composite
def groups(draw: DrawFn) -> Group:
    identities = draw(st.lists(st.integers(0, 0xFFFFFF00), max_size=4, unique=True))
    buckets = tuple(draw(_buckets(identity)) for identity in identities)
    by = draw(st.sampled_from((None, fields.IPV4_SRC, fields.IPV6_SRC)))
    return Group(draw(st.integers(1, 0xFFFFFEFF)), buckets, "a property holds for it", by)


def meters() -> SearchStrategy[Meter]:
    numbers = st.integers(1, 0xFFFF)
    return st.builds(Meter, st.integers(1, 100), numbers, numbers, st.just("a test"))
