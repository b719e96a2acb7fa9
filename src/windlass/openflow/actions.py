"""What a flow or a bucket does with a packet."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from windlass.model.families import IPAddress
from windlass.openflow.fields import IN_PORT_PORT, Bits, Field, Term


class Output(Struct, frozen=True, gc=False):
    port: int


class OutputTo(Struct, frozen=True, gc=False):
    """Output to the port whose number these bits hold."""

    port: Bits


class Set(Struct, frozen=True, gc=False):
    """Write a value into a field, or into the bits of its mask."""

    term: Term


class Move(Struct, frozen=True, gc=False):
    source: Bits
    to: Bits


class Goto(Struct, frozen=True, gc=False):
    """The packet goes on in a later table. It is always the last action of a flow."""

    table: int


class Resubmit(Struct, frozen=True, gc=False):
    """Look the packet up in another table, then go on with the next action."""

    table: int


class Nat(Struct, frozen=True, gc=False):
    """`Nat()` applies the translation of the connection. With an address, a commit defines the translation."""

    source: IPAddress | None = None
    to: IPAddress | None = None
    ports: tuple[int, int] | None = None  # first and last


class Ct(Struct, frozen=True, gc=False):
    """Connection tracking. With a table, the packet goes on there with its connection's state."""

    zone: int | Bits  # its number, or the 16 bits that hold it
    table: int | None = None
    commit: bool = False
    nat: Nat | None = None
    sets: tuple[Set | Move, ...] = ()  # of ct_mark and ct_label, on commit


class Clone(Struct, frozen=True, gc=False):
    """Actions on a copy of the packet, which goes no further."""

    actions: tuple[Ct, ...]


class ToGroup(Struct, frozen=True, gc=False):
    group: int


class LearnMatch(Struct, frozen=True, gc=False):
    """The learned flow matches `to` against the packet's `source` bits, or against a constant."""

    to: Bits
    source: Bits | int


class LearnLoad(Struct, frozen=True, gc=False):
    """The learned flow loads into `to` the packet's `source` bits, or a constant."""

    to: Bits
    source: Bits | int


class Learn(Struct, frozen=True, gc=False):
    """Install a flow made from this packet."""

    table: int
    priority: int
    cookie: int
    specs: tuple[LearnMatch | LearnLoad, ...]
    idle_timeout: int = 0
    delete_learned: bool = False


class ToController(Struct, frozen=True, gc=False):
    """Hand the packet to the agent, with `userdata` that says why; a meter limits how many."""

    userdata: bytes
    meter: int = 0  # 0: none. A meter that does not exist allows everything


Action: TypeAlias = Output | OutputTo | Set | Move | Goto | Resubmit | Ct | Clone | ToGroup | Learn | ToController
Actions: TypeAlias = tuple[Action, ...]

BACK: Action = Output(IN_PORT_PORT)  # OpenFlow ignores an output to the ingress port by its own number


def move(source: Field, to: Field) -> Move:
    """Copy a whole field into another of the same width."""
    return Move(source.whole, to.whole)
