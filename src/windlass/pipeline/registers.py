"""Register fields and marks: what a packet and its connection carry from one table to another, as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from windlass.openflow.actions import Action, Set
from windlass.openflow.fields import Bits, Term

HIGH_HALF, LOW_HALF = " (high half)", " (low half)"


class DeclarationError(Exception):
    """The pipeline's declarations contradict each other."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A register field (or ct_mark bit) with one particular, named value."""

    bits: Bits
    value: int
    name: str

    def __iter__(self) -> Iterator[Term]:
        """Makes a mark usable as a condition of a match."""
        yield self.bits(self.value)

    def set(self) -> Set:
        return Set(self.bits(self.value))

    def clear(self) -> Set:
        """Clears a flag."""
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
    names: dict[int, str] = field(default_factory=dict)  # the names of its values

    def is_(self, value: int) -> Term:
        return self.bits(value)

    def load(self, value: int) -> Action:
        return Set(self.bits(value))

    def mark(self, value: int, name: str) -> Mark:
        self.bits(value)  # raises if the value does not fit
        if value in self.names:
            raise DeclarationError(f"{self.name}: {value} is declared as {self.names[value]} and as {name}")
        self.names[value] = name
        return Mark(self.bits, value, name)


def adjacent(first: Mark, second: Mark) -> Bits:
    """The bits of both flags, so that one move copies them."""
    low = first.bits
    if second.bits != Bits(low.field, low.low + low.width, second.bits.width):
        raise DeclarationError(f"{second.name} does not follow {first.name}: one move cannot copy both")
    return Bits(low.field, low.low, low.width + second.bits.width)


@dataclass(frozen=True, slots=True)
class WideField:
    """A number of 64 bits in two adjacent registers, which Open vSwitch matches and reports as one."""

    high: RegisterField
    low: RegisterField

    @property
    def name(self) -> str:
        return self.high.name.removesuffix(HIGH_HALF)

    def is_(self, value: int) -> tuple[Term, Term]:
        return self.high.is_(value >> 32), self.low.is_(value & 0xFFFFFFFF)

    def load(self, value: int) -> tuple[Action, Action]:
        return self.high.load(value >> 32), self.low.load(value & 0xFFFFFFFF)


def halves(*fields: WideField) -> tuple[RegisterField, ...]:
    return tuple(half for one in fields for half in (one.high, one.low))
