"""Policies as one switch looks them up: subjects of local Pods, classes of peers, and the ports allowed between them.

`windlass.policy` has resolved tiers, priorities, selectors and named ports before. `pipeline.policies` makes the flows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

import msgspec
from msgspec import Struct

from windlass.model.port_sets import ALL_PORTS, NO_PORTS, PortSet
from windlass.model.prefixes import Prefix


class Direction(Enum):
    EGRESS = "egress"
    INGRESS = "ingress"

    __hash__ = object.__hash__  # as of Family: each exists once


NO_CLASS = 0  # the class of peers that no rule in use selects


class RulePorts(Struct, frozen=True, gc=False):
    """The ports that one rule decides about."""

    ports: PortSet
    allows: bool


class PolicySubject(Struct, frozen=True, gc=False):
    """The allowed ports of Pods with the same policies for each class of peers, in one direction."""

    direction: Direction
    number: int
    default: PortSet  # for classes that are not in `verdicts`
    verdicts: Mapping[int, PortSet]
    # Only where rules are counted: the classes about which several rules decide, NO_CLASS for the default. Together the
    # parts of a class cover all ports, each once.
    by_rule: Mapping[int, tuple[RulePorts, ...]] = {}

    @property
    def port_sets(self) -> Iterator[PolicyPorts]:
        """The sets for which the switch must match a port, each once. They can be shared with other subjects."""
        verdicts = ((NO_CLASS, self.default), *self.verdicts.items())
        distinct = {ports for number, ports in verdicts if number not in self.by_rule} - {ALL_PORTS, NO_PORTS}
        return (PolicyPorts(self.direction, ports) for ports in distinct)

    @staticmethod
    def key_of(direction: Direction, number: int) -> str:
        return f"{direction.value} {number:016x}"


class PolicyPorts(Struct, frozen=True, gc=False):
    """A set of ports that a subject allows for a class. Many subjects share one."""

    direction: Direction
    ports: PortSet

    @property
    def key(self) -> str:
        return f"{self.direction.value} {digest_of(self.ports):016x}"


class PeerEntry(Struct, frozen=True, gc=False):
    """The classes of the peers in a network, except for longer prefixes with an entry."""

    prefix: Prefix
    egress: int | None  # as a destination; None: a shorter prefix decides
    ingress: int | None  # as a source

    def of(self, direction: Direction) -> int | None:
        return self.egress if direction is Direction.EGRESS else self.ingress


class PodPolicy(Struct, frozen=True, gc=False):
    """The policies of a local Pod in one direction."""

    subject: int
    itself: tuple[
        tuple[Prefix, PortSet], ...
    ] = ()  # by its own address: the ports at which it may reach itself through a Service


class PodPolicies(Struct, frozen=True, gc=False):
    """The policies of a local Pod. A direction of None has no policies: everything is allowed."""

    egress: PodPolicy | None = None
    ingress: PodPolicy | None = None

    def of(self, direction: Direction) -> PodPolicy | None:
        return self.egress if direction is Direction.EGRESS else self.ingress


# For a Pod whose labels are not known yet, in a cluster with policies. No subject has this number, so no verdict allows
# anything.
UNKNOWN_SUBJECT = (1 << 64) - 1
DENY_UNTIL_KNOWN = PodPolicies(PodPolicy(UNKNOWN_SUBJECT), PodPolicy(UNKNOWN_SUBJECT))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicies:
    pods: Mapping[str, PodPolicies] = field(default_factory=dict)  # by namespace/name
    subjects: Mapping[str, PolicySubject] = field(default_factory=dict)  # by their key
    ports: Mapping[str, PolicyPorts] = field(default_factory=dict)  # by their key: those of the subjects
    peers: Mapping[str, PeerEntry] = field(default_factory=dict)  # by the text of the network


_encode = msgspec.json.Encoder().encode
_digest = blake2b(digest_size=8)  # of nothing: to copy it takes less time than to make another


def digest_of(content: object) -> int:
    """A number of 64 bits that identifies this content, the same in every process. Never 0."""
    digest = _digest.copy()
    digest.update(_encode(content))
    return int.from_bytes(digest.digest()) or 1
