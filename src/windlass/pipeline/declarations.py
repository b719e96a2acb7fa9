"""How the pipeline is declared: stages, tables, register fields and every other number, each once and with a purpose.

Two fields that overlap, a value that does not fit, a table that no packet reaches: errors at import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

from windlass.model.families import Family, IPAddress, IPNetwork, family_of
from windlass.openflow.actions import Action, Actions, Goto
from windlass.openflow.fields import Bits, Field, FieldSet
from windlass.openflow.flows import Flow
from windlass.openflow.matches import Condition, match
from windlass.pipeline.registers import HIGH_HALF, LOW_HALF, DeclarationError, Mark, RegisterField, WideField

V = TypeVar("V")
A = TypeVar("A", bound=IPAddress | IPNetwork)

LAST_TABLE = 254  # OpenFlow uses 255 for "all tables"
MISS = 0  # the priority of a table's miss; no other flow has it
MAX_PREFIX = 128  # the longest prefix of an IPv6 address
BAND = 10  # a priority is the first of a band: flows use the numbers above it for exceptions to that priority
_ZONES = range(1, 1 << 16)  # the host tracks its own connections in zone 0
_PRIORITIES = range(1 << 16)
_PORTS = range(1 << 16)
_METERS = range(1, 0xFFFF0000)


TableField = Field | FieldSet | RegisterField | Mark  # what a table may match or set


class PortRange(NamedTuple):
    first: int
    last: int

    @property
    def mask(self) -> tuple[int, int]:
        """The value and the mask of the smallest block that covers the range, so that one match is enough."""
        free = (1 << (self.first ^ self.last).bit_length()) - 1
        return self.first & ~free, 0xFFFF & ~free


@dataclass(frozen=True, slots=True)
class Reservation(Generic[V]):
    """A number, a range of numbers or an address that the pipeline uses for one purpose."""

    value: V
    name: str
    purpose: str


class Onward:
    """The next table of the main path: of the same stage, or else of the stages that follow."""


ONWARD = Onward()


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A step in the path of packets through the pipeline.

    A flow that leaves its stage names the stage where the packet goes on, never a table there. So a table can be added
    to a stage, first or last, without a change of the flows before it. A stage may have no table: then packets go on to
    the next one that has some.
    """

    layout: Layout = field(repr=False)
    name: str
    purpose: str

    def table(
        self,
        number: int,
        name: str,
        question: str,
        *,
        miss: Miss | None,
        matches: tuple[TableField, ...] = (),
        sets: tuple[TableField, ...] = (),
        zones: tuple[int | RegisterField, ...] = (),
        leads_to: tuple[Stage | str | Onward, ...] = (),
        aside: bool = False,
    ) -> Table:
        declared = Table(self, number, name, question, miss, matches, sets, zones, leads_to, aside)
        self.layout.add(declared)
        return declared

    @property
    def tables(self) -> list[Table]:
        return [table for table in self.layout.tables.values() if table.stage is self]

    @property
    def entry(self) -> int:
        """The number of the table in which packets enter this stage."""
        return self.layout.entry(self)


class Miss(NamedTuple):
    """What happens to a packet that no flow of a table matches, and why. Without actions and target: drop."""

    why: str
    does: Actions = ()
    leads_to: Stage | str | Onward | None = None  # another table of its own stage by name


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    stage: Stage
    number: int
    name: str
    question: str  # what the table decides, in a sentence
    miss: Miss | None  # None: the switch itself writes this table's flows
    matches: tuple[TableField, ...]  # its flows match on nothing else
    sets: tuple[TableField, ...]  # they write nothing else into the packet or its connection
    zones: tuple[int | RegisterField, ...]  # they track connections in no other zone
    leads_to: tuple[Stage | str | Onward, ...]  # stages; other tables of its own stage by name
    aside: bool  # off the main path: only flows that name this table (or its stage) lead to it

    def flow(self, priority: int, *conditions: Condition) -> FlowStart:
        return FlowStart(self.number, priority, conditions)

    @property
    def onward(self) -> int:
        """The number of the next table of the main path."""
        return self.stage.layout.onward(self.number)


class FlowStart(Struct, frozen=True, gc=False):
    """The left half of a flow; `then` completes it."""

    table: int
    priority: int
    conditions: tuple[Condition, ...]

    def then(self, *actions: Action, why: str) -> Flow:
        return Flow(self.table, self.priority, match(*self.conditions), actions, why)

    def drop(self, *, why: str) -> Flow:
        return self.then(why=why)


class Layout:
    """All declarations of a pipeline, in order."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.tables: dict[int, Table] = {}
        self.fields: list[RegisterField] = []
        self.wide_fields: dict[Field, WideField] = {}  # by the register of the high half
        self.zones: list[Reservation[int]] = []
        self.priorities: list[Reservation[int]] = [
            Reservation(MISS, "miss", "what a table does with all other packets")
        ]
        self.meters: list[Reservation[range]] = []
        self.port_ranges: dict[str, list[Reservation[PortRange]]] = {}  # by the address whose ports they are
        self.addresses: list[Reservation[Mapping[Family, IPAddress | IPNetwork]]] = []
        self.macs: list[Reservation[int]] = []
        self.reasons: list[Reservation[bytes]] = []
        self._complete = False

    def stage(self, name: str, purpose: str) -> Stage:
        if any(name == other.name for other in self.stages):
            raise DeclarationError(f"stage {name} is declared twice")
        declared = Stage(self, name, purpose)
        self.stages.append(declared)
        return declared

    def add(self, table: Table) -> None:
        number, name = table.number, table.name
        if self._complete:
            raise DeclarationError(f"table {name} is declared after the layout was completed: flows could bypass it")
        if not 0 <= number <= LAST_TABLE:
            raise DeclarationError(f"table {name}: {number} is not a table number; they are 0 to {LAST_TABLE}")
        if self.tables and number <= (last := max(self.tables)):
            raise DeclarationError(f"table {name}: {number} is not above {last}, the table declared before it")
        if any(name == other.name for other in self.tables.values()):
            raise DeclarationError(f"table {name}: {number} has the name of another table")
        if self.tables and self.stages.index(table.stage) < self.stages.index(self.tables[last].stage):
            raise DeclarationError(f"table {name} of stage {table.stage.name} comes after tables of a later stage")
        self.tables[number] = table

    def field(self, bits: Bits, name: str, purpose: str) -> RegisterField:
        if bits.low < 0 or bits.width < 1 or bits.low + bits.width > bits.field.bits:
            raise DeclarationError(f"{name}: {bits.field.name} has only the bits 0 to {bits.field.bits - 1}")
        for other in self.fields:
            if other.bits.field is bits.field and other.bits.mask & bits.mask:
                raise DeclarationError(f"{name} overlaps {other.name} in {bits.field.name}")
            if other.name == name:
                raise DeclarationError(f"{name} is declared twice")
        declared = RegisterField(bits, name, purpose)
        self.fields.append(declared)
        return declared

    def wide_field(self, high: Field, low: Field, name: str, purpose: str) -> WideField:
        if high.number % 2 or low.number != high.number + 1:
            raise DeclarationError(f"{name}: {high.name} and {low.name} are not a pair of registers")
        declared = WideField(
            self.field(high.whole, name + HIGH_HALF, purpose), self.field(low.whole, name + LOW_HALF, purpose)
        )
        self.wide_fields[high] = declared
        return declared

    def flag(self, bits: Bits, name: str, purpose: str) -> Mark:
        """A field of one bit; the mark is that it is set."""
        return self.field(bits, name, purpose).mark(1, name)

    def zone(self, number: int, name: str, purpose: str) -> int:
        """A connection tracking zone."""
        _reserve(self.zones, Reservation(number, name, purpose), _ZONES, lambda zone: range(zone, zone + 1))
        return number

    def priority(self, number: int, name: str, purpose: str) -> int:
        _reserve(self.priorities, Reservation(number, name, purpose), _PRIORITIES, band)
        return number

    def prefix_priority(self, number: int, name: str, purpose: str) -> int:
        """The priority of the empty prefix; a prefix of n bits has the n-th priority above it."""
        for length in range(0, MAX_PREFIX + 1, BAND):
            self.priority(number + length, f"{name} /{length} to /{min(length + BAND - 1, MAX_PREFIX)}", purpose)
        return number

    def meter_range(self, numbers: range, name: str, purpose: str) -> range:
        _reserve(self.meters, Reservation(numbers, name, purpose), _METERS, lambda meters: meters)
        return numbers

    def port_range(self, address: str, first: int, last: int, name: str, purpose: str) -> PortRange:
        """Source ports that SNAT uses at this address. No other range may be in the block that its mask covers."""
        if not 0 <= first <= last < 1 << 16:
            raise DeclarationError(f"{name}: {first} to {last} is not a range of ports")
        ports = PortRange(first, last)
        known = self.port_ranges.setdefault(address, [])
        _reserve(known, Reservation(ports, name, purpose), _PORTS, _block)
        return ports

    def mac(self, address: int, name: str, purpose: str) -> int:
        self.macs.append(Reservation(address, name, purpose))
        return address

    def address(self, name: str, purpose: str, *addresses: A) -> Mapping[Family, A]:
        """An address or a network that no machine has, one for each family."""
        by_family = {family_of(address): address for address in addresses}
        if len(by_family) != len(Family) or len(addresses) != len(Family):
            raise DeclarationError(f"{name}: it needs one address of each family")
        for other in self.addresses:
            if any(_overlap(other.value[family], address) for family, address in by_family.items()):
                raise DeclarationError(f"{name} overlaps {other.name}")
        self.addresses.append(Reservation(by_family, name, purpose))
        return by_family

    def reason(self, userdata: bytes, name: str, purpose: str) -> bytes:
        """Why the switch hands a packet to the agent: `userdata` comes with the packet."""
        if not userdata:
            raise DeclarationError(f"{name}: the agent could not tell it from a packet without a reason")
        for other in self.reasons:
            if other.value == userdata:
                raise DeclarationError(f"{name} has the userdata of {other.name}")
        self.reasons.append(Reservation(userdata, name, purpose))
        return userdata

    def complete(self) -> Layout:
        """No more tables: a packet must reach every one, and none may lead back. Returns the layout itself."""
        self._complete = True
        reached = {min(self.tables)}
        for table in self.tables.values():
            for number in self.next_tables(table):
                if number < table.number:
                    raise DeclarationError(f"table {table.name} leads back to {self.tables[number].name}")
                reached.add(number)
        for number, table in self.tables.items():
            if number not in reached:
                raise DeclarationError(f"nothing leads to table {table.name}")
        return self

    def next_tables(self, table: Table) -> list[int]:
        """The numbers of the tables to which its flows and its miss may lead; itself only by its own name."""
        on_miss = () if table.miss is None or table.miss.leads_to is None else (table.miss.leads_to,)
        return sorted({self._resolve(table, target) for target in (*table.leads_to, *on_miss)})

    def _resolve(self, table: Table, target: Stage | str | Onward) -> int:
        match target:
            case Onward():
                return self.onward(table.number)
            case Stage():
                if self.stages.index(target) <= self.stages.index(table.stage):
                    raise DeclarationError(f"table {table.name} leads to {target.name}, which is not a later stage")
                return self.entry(target)
        for other in self.tables.values():
            if other.name == target and other.stage is table.stage:
                return other.number
        raise DeclarationError(f"table {table.name} leads to {target}, which is no table of stage {table.stage.name}")

    def onward(self, number: int) -> int:
        """The next table of the main path."""
        for other in self.tables.values():
            if other.number > number and not other.aside:
                return other.number
        raise DeclarationError(f"table {self.tables[number].name} leads onward, but no table follows it")

    def entry(self, stage: Stage) -> int:
        """The first table of this stage; if it has none, the first of the main path after it."""
        following = self.stages[self.stages.index(stage) :]
        for table in self.tables.values():
            if table.stage is stage or (table.stage in following and not table.aside):
                return table.number
        raise DeclarationError(f"no table follows stage {stage.name}")

    def miss_flows(self) -> Iterator[Flow]:
        for table in self.tables.values():
            if (miss := table.miss) is not None:
                target = () if miss.leads_to is None else (Goto(self._resolve(table, miss.leads_to)),)
                yield table.flow(MISS).then(*miss.does, *target, why=miss.why)


DECLARED = (
    Layout()
)  # the layout of the agent: packet_marks, tracking, layout, priorities and reserved declare its parts


def goto(target: Stage | Table) -> Goto:
    """Go to another stage, or to another table of the same stage."""
    return Goto(target.number if isinstance(target, Table) else target.entry)


def onward(table: Table) -> Goto:
    return Goto(table.onward)


def band(priority: int) -> range:
    """The priorities that flows with this one may have."""
    return range(priority, priority + (BAND if priority != MISS else 1))


def _reserve(
    known: list[Reservation[V]], new: Reservation[V], possible: range, numbers_of: Callable[[V], range]
) -> None:
    numbers = numbers_of(new.value)
    if not numbers or numbers[0] not in possible or numbers[-1] not in possible:
        raise DeclarationError(f"{new.name}: {new.value} is not within {possible[0]} to {possible[-1]}")
    for other in known:
        taken = numbers_of(other.value)
        if taken[0] <= numbers[-1] and numbers[0] <= taken[-1]:
            raise DeclarationError(f"{new.name} overlaps {other.name}")
        if new.name == other.name:
            raise DeclarationError(f"{new.name} is declared twice")
    known.append(new)


def _block(ports: PortRange) -> range:
    value, mask = ports.mask
    return range(value, value + (0xFFFF & ~mask) + 1)


def _overlap(one: IPAddress | IPNetwork, other: IPAddress | IPNetwork) -> bool:
    networks = ip_network(one), ip_network(other)
    return networks[0].overlaps(networks[1])
