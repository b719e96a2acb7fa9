"""The difference between what a switch holds and what it should hold, as steps in a safe order. No I/O.

One function serves a first sync, an ordinary change, an audit and the repair of drift: they differ only in how much of
the switch they look at. See docs/decisions/0004-flows-by-content.md.
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

EntryIdentity: TypeAlias = Key | int  # identifies a flow, or a group, within its switch


def identity_of(encoded: EncodedFlow | EncodedGroup) -> EntryIdentity:
    return encoded.key if isinstance(encoded, EncodedFlow) else encoded.identity


@dataclass(frozen=True, slots=True)
class SwitchContents:
    """Flows and groups, by their identity, that a switch holds or should hold."""

    flows: dict[Key, EncodedFlow] = field(default_factory=dict)
    groups: dict[int, EncodedGroup] = field(default_factory=dict)

    def get(self, identity: EntryIdentity) -> EncodedFlow | EncodedGroup | None:
        return self.groups.get(identity) if isinstance(identity, int) else self.flows.get(identity)

    def only(self, identities: Iterable[EntryIdentity]) -> SwitchContents:
        """The part that has one of these identities."""
        part = SwitchContents()
        for identity in identities:
            if isinstance(identity, int):
                if (group := self.groups.get(identity)) is not None:
                    part.groups[identity] = group
            elif (flow := self.flows.get(identity)) is not None:
                part.flows[identity] = flow
        return part

    def put(self, identities: Iterable[EntryIdentity], part: SwitchContents) -> None:
        """Replace everything that has one of these identities by this part."""
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

    def copy(self) -> SwitchContents:
        return SwitchContents(dict(self.flows), dict(self.groups))


# A step has the message to send for it and its effect on the contents. A first sync takes a hundred thousand of them.


class _FlowStep(Struct, frozen=True, gc=False):
    flow: EncodedFlow

    @property
    def identity(self) -> EntryIdentity:
        return self.flow.key


class _GroupStep(Struct, frozen=True, gc=False):
    group: EncodedGroup

    @property
    def identity(self) -> EntryIdentity:
        return self.group.identity

    def take(self, contents: SwitchContents) -> None:
        contents.groups[self.group.identity] = self.group


class AddFlow(_FlowStep, frozen=True, gc=False):
    """Overwrites a flow of the same identity, without a moment in which there is none."""

    def message(self, xid: int) -> bytes:
        return flow_wire.add(self.flow, xid)

    def take(self, contents: SwitchContents) -> None:
        contents.flows[self.flow.key] = self.flow


class DeleteFlow(_FlowStep, frozen=True, gc=False):
    def message(self, xid: int) -> bytes:
        return flow_wire.delete(self.flow, xid)

    def take(self, contents: SwitchContents) -> None:
        contents.flows.pop(self.flow.key, None)


class AddGroup(_GroupStep, frozen=True, gc=False):
    def message(self, xid: int) -> bytes:
        return group_wire.add(self.group, xid)


class ModifyGroup(_GroupStep, frozen=True, gc=False):
    def message(self, xid: int) -> bytes:
        return group_wire.modify(self.group, xid)


class DeleteGroup(_GroupStep, frozen=True, gc=False):
    def message(self, xid: int) -> bytes:
        return group_wire.delete(self.group.identity, xid)

    def take(self, contents: SwitchContents) -> None:
        contents.groups.pop(self.group.identity, None)


SwitchStep: TypeAlias = AddFlow | DeleteFlow | AddGroup | ModifyGroup | DeleteGroup


def message(step: SwitchStep, xid: int) -> bytes:
    return step.message(xid)


def diff(installed: SwitchContents, wanted: Iterable[EncodedFlow | EncodedGroup]) -> Iterator[SwitchStep]:
    """The steps from `installed` to exactly what is wanted, in an order that a switch can take.

    A group is added before the flows that lead to it, and deleted after them: deleting a group deletes its flows.
    Flows are added before others are deleted, so that at any moment a packet meets an old flow or a new one.

    The steps are made one by one as they are consumed, so that the switch processes the first while the last are still
    being encoded. `installed` is read when the first step is made, and not changed.
    """
    surplus_groups = dict(installed.groups)
    surplus_flows = dict(installed.flows)
    met: dict[Key, EncodedFlow] = {}  # several owners may want the same flow
    for encoded in wanted:
        if isinstance(encoded, EncodedFlow):
            key = encoded.key
            flow = met.get(key) or (surplus_flows.pop(key, None) if surplus_flows else None)
            met[key] = encoded
            if flow is None or flow != encoded:
                yield AddFlow(encoded)
        else:
            held = surplus_groups.pop(encoded.identity, None)
            if held is None:
                yield AddGroup(encoded)
            elif held != encoded:
                yield ModifyGroup(encoded)
    for flow in surplus_flows.values():
        yield DeleteFlow(flow)
    for group in surplus_groups.values():
        yield DeleteGroup(group)


def differing(one: SwitchContents, other: SwitchContents) -> set[EntryIdentity]:
    """The identities whose flow or group differs between the two, or is in only one of them."""
    keys = one.flows.keys() | other.flows.keys()
    groups = one.groups.keys() | other.groups.keys()
    return {
        *(key for key in keys if one.flows.get(key) != other.flows.get(key)),
        *(group for group in groups if one.groups.get(group) != other.groups.get(group)),
    }
