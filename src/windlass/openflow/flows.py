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


class NatTarget(Protocol):
    """An address and port to which connections can be translated."""

    @property
    def packed(self) -> bytes: ...  # the address
    @property
    def port(self) -> int: ...


class Translations(Struct, frozen=True, gc=False):
    """Buckets that differ only in the address and port to which they translate.

    A large cluster has a hundred thousand of them: what they share is stored once, and a bucket is built when it is
    read.
    """

    does: Ct  # without a translation
    to: tuple[NatTarget, ...]

    def __len__(self) -> int:
        return len(self.to)

    def __getitem__(self, index: int) -> Bucket:
        target = self.to[index]
        nat = Nat(to=unpacked(target.packed), ports=(target.port, target.port))
        return Bucket(range(len(self.to))[index], (replace(self.does, nat=nat),))

    def __iter__(self) -> Iterator[Bucket]:
        return map(self.__getitem__, range(len(self.to)))


class Group(Struct, frozen=True, gc=False):
    """A select group: the datapath's hash chooses one bucket per connection.

    With `by`, that field of the packet alone chooses: equal values get the same bucket, and when a bucket is added or
    removed, only the values that it takes over or gives up change their bucket.
    """

    identity: int
    buckets: tuple[Bucket, ...] | Translations
    why: str
    by: Field | None = None


class Meter(Struct, frozen=True, gc=False):
    """A limit on packets: the switch drops those beyond it."""

    identity: int
    per_second: int
    burst: int  # packets that may come at once after a pause
    why: str
