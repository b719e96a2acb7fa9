"""What to tell a switch so that it holds what it should: the difference, as steps in a safe order. No I/O.

One function serves a first sync, an ordinary change, an audit and the healing of drift: they differ only in how
much of the switch they look at. See docs/decisions/0004-flows-by-content.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec import Struct

from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import groups as group_wire
from windlass.openflow.wire.flows import EncodedFlow, Key
from windlass.openflow.wire.groups import EncodedGroup

Identity: TypeAlias = Key | int  # what a switch tells its flows apart by, and its groups


def identity_of(one: EncodedFlow | EncodedGroup) -> Identity:
    return one.key if isinstance(one, EncodedFlow) else one.identity


@dataclass(frozen=True, slots=True)
class Holding:
    """Flows and groups, by their identity, that a switch holds or should hold."""

    flows: dict[Key, EncodedFlow] = field(default_factory=dict)
    groups: dict[int, EncodedGroup] = field(default_factory=dict)

    def get(self, identity: Identity) -> EncodedFlow | EncodedGroup | None:
        return self.groups.get(identity) if isinstance(identity, int) else self.flows.get(identity)

    def only(self, identities: Iterable[Identity]) -> Holding:
        """The part of it that has one of these identities."""
        part = Holding()
        for identity in identities:
            if isinstance(identity, int):
                if (group := self.groups.get(identity)) is not None:
                    part.groups[identity] = group
            elif (flow := self.flows.get(identity)) is not None:
                part.flows[identity] = flow
        return part

    def put(self, identities: Iterable[Identity], part: Holding) -> None:
        """What has one of these identities is now this part."""
        for identity in identities:
            if isinstance(identity, int):
                self.groups.pop(identity, None)
            else:
                self.flows.pop(identity, None)
        self.flows.update(part.flows)
        self.groups.update(part.groups)

    @property
    def contents(self) -> Iterator[EncodedFlow | EncodedGroup]:
        """Groups before the flows that may lead to them."""
        yield from self.groups.values()
        yield from self.flows.values()

    def copy(self) -> Holding:
        return Holding(dict(self.flows), dict(self.groups))


# Each step says what to send for it and what it does to a holding: a first sync takes a hundred thousand of them.


class AddFlow(Struct, frozen=True, gc=False):
    """Overwrites the flow of the same identity: there is no moment without one."""

    flow: EncodedFlow

    @property
    def identity(self) -> Identity:
        return self.flow.key

    def message(self, xid: int) -> bytes:
        return flow_wire.add(self.flow, xid)

    def take(self, holding: Holding) -> None:
        holding.flows[self.flow.key] = self.flow


class DeleteFlow(Struct, frozen=True, gc=False):
    flow: EncodedFlow

    @property
    def identity(self) -> Identity:
        return self.flow.key

    def message(self, xid: int) -> bytes:
        return flow_wire.delete(self.flow, xid)

    def take(self, holding: Holding) -> None:
        holding.flows.pop(self.flow.key, None)


class AddGroup(Struct, frozen=True, gc=False):
    group: EncodedGroup

    @property
    def identity(self) -> Identity:
        return self.group.identity

    def message(self, xid: int) -> bytes:
        return group_wire.add(self.group, xid)

    def take(self, holding: Holding) -> None:
        holding.groups[self.group.identity] = self.group


class ModifyGroup(Struct, frozen=True, gc=False):
    group: EncodedGroup

    @property
    def identity(self) -> Identity:
        return self.group.identity

    def message(self, xid: int) -> bytes:
        return group_wire.modify(self.group, xid)

    def take(self, holding: Holding) -> None:
        holding.groups[self.group.identity] = self.group


class DeleteGroup(Struct, frozen=True, gc=False):
    group: EncodedGroup

    @property
    def identity(self) -> Identity:
        return self.group.identity

    def message(self, xid: int) -> bytes:
        return group_wire.delete(self.group.identity, xid)

    def take(self, holding: Holding) -> None:
        holding.groups.pop(self.group.identity, None)


Step: TypeAlias = AddFlow | DeleteFlow | AddGroup | ModifyGroup | DeleteGroup


def message(step: Step, xid: int) -> bytes:
    return step.message(xid)


def diff(installed: Holding, wanted: Iterable[EncodedFlow | EncodedGroup]) -> Iterator[Step]:
    """The steps from `installed` to exactly what is wanted, in an order that a switch can take.

    A group must stand before the flows that lead to it; it goes after them, for deleting a group deletes its flows.
    Flows are added before others are deleted, so that a packet never meets less than both the old and the new.

    The steps are made as they are asked for, so that a switch takes in the first while the last are still being
    encoded. `installed` is read at once and not changed.
    """
    surplus_groups = dict(installed.groups)
    surplus_flows = dict(installed.flows)
    for one in wanted:
        if isinstance(one, EncodedFlow):
            if surplus_flows.pop(one.key, None) != one:
                yield AddFlow(one)
        else:
            held = surplus_groups.pop(one.identity, None)
            if held is None:
                yield AddGroup(one)
            elif held != one:
                yield ModifyGroup(one)
    for flow in surplus_flows.values():
        yield DeleteFlow(flow)
    for group in surplus_groups.values():
        yield DeleteGroup(group)


def differing(one: Holding, other: Holding) -> set[Identity]:
    """The identities under which the two hold something different, or only one of them something."""
    keys = one.flows.keys() | other.flows.keys()
    groups = one.groups.keys() | other.groups.keys()
    return {
        *(key for key in keys if one.flows.get(key) != other.flows.get(key)),
        *(group for group in groups if one.groups.get(group) != other.groups.get(group)),
    }
