"""docs/pipeline.md: stages, tables and every number of the pipeline, from their declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from windlass.cli.render import state_of
from windlass.lab.scenarios import scenario_files
from windlass.model.families import Family
from windlass.openflow.notation import mac_text
from windlass.pipeline import reserved
from windlass.pipeline.declarations import MISS, Onward, Stage, Table, TableField, band
from windlass.pipeline.layout import LAYOUT
from windlass.pipeline.registers import RegisterField
from windlass.pipeline.symbols import flow_symbols
from windlass.program import program

INTRODUCTION = """\
Every packet that the switch of a Node handles passes the tables below, in order. This page is generated from their
declarations in `src/windlass/pipeline` (`layout.py`, `packet_marks.py`, `tracking.py`, `priorities.py`, `reserved.py`);
tests compare every flow with them.

A **stage** is a step of the path. A flow that leaves its stage names the stage where the packet goes on, so a table can
be added to a stage without a change of other flows. Most packets take the **main path** (bold below); other
tables take only the packets that a flow sends there. *Onward* is the next table of the main path. Tables lead only
forward, so a packet cannot loop. A packet that no flow of a table matches takes the table's **miss**, which is a flow
of its own (priority 0)."""

ADDING = """\
## Adding a table

1. Declare the table in its stage, in `src/windlass/pipeline/layout.py`: a free number between its neighbours, what it
   decides, its miss, and what its flows may match, set and lead to. A table of the main path takes all packets that
   leave the table before it; one that is `aside` takes only those that a flow of its stage sends there.
2. Write its flows in a module of their own: `TABLE.flow(PRIORITY, conditions).then(actions, why=...)`. Packets that may
   go on get `onward(TABLE)`; `goto(STAGE)` skips to a later stage. `why` says what traffic it is, and what happens to
   it.
3. Add the module to `part` in `src/windlass/program.py`, for the object that owns the flows.
4. Run `make goldens docs` and read the difference. The tests in `tests/pipeline` compare all flows with the
   declarations.
"""

EXAMPLE = Path(__file__).parent.parent / "scenarios" / "tour"


def page(note: str) -> str:
    sections = (
        ["# The pipeline", "", note, INTRODUCTION, ""],
        _stages(),
        _picture(),
        _tables(),
        _registers(),
        _connection_tracking(),
        _priorities(),
        _addresses(),
        _ports(),
        _agent(),
        [ADDING],
        _example(),
    )
    return "\n".join(line for section in sections for line in section) + "\n"


def _stages() -> Iterator[str]:
    yield from ("## Stages", "")
    yield from _rows(
        ("stage", "what happens there", "tables"),
        ((stage.name, stage.purpose, ", ".join(map(_bold, stage.tables)) or "none yet") for stage in LAYOUT.stages),
    )


def _bold(table: Table) -> str:
    return table.name if table.aside else f"**{table.name}**"


def _picture() -> Iterator[str]:
    yield from ("## The path of a packet", "", "```mermaid", "flowchart TD")
    for stage in LAYOUT.stages:
        if stage.tables:
            yield f'  subgraph s{LAYOUT.stages.index(stage)}["{stage.name}"]'
            yield from (f'    t{table.number}["{table.name} ({table.number})"]' for table in stage.tables)
            yield "  end"
    for table in LAYOUT.tables.values():
        yield from (f"  t{table.number} --> t{number}" for number in LAYOUT.next_tables(table))
    yield from ("```", "")


def _tables() -> Iterator[str]:
    yield from ("## Tables", "")
    for table in LAYOUT.tables.values():
        yield from (f"### {table.number} {table.name}", "", table.question, "")
        yield f"- stage: {table.stage.name}" + ("" if not table.aside else "; off the main path")
        if table.leads_to:
            yield f"- leads to: {', '.join(_target(table, target) for target in table.leads_to)}"
        if table.matches:
            yield f"- matches: {_usable(table.matches)}"
        if table.sets:
            yield f"- sets: {_usable(table.sets)}"
        if table.zones:
            yield f"- tracks connections in: {', '.join(map(_zone, table.zones))}"
        yield f"- miss: {_miss(table)}"
        yield ""


def _target(table: Table, target: Stage | str | Onward) -> str:
    match target:
        case Stage():
            return f"stage {target.name} ({LAYOUT.tables[target.entry].name})"
        case Onward():
            return f"onward ({LAYOUT.tables[table.onward].name})"
    return target


def _usable(usable: Iterable[TableField]) -> str:
    return ", ".join(f"`{one.name}`" for one in usable)


def _zone(zone: int | RegisterField) -> str:
    if isinstance(zone, RegisterField):
        return f"the zone in `{zone.name}`"
    return next(f"zone {known.name} ({zone})" for known in LAYOUT.zones if known.value == zone)


def _miss(table: Table) -> str:
    if table.miss is None:
        return "the lookup finds nothing, and the flow that made it continues"
    return table.miss.why


def _registers() -> Iterator[str]:
    yield from ("## Registers and marks", "")
    yield "Registers belong to one packet and are 0 at first. `ct_mark` and `ct_label` belong to a connection: a flow"
    yield from ("sets them when it commits the connection, and each later packet carries them.", "")
    yield from _rows(
        ("name", "bits", "meaning", "values", "set in", "matched in"),
        (
            (
                field.name,
                f"`{_bits(field)}`",
                field.purpose,
                ", ".join(f"{value} = {name}" for value, name in field.names.items() if field.bits.width > 1),
                ", ".join(table.name for table in LAYOUT.tables.values() if _names(field, table.sets)),
                ", ".join(table.name for table in LAYOUT.tables.values() if _names(field, table.matches)),
            )
            for field in LAYOUT.fields
        ),
    )


def _names(field: RegisterField, usable: Iterable[TableField]) -> bool:
    return any(one.name == field.name for one in usable)


def _bits(field: RegisterField) -> str:
    low, high = field.bits.low, field.bits.low + field.bits.width - 1
    return f"{field.bits.field.name}[{low}]" if low == high else f"{field.bits.field.name}[{low}..{high}]"


def _connection_tracking() -> Iterator[str]:
    yield from ("## Connection tracking zones", "")
    yield from _rows(
        ("zone", "name", "what it holds"), ((str(zone.value), zone.name, zone.purpose) for zone in LAYOUT.zones)
    )


def _priorities() -> Iterator[str]:
    yield from ("## Priorities", "")
    yield "Each has the numbers above it for exceptions to its own flows."
    yield ""
    yield from _rows(
        ("priority", "name", "for"),
        (
            (f"{band(one.value)[0]} to {band(one.value)[-1]}" if one.value != MISS else "0", one.name, one.purpose)
            for one in sorted(LAYOUT.priorities, key=lambda one: -one.value)
        ),
    )


def _addresses() -> Iterator[str]:
    yield from ("## Addresses that no machine has", "")
    for mac in LAYOUT.macs:
        yield f"- {mac.name}, `{mac_text(mac.value)}`: {mac.purpose}"
    yield ""
    yield from _rows(
        ("name", *map(str, Family), "for"),
        (
            (address.name, *(f"`{address.value[family]}`" for family in Family), address.purpose)
            for address in LAYOUT.addresses
        ),
    )


def _ports() -> Iterator[str]:
    yield from ("## Source ports of translated connections", "")
    yield from _rows(
        ("address", "ports", "name", "for"),
        (
            (address, f"{ports.value.first} to {ports.value.last}", ports.name, ports.purpose)
            for address, ranges in LAYOUT.port_ranges.items()
            for ports in ranges
        ),
    )


def _agent() -> Iterator[str]:
    yield from ("## Packets for the agent", "", "The switch hands a packet to the agent only for these reasons:", "")
    yield from (f"- `{reason.name}`: {reason.purpose}" for reason in LAYOUT.reasons)
    limit = f"{reserved.REJECTS_PER_SECOND} packets/s, and {reserved.REJECT_BURST} at once after a pause"
    yield from ("", f"Meters limit how many packets the agent gets. Each passes {limit}.", "")
    yield from _rows(
        ("meters", "name", "for"),
        (
            (" to ".join(map(str, sorted({meters.value[0], meters.value[-1]}))), meters.name, meters.purpose)
            for meters in LAYOUT.meters
        ),
    )


def _example() -> Iterator[str]:
    yield from ("## An example", "")
    yield "The flows of `node-1` in `scenarios/tour`, each with its reason, as"
    yield "`windlass render scenarios/tour --node node-1 --why` prints them:"
    world = scenario_files.find_one(EXAMPLE).read().last_state
    flows = [flow for owned in program(state_of(world, "node-1")).values() for flow in owned.flows]
    for table in LAYOUT.tables.values():
        own = sorted((f for f in flows if f.table == table.number), key=lambda f: (-f.priority, flow_symbols(f)))
        if own:
            yield from ("", f"### Flows of {table.name}", "", "```text")
            for flow in own:
                yield from (f"# {flow.why}", flow_symbols(flow))
            yield "```"


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""
