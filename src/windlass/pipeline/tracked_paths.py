"""Follows packets through the tables, and finds uses of connection tracking that the Windows datapath does not support.

It tracks the kind of a packet, the kind of port on which it was received, and what is known about its connection. It
assumes that any other condition of a flow may be true or false. So it finds more paths than packets take, never fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from windlass.openflow.actions import (
    Action,
    Clone,
    Ct,
    Goto,
    Nat,
    Output,
    OutputTo,
    Resubmit,
    Set,
    ToController,
    ToGroup,
)
from windlass.openflow.fields import (
    CT_MARK,
    CT_STATE,
    ETH_TYPE,
    ICMP,
    ICMP_TYPE,
    ICMPV6,
    IP_PROTO,
    SCTP,
    TCP,
    UDP,
    Bits,
    Field,
    Term,
)
from windlass.openflow.flows import Flow, Group, Translations
from windlass.pipeline.packet_marks import SOURCE
from windlass.pipeline.tracking import CT_SERVICE

NEW, REPLY, INVALID, TRACKED = 0x01, 0x08, 0x10, 0x20  # of ct_state
_WHOLE_STATE = 0xFF
_IPV4, _IPV6, _ARP, _GRE, _IGMP = 0x0800, 0x86DD, 0x0806, 47, 2

# The kinds of packets. Connection tracking reports ICMP errors as invalid. It drops packets that are not `TRACKABLE`,
# or sends them to the slow path (IPv6).
KINDS: Mapping[str, Mapping[Field, int]] = {
    "TCP": {ETH_TYPE: _IPV4, IP_PROTO: TCP},
    "UDP": {ETH_TYPE: _IPV4, IP_PROTO: UDP},
    "an echo request": {ETH_TYPE: _IPV4, IP_PROTO: ICMP, ICMP_TYPE: 8},
    "an echo reply": {ETH_TYPE: _IPV4, IP_PROTO: ICMP, ICMP_TYPE: 0},
    "unreachable": {ETH_TYPE: _IPV4, IP_PROTO: ICMP, ICMP_TYPE: 3},
    "time exceeded": {ETH_TYPE: _IPV4, IP_PROTO: ICMP, ICMP_TYPE: 11},
    "parameter problem": {ETH_TYPE: _IPV4, IP_PROTO: ICMP, ICMP_TYPE: 12},
    "other ICMP": {ETH_TYPE: _IPV4, IP_PROTO: ICMP, ICMP_TYPE: 13},
    "SCTP": {ETH_TYPE: _IPV4, IP_PROTO: SCTP},
    "GRE": {ETH_TYPE: _IPV4, IP_PROTO: _GRE},
    "IGMP": {ETH_TYPE: _IPV4, IP_PROTO: _IGMP},
    "ARP": {ETH_TYPE: _ARP},
    "TCP over IPv6": {ETH_TYPE: _IPV6, IP_PROTO: TCP},
    "UDP over IPv6": {ETH_TYPE: _IPV6, IP_PROTO: UDP},
    "ICMPv6": {ETH_TYPE: _IPV6, IP_PROTO: ICMPV6},
}
ICMP_ERRORS = {"unreachable", "time exceeded", "parameter problem"}
TRACKABLE = {"TCP", "UDP", "an echo request", "an echo reply", *ICMP_ERRORS}

_OF_KIND = frozenset({ETH_TYPE, IP_PROTO, ICMP_TYPE})
_Known = tuple[int, int]  # a value, and the bits of it that are known
# The fields, and the bits of them, that are followed.
_FOLLOWED = {CT_STATE: _WHOLE_STATE, CT_MARK: CT_SERVICE.bits.mask, SOURCE.bits.field: SOURCE.bits.mask}
_FIELDS = tuple(_FOLLOWED)
_UNKNOWN, _ZERO = (0, 0), (0, 0xFFFFFFFF)


class _Choice(NamedTuple):
    """A select group, reduced to the different actions of its buckets."""

    buckets: frozenset[tuple[Action, ...]]


_Actions: TypeAlias = tuple[Action | _Choice, ...]
_TRANSLATES = Nat(ports=(0, 0))  # stands for every translation that a commit decides
_LEAVES = Output(0)  # stands for every output


class _Step(NamedTuple):
    """A flow, reduced to what matters here: many flows become the same step, with the highest of their priorities."""

    table: int
    terms: tuple[Term, ...]
    is_whole: bool  # the flow has no other terms
    does: _Actions


@dataclass(frozen=True, slots=True, eq=False)  # the hash of its identity is fast
class _Tables:
    steps: Mapping[int, Sequence[tuple[_Step, int]]]  # and their priorities, by table; the highest priority first


class _Packet(Struct, frozen=True):  # replaced and hashed thousands of times in a check: faster than a dataclass
    kind: str
    known: tuple[_Known, ...] = (_ZERO, _ZERO, _ZERO)  # of `_FIELDS`
    zones: frozenset[int | Bits] = frozenset()  # in which it was looked up or committed
    translated: frozenset[int | Bits] = frozenset()  # in which its connection got a translation
    is_chosen: bool = False  # a group has just chosen a bucket for it

    @property
    def is_new(self) -> bool:
        return self._has(NEW | TRACKED, NEW | TRACKED)

    @property
    def is_of_client(self) -> bool:
        """In the direction of its connection's first packet."""
        return self.is_new or self._has(TRACKED, TRACKED | REPLY)

    @property
    def is_invalid(self) -> bool:
        return self._has(INVALID, INVALID)

    def _has(self, state: int, bits: int) -> bool:
        value, known = self.known[0]
        return known & bits == bits and value & bits == state

    def meeting(self, terms: Collection[Term]) -> _Packet | None:
        """The packet with what is known if the terms are true; None if they cannot be true."""
        if not terms:
            return self
        known = list(self.known)
        for term in terms:
            if term.field in _OF_KIND:
                if KINDS[self.kind].get(term.field) != term.value:
                    return None
                continue
            at, mask = _FIELDS.index(term.field), _mask(term)
            value, bits = known[at]
            if (value ^ term.value) & bits & mask:
                return None
            known[at] = (value | term.value, bits | mask)
        return replace(self, known=tuple(known))

    def writing(self, term: Term) -> _Packet:
        at, mask = _FIELDS.index(term.field), _mask(term)
        value, bits = self.known[at]
        written = (value & ~mask | term.value, bits | mask)
        return replace(self, known=(*self.known[:at], written, *self.known[at + 1 :]))

    def after(self, ct: Ct) -> _Packet:
        """The packet for which the actions after the ct continue."""
        translates = ct.nat is _TRANSLATES
        return replace(
            self,
            zones=self.zones | {ct.zone},
            translated=self.translated | {ct.zone} if translates else self.translated,
            is_chosen=self.is_chosen and not translates,
        )

    def looked_up(self, ct: Ct) -> _Packet:
        """The packet that continues in the table of the ct, with the state and the mark of its connection."""
        state = (TRACKED, TRACKED)
        if self.kind in ICMP_ERRORS:
            state = (INVALID | TRACKED, _WHOLE_STATE)
        elif ct.commit and self.is_of_client:
            state = (TRACKED, TRACKED | REPLY)
        packet = replace(self.after(ct), known=(state, _UNKNOWN, *self.known[2:]))
        for action in ct.sets:
            if isinstance(action, Set) and (part := _followed_part(action.term)) is not None:
                packet = packet.writing(part)
        return packet


def mistakes(flows: Iterable[Flow], groups: Iterable[Group]) -> Iterator[tuple[str, ...]]:
    """For each kind of packet, a sentence for each use of `ct` that the Windows datapath does not support."""
    choices = {group.identity: _choice(group) for group in groups}
    steps: dict[_Step, int] = {}
    for flow in flows:
        step = _step(flow, choices)
        steps[step] = max(flow.priority, steps.get(step, 0))
    tables = _tables(frozenset(steps.items()))
    return (_mistakes(kind, tables) for kind in KINDS)


def _choice(group: Group) -> _Choice:
    if isinstance(group.buckets, Translations):
        return _Choice(frozenset({(replace(group.buckets.does, nat=_TRANSLATES),)}))
    return _Choice(frozenset(tuple(_reduced(bucket.actions)) for bucket in group.buckets))


def _step(flow: Flow, choices: Mapping[int, _Choice]) -> _Step:
    terms = tuple(followed for term in flow.match if (followed := _followed_part(term)) is not None)
    does = (
        choices.get(action.group, _NO_CHOICE) if isinstance(action, ToGroup) else action
        for action in _reduced(flow.actions)
    )
    return _Step(flow.table, terms, terms == tuple(flow.match), tuple(does))


def _reduced(actions: Iterable[Action]) -> Iterator[Action]:
    for action in actions:
        match action:
            case Goto() | Resubmit() | ToGroup():
                yield action
            case Set(term) if (part := _followed_part(term)) is not None and part.field in _FOLLOWED:
                yield Set(part)
            case Ct(nat=Nat() as nat) if nat != Nat():
                yield replace(action, nat=_TRANSLATES)
            case Ct():
                yield action
            case Clone(copied):
                yield from _reduced(copied)
            case Output() | OutputTo() | ToController():
                yield _LEAVES


@lru_cache(64)  # Services and Pods differ in addresses and numbers, rarely in steps
def _tables(steps: frozenset[tuple[_Step, int]]) -> _Tables:
    tables: dict[int, list[tuple[_Step, int]]] = {}
    for step, priority in sorted(steps, key=lambda one: -one[1]):
        tables.setdefault(step.table, []).append((step, priority))
    return _Tables(tables)


@lru_cache(64 * len(KINDS))
def _mistakes(kind: str, tables: _Tables) -> tuple[str, ...]:
    found: dict[str, None] = {}
    waiting = [(min(tables.steps, default=0), _Packet(kind))]
    seen = set(waiting)
    while waiting:
        table, packet = waiting.pop()
        for step, priority in tables.steps.get(table, ()):
            met = packet.meeting(step.terms)
            if met is None:
                continue
            for sentence, following in _followed(met, step.does):
                if sentence:
                    found[f"table {table} priority {priority}: {sentence}"] = None
                elif following not in seen:
                    seen.add(following)
                    waiting.append(following)
            if not step.does and met.is_invalid and met.kind in ICMP_ERRORS and _asks_for_invalid(step):
                where = f"table {table} priority {priority}"
                found[f"{where}: ct reports ICMP errors ({met.kind}) as invalid, and this drops them"] = None
            if step.is_whole and met == packet:
                break  # no such packet gets to a flow with a lower priority
    return tuple(found)


def _followed(packet: _Packet, actions: _Actions) -> Iterator[tuple[str, tuple[int, _Packet]]]:
    """Each mistake as a sentence; and, with an empty sentence, each table in which the packet continues."""
    nowhere = (0, packet)
    for action in actions:
        match action:
            case Set(term):
                packet = packet.writing(term)
            case Goto(table) | Resubmit(table):
                yield "", (table, packet)
            case _Choice(buckets):
                if not packet.is_new:
                    yield "a group would choose again for packets that do not begin a connection", nowhere
                for bucket in buckets if not packet.is_chosen else ():  # with affinity, a packet may reach it twice
                    yield from _followed(replace(packet, is_chosen=True), bucket)
            case Ct():
                yield from ((sentence, nowhere) for sentence in _of_ct(packet, action))
                if packet.kind in TRACKABLE and action.table is not None:
                    yield "", (action.table, packet.looked_up(action))
                packet = packet.after(action)
            case _ if packet.is_chosen:
                yield "the choice of a group must be committed as a translation at once", nowhere


def _of_ct(packet: _Packet, ct: Ct) -> Iterator[str]:
    if packet.kind not in TRACKABLE:
        yield f"ct does not support {packet.kind}"
    if ct.zone in packet.zones and not packet.is_of_client:
        yield f"a second ct in zone {ct.zone} treats a reply as a packet of the client"
    if ct.commit and not packet.is_new and not (packet.is_of_client and _only_marks(ct)):
        yield "a commit must be for a packet that begins a connection, or only mark the connection of a client's packet"
    if ct.nat is _TRANSLATES and ct.zone in packet.translated:
        yield f"a second commit in zone {ct.zone} does not change the translation"


def _only_marks(ct: Ct) -> bool:
    """ct finds the connection of a client's packet by its first tuple, and sets its mark."""
    only_marks = all(isinstance(action, Set) and action.term.field is CT_MARK for action in ct.sets)
    return only_marks and bool(ct.sets) and ct.nat is None


def _asks_for_invalid(step: _Step) -> bool:
    return any(term.field is CT_STATE and term.value & INVALID for term in step.terms)


def _followed_part(term: Term) -> Term | None:
    if term.field in _OF_KIND:
        return term
    mask = _FOLLOWED.get(term.field, 0) & _mask(term)
    if not mask:
        return None
    return term if mask == _mask(term) else Term(term.field, term.value & mask, mask)


def _mask(term: Term) -> int:
    return (1 << term.field.bits) - 1 if term.mask is None else term.mask


_NO_CHOICE = _Choice(frozenset())
