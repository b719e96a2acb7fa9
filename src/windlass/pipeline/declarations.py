"""How tables, register fields and marks are declared: once, with a meaning, and checked when declared.

Two fields that overlap, a value that does not fit, a table that nothing leads to: errors at import.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import Struct

from windlass.openflow.actions import Action, Goto, Set
from windlass.openflow.fields import Bits, Term
from windlass.openflow.flows import Flow
from windlass.openflow.matches import Condition, match

LAST_TABLE = 254  # 255 stands for all of them in OpenFlow


class DeclarationError(Exception):
    """The pipeline's declarations contradict each other."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A register field (or ct_mark bit) that holds one certain, named value."""

    bits: Bits
    value: int
    name: str

    def __iter__(self) -> Iterator[Term]:
        """So that a mark is a condition of a match."""
        yield self.bits(self.value)

    def set(self) -> Set:
        return Set(self.bits(self.value))

    def clear(self) -> Set:
        """Of a flag."""
        return Set(self.bits(0))

    @property
    def unset(self) -> Term:
        """The condition that a flag is not set."""
        return self.bits(0)


@dataclass(frozen=True, slots=True)
class RegisterField:
    bits: Bits
    name: str
    purpose: str
    names: dict[int, str] = field(default_factory=dict)  # of its values, for people

    def is_(self, value: int) -> Term:
        return self.bits(value)

    def load(self, value: int) -> Action:
        return Set(self.bits(value))

    def mark(self, value: int, name: str) -> Mark:
        self.bits(value)  # raises where the value does not fit
        if value in self.names:
            raise DeclarationError(f"{self.name}: {value} is declared as {self.names[value]} and as {name}")
        self.names[value] = name
        return Mark(self.bits, value, name)


@dataclass(frozen=True, slots=True)
class Table:
    number: int
    name: str
    question: str  # what the table decides, in a sentence
    leads_to: tuple[str, ...]
    miss: str  # what happens to a packet that no flow of the table wants
    once_more: bool = False  # it may lead to itself; that its flows do so only once is for a test to show

    def flow(self, priority: int, *conditions: Condition) -> FlowStart:
        return FlowStart(self.number, priority, conditions)


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
        self.tables: dict[int, Table] = {}
        self.fields: list[RegisterField] = []

    def table(
        self,
        number: int,
        name: str,
        question: str,
        *,
        leads_to: tuple[str, ...] = (),
        miss: str = "drop",
        once_more: bool = False,
    ) -> Table:
        if not 0 <= number <= LAST_TABLE:
            raise DeclarationError(f"table {name}: {number} is not a table; they are 0 to {LAST_TABLE}")
        if self.tables and number <= max(self.tables):
            raise DeclarationError(f"table {name}: {number} is not past the tables declared before it")
        if any(name == other.name for other in self.tables.values()):
            raise DeclarationError(f"table {name}: {number} has the name of another table")
        self.tables[number] = declared = Table(number, name, question, leads_to, miss, once_more)
        return declared

    def field(self, bits: Bits, name: str, purpose: str) -> RegisterField:
        if bits.low < 0 or bits.width < 1 or bits.low + bits.width > bits.field.bits:
            raise DeclarationError(f"{name}: {bits.field.name} has bits 0 to {bits.field.bits - 1}, not all of these")
        for other in self.fields:
            if other.bits.field is bits.field and other.bits.mask & bits.mask:
                raise DeclarationError(f"{name} overlaps {other.name} in {bits.field.name}")
        declared = RegisterField(bits, name, purpose)
        self.fields.append(declared)
        return declared

    def flag(self, bits: Bits, name: str, purpose: str) -> Mark:
        """A field of one bit; the mark is that it is set."""
        return self.field(bits, name, purpose).mark(1, name)

    def complete(self) -> None:
        """No more declarations: every table must be reached, and lead only forward to tables that exist."""
        numbers = {table.name: table.number for table in self.tables.values()}
        reached = {min(self.tables)}
        for table in self.tables.values():
            for name in table.leads_to:
                if name not in numbers:
                    raise DeclarationError(f"table {table.name} leads to {name}, which is not declared")
                if numbers[name] <= table.number and not (name == table.name and table.once_more):
                    raise DeclarationError(f"table {table.name} leads back to {name}: packets could circle")
                reached.add(numbers[name])
        for number, table in self.tables.items():
            if number not in reached:
                raise DeclarationError(f"nothing leads to table {table.name}")

    def named(self, number: int) -> Table:
        return self.tables[number]


def goto(table: Table) -> Action:
    return Goto(table.number)
