"""Flows, groups and meters: what a switch holds, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from windlass.model.families import unpacked
from windlass.openflow.actions import Actions, Ct, Nat
from windlass.openflow.fields import Field
from windlass.openflow.matches import Match


class Flow(Struct, frozen=True, gc=False):
    table: int
    priority: int
    match: Match
    actions: Actions
    why: str  # for people; not part of what the switch holds


class Bucket(Struct, frozen=True, gc=False):
    identity: int
    actions: Actions
    weight: int = 100


class Place(Protocol):
    """Where a connection can be translated to."""

    @property
    def packed(self) -> bytes: ...  # its address
    @property
    def port(self) -> int: ...


class Translations(Struct, frozen=True, gc=False):
    """Buckets that do all the same, but that each translates to another place.

    A large cluster has a hundred thousand of them: what they share is there once, and a bucket is made when one is
    looked at.
    """

    does: Ct  # without a translation of its own
    to: tuple[Place, ...]

    def __len__(self) -> int:
        return len(self.to)

    def __getitem__(self, index: int) -> Bucket:
        place = self.to[index]
        nat = Nat(to=unpacked(place.packed), ports=(place.port, place.port))
        return Bucket(range(len(self.to))[index], (replace(self.does, nat=nat),))

    def __iter__(self) -> Iterator[Bucket]:
        return map(self.__getitem__, range(len(self.to)))


class Group(Struct, frozen=True, gc=False):
    """A select group: one bucket is chosen per connection by the datapath's hash.

    With `by` it is chosen by that field of the packet alone: equal values meet the same bucket, and a bucket that comes
    or goes changes the choice only of those that it takes or leaves.
    """

    identity: int
    buckets: tuple[Bucket, ...] | Translations
    why: str
    by: Field | None = None


class Meter(Struct, frozen=True, gc=False):
    """A limit on packets: those beyond it are dropped."""

    identity: int
    per_second: int
    burst: int  # packets that may come at once after a pause
    why: str
