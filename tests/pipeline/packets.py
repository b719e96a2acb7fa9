"""A packet through the tables of a Program, as far as the tests of the core need it: matches, registers and gotos.

Connection tracking and output are where it stops: what then happens is for real packets to show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.openflow.actions import Goto, Set
from windlass.openflow.fields import Field, Term
from windlass.openflow.flows import Flow
from windlass.pipeline.layout import LAYOUT

Packet = Mapping[Field, int]  # the fields that it has; a condition on any other is not met


def way(flows: Iterable[Flow], packet: Packet, start: int = 0) -> list[str]:
    """The names of the tables that it meets, up to the one that drops it, sends it out or tracks it."""
    tables: dict[int, list[Flow]] = {}
    for flow in flows:
        tables.setdefault(flow.table, []).append(flow)
    met = []
    fields = dict(packet)
    table: int | None = start
    while table is not None:
        met.append(LAYOUT.tables[table].name)
        flow = decides(tables.get(table, ()), fields)
        table = None
        for action in flow.actions if flow else ():
            match action:
                case Set(term):
                    fields[term.field] = written(fields.get(term.field, 0), term)
                case Goto(later):
                    table = later
    return met


def decides(flows: Iterable[Flow], packet: Packet) -> Flow | None:
    return max((flow for flow in flows if meets(packet, flow)), key=lambda flow: flow.priority, default=None)


def meets(packet: Packet, flow: Flow) -> bool:
    return all(term.field in packet and (packet[term.field] ^ term.value) & mask_of(term) == 0 for term in flow.match)


def written(before: int, term: Term) -> int:
    return before & ~mask_of(term) | term.value


def mask_of(term: Term) -> int:
    return (1 << term.field.bits) - 1 if term.mask is None else term.mask
