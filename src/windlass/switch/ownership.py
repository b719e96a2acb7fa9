"""Which owner requests which flow or group of a Program, and the steps from what the switch holds to that. No I/O.

Several owners may request the same flow or group. The last one that requested it decides its contents, and it stays
until the last of them has released it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from windlass.openflow import ofctl
from windlass.openflow.flows import Flow, Group
from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import groups as group_wire
from windlass.openflow.wire.flows import EncodedFlow
from windlass.openflow.wire.groups import EncodedGroup, GroupTooLargeError
from windlass.program import NOTHING, AnyPart, Owner, OwnerKind, Program
from windlass.switch.changes import (
    DeleteFlow,
    DeleteGroup,
    EntryIdentity,
    SwitchContents,
    SwitchStep,
    diff,
    differing,
    identity_of,
)
from windlass.switch.deliveries import DeliveryResult


@dataclass(frozen=True, slots=True)
class InstallFailure:
    """A flow or group that an owner requests and that is not in the switch."""

    owner: Owner
    what: Flow | Group
    reason: str

    def __str__(self) -> str:
        text = ofctl.flow_text(self.what) if isinstance(self.what, Flow) else ofctl.group_text(self.what)
        return f"{self.owner}: not in the switch, the rest is: {text}: {self.reason}"


class FlowOwnership:
    """The Program by owner, and what the switch is known to hold of it."""

    def __init__(self, program: Program) -> None:
        self.program = dict(program)
        self.installed = SwitchContents()  # what the switch accepted from us, or reported
        self.failures: dict[EntryIdentity, InstallFailure] = {}
        self._requesters: dict[EntryIdentity, tuple[Owner, ...]] = {}  # in the order of their requests
        # What each owner requests. To encode its part again instead would take as long as to encode it first.
        self._requests: dict[Owner, tuple[EntryIdentity, ...]] = {}

    def is_requested(self, identity: EntryIdentity) -> bool:
        return identity in self._requesters

    def restart(self, held: SwitchContents) -> Iterator[SwitchStep]:
        """The steps from what the switch holds to the whole Program.

        The parts are encoded while the steps are consumed, so that the switch and the encoder work at the same time.
        Pods come last: an empty switch must not forward their packets before it has the flows of policies.
        """
        self.installed = held
        self.failures.clear()
        self._requesters.clear()
        self._requests.clear()
        others, kind = self.program.copy(), OwnerKind.POD
        pods = {owner: others.pop(owner) for owner in self.program if owner.kind is kind}
        return diff(held, chain(self._request(others), self._request(pods)))

    def adopt(self, parts: Program) -> list[SwitchStep]:
        """Replace the parts of these owners. The work grows with these parts, not with the Program."""
        touched = {identity for owner in parts for identity in self._release(owner)}
        if self.failures:
            self.failures = {key: failure for key, failure in self.failures.items() if failure.owner not in parts}
        requesting = {owner: part for owner, part in parts.items() if part != NOTHING}
        self.program.update(requesting)
        wanted = {identity_of(encoded): encoded for encoded in self._request(requesting)}
        wanted.update(self._still_requested(touched - wanted.keys()))
        return list(diff(self.installed.only(touched | wanted.keys()), wanted.values()))

    def retry(self) -> list[SwitchStep]:
        """The steps for the owners of what failed: the reason for a refusal may be gone."""
        owners = {failure.owner for failure in self.failures.values()} & self.program.keys()
        return self.adopt({owner: self.program[owner] for owner in owners})

    def drift(self, before: SwitchContents, found: SwitchContents) -> set[EntryIdentity]:
        """What differs between `before`, a copy of `installed`, and what was found in the switch later.

        What we have changed ourselves since the copy is left out.
        """
        installed = self.installed
        return {identity for identity in differing(before, found) if installed.get(identity) is before.get(identity)}

    def restore(self, identities: Collection[EntryIdentity], found: SwitchContents) -> list[SwitchStep]:
        """The steps that put back what we had installed under these identities, where something else was found."""
        ours, theirs = self.installed.only(identities), found.only(identities)
        steps = list(diff(theirs, ours.contents))
        if steps:
            self.installed.put(identities, theirs)  # until the steps are taken
        return steps

    def record(self, result: DeliveryResult[SwitchStep]) -> list[str]:
        """Apply what the switch accepted. Returns a sentence for each step that it refused."""
        for step in result.accepted:
            step.take(self.installed)
        if not result.refused:
            return []
        sentences = []
        identities = {refused.what.identity for refused in result.refused} & self._requesters.keys()
        owners = {identity: self._requesters[identity][-1] for identity in identities}
        contents = {
            identity: (owner, what)
            for owner in set(owners.values())
            for identity, what in _contents(self.program[owner])
            if owners.get(identity) == owner
        }
        for refused in result.refused:
            step, reason = refused.what, str(refused.error)
            if isinstance(step, DeleteFlow | DeleteGroup) or step.identity not in contents:
                sentences.append(f"no owner requests it, and it was not deleted: {reason}")
            else:
                failure = self.failures[step.identity] = InstallFailure(*contents[step.identity], reason)
                sentences.append(str(failure))
        return sentences

    def _release(self, owner: Owner) -> Iterator[EntryIdentity]:
        """Drop all requests of this owner; yields what they were for."""
        self.program.pop(owner, None)
        for identity in self._requests.pop(owner, ()):
            others = tuple([other for other in self._requesters.pop(identity, ()) if other != owner])
            if others:
                self._requesters[identity] = others
            yield identity

    def _request(self, parts: Program) -> Iterator[EncodedFlow | EncodedGroup]:
        """Note what these owners request, and encode it, owner by owner."""
        for owner, part in parts.items():
            alone = (owner,)
            requested: list[EntryIdentity] = []
            for encoded in self._encode(owner, part):
                identity = encoded.key if isinstance(encoded, EncodedFlow) else encoded.identity
                requesters = self._requesters.setdefault(identity, alone)
                if requesters is not alone:
                    self._requesters[identity] = (*requesters, owner)
                requested.append(identity)
                yield encoded
            self._requests[owner] = tuple(requested)

    def _still_requested(
        self, released: Collection[EntryIdentity]
    ) -> Iterator[tuple[EntryIdentity, EncodedFlow | EncodedGroup]]:
        """What other owners request of this: a new Pod may have got the port of one that is gone."""
        for owner in {self._requesters[identity][-1] for identity in released if identity in self._requesters}:
            for encoded in self._encode(owner, self.program[owner]):
                identity = identity_of(encoded)
                if identity in released and self._requesters[identity][-1] == owner:
                    yield identity, encoded

    def _encode(self, owner: Owner, part: AnyPart) -> Iterator[EncodedFlow | EncodedGroup]:
        """Groups come first: only flows of the same part lead to them."""
        groups, flows = part.groups, map(flow_wire.encode, part.flows)
        return chain(self._encode_groups(owner, groups), flows) if groups else flows

    def _encode_groups(self, owner: Owner, groups: Iterable[Group]) -> Iterator[EncodedGroup]:
        for group in groups:
            try:
                yield group_wire.encode(group)
            except GroupTooLargeError as error:
                self.failures[group.identity] = InstallFailure(owner, group, str(error))
                # Keep the former buckets, if there are any: flows of this part lead to the group.
                if (held := self.installed.groups.get(group.identity)) is not None:
                    yield held


def _contents(part: AnyPart) -> Iterator[tuple[EntryIdentity, Flow | Group]]:
    for flow in part.flows:
        yield flow_wire.encode(flow).key, flow
    for group in part.groups:
        yield group.identity, group
