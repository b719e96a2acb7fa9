"""Flows and groups: what a switch holds, and why."""

from __future__ import annotations

from msgspec import Struct

from windlass.openflow.actions import Actions
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


class Group(Struct, frozen=True, gc=False):
    """A select group: one bucket is chosen per connection by the datapath's hash."""

    identity: int
    buckets: tuple[Bucket, ...]
    why: str
