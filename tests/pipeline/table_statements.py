"""What the flows of a Program do, compared with what their tables declare that they may do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from windlass.openflow.actions import (
    Actions,
    Clone,
    Ct,
    Goto,
    Learn,
    LearnMatch,
    Move,
    Resubmit,
    Set,
    ToController,
    ToGroup,
)
from windlass.openflow.fields import Field, FieldSet
from windlass.openflow.flows import Flow, Group
from windlass.pipeline.declarations import Layout, Table, TableField, band
from windlass.pipeline.registers import RegisterField
from windlass.program import Program


class Verb(Enum):
    MATCHES = "it matches"
    SETS = "it sets"
    TRACKS = "it tracks connections in zone"
    LEADS_TO = "it leads to table"
    PRIORITY = "it has priority"
    METER = "it uses meter"
    REASON = "it gives the agent the reason"


class Use(NamedTuple):
    """One thing that a flow does. `table` must declare it: of a learned flow, the table that it is learned in."""

    table: int
    verb: Verb
    what: Field | int | bytes
    mask: int = 0  # the bits of a field


def violations(layout: Layout, program: Program) -> Iterator[str]:
    """Sentences about flows that do what their table does not declare."""
    for part in program.values():
        groups = {group.identity: group for group in part.groups}
        for flow in part.flows:
            for use in uses(flow, groups):
                if not is_declared(layout, use):
                    name = layout.tables[use.table].name
                    yield f"table {name}, flow {flow.priority} ({flow.why}): {use.verb.value} {_word(layout, use)}"


def uses(flow: Flow, groups: Mapping[int, Group]) -> Iterator[Use]:
    yield Use(flow.table, Verb.PRIORITY, flow.priority)
    for term in flow.match:
        yield Use(flow.table, Verb.MATCHES, term.field, _mask(term.field, term.mask))
    yield from _done(flow.table, flow.actions, groups)


def _done(table: int, actions: Actions, groups: Mapping[int, Group]) -> Iterator[Use]:
    for action in actions:
        match action:
            case Set(term):
                yield Use(table, Verb.SETS, term.field, _mask(term.field, term.mask))
            case Move(to=bits):
                yield Use(table, Verb.SETS, bits.field, bits.mask)
            case Goto(target) | Resubmit(target):
                yield Use(table, Verb.LEADS_TO, target)
            case Ct(zone, target, sets=sets):
                yield Use(table, Verb.TRACKS, *((zone,) if isinstance(zone, int) else (zone.field, zone.mask)))
                yield from () if target is None else (Use(table, Verb.LEADS_TO, target),)
                yield from _done(table, sets, groups)
            case Clone(copied):
                yield from _done(table, copied, groups)
            case ToGroup(number):
                for bucket in groups[number].buckets:
                    yield from _done(table, bucket.actions, groups)
            case ToController(userdata, meter=meter):
                yield Use(table, Verb.REASON, userdata)
                yield from (Use(table, Verb.METER, meter),) if meter else ()
            case Learn(learned, priority, specs=specs):
                yield Use(learned, Verb.PRIORITY, priority)
                for spec in specs:
                    verb = Verb.MATCHES if isinstance(spec, LearnMatch) else Verb.SETS
                    yield Use(learned, verb, spec.to.field, spec.to.mask)


def is_declared(layout: Layout, use: Use) -> bool:
    table = layout.tables[use.table]
    match use.verb, use.what:
        case (Verb.MATCHES, field):
            return not use.mask & ~_declared(table.matches, field)
        case (Verb.SETS, field):
            return not use.mask & ~_declared(table.sets, field)
        case (Verb.TRACKS, Field() as field):
            return any(zone.bits.field is field and zone.bits.mask == use.mask for zone in _zone_fields(table))
        case (Verb.TRACKS, number):
            return number in table.zones
        case (Verb.LEADS_TO, number):
            return number in layout.next_tables(table)
        case (Verb.PRIORITY, number):
            return any(number in band(priority.value) for priority in layout.priorities)
        case (Verb.METER, number):
            return any(number in meters.value for meters in layout.meters)
        case (Verb.REASON, userdata):
            return any(userdata == reason.value for reason in layout.reasons)
    raise AssertionError(use)


def unused(layout: Layout, programs: Iterable[Program]) -> Iterator[str]:
    """Sentences about declarations that no flow of any of the Programs needs."""
    used: dict[tuple[int, Verb], set[tuple[Field | int | bytes, int]]] = {}
    for program in programs:
        for part in program.values():
            groups = {group.identity: group for group in part.groups}
            for use in (use for flow in part.flows for use in uses(flow, groups)):
                used.setdefault((use.table, use.verb), set()).add((use.what, use.mask))
    for table in layout.tables.values():
        for verb, declared in ((Verb.MATCHES, table.matches), (Verb.SETS, table.sets)):
            known = used.get((table.number, verb), set())
            for usable in declared:
                if not any(mask & _declared((usable,), field) for field, mask in known):
                    yield f"table {table.name}: no flow {verb.value.removeprefix('it ')} {usable.name}"
        zones = {what for what, _ in used.get((table.number, Verb.TRACKS), set())}
        for zone in table.zones:
            if (zone if isinstance(zone, int) else zone.bits.field) not in zones:
                yield f"table {table.name}: no flow tracks connections in zone {zone}"
        reached = {what for what, _ in used.get((table.number, Verb.LEADS_TO), set())}
        for number in layout.next_tables(table):
            if number not in reached:
                yield f"table {table.name}: no flow leads to {layout.tables[number].name}"


def _declared(usables: Iterable[TableField], field: Field | int | bytes) -> int:
    """The bits of this field that the declarations name."""
    mask = 0
    for usable in usables:
        if isinstance(usable, FieldSet):
            mask |= _mask(field) if field in usable.fields and isinstance(field, Field) else 0
        elif isinstance(usable, Field):
            mask |= _mask(usable) if usable is field else 0
        elif usable.bits.field is field:
            mask |= usable.bits.mask
    return mask


def _zone_fields(table: Table) -> list[RegisterField]:
    return [zone for zone in table.zones if not isinstance(zone, int)]


def _mask(field: Field, mask: int | None = None) -> int:
    return (1 << field.bits) - 1 if mask is None else mask


def _word(layout: Layout, use: Use) -> str:
    match use.what:
        case Field() as field:
            named = [one.name for one in layout.fields if one.bits.field is field and one.bits.mask & use.mask]
            return " and ".join(named) or field.name
        case int(number) if use.verb is Verb.LEADS_TO and number in layout.tables:
            return layout.tables[number].name
        case bytes(userdata):
            return repr(userdata)
    return str(use.what)
