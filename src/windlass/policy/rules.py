"""One form for the rules of both kinds of policy, for the compiler. Pure data.

`readings` makes them from the API's objects, and decides there about everything that cannot be read.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from functools import lru_cache

from msgspec import Struct

from windlass.model.policies import Direction, digest_of
from windlass.model.port_sets import ALL_PORTS, PortSet
from windlass.model.services import Protocol
from windlass.policy.selectors import EVERYTHING, Selector


class Tier(IntEnum):
    """In the order of evaluation."""

    ADMIN = 0
    NETWORK_POLICY = 1
    BASELINE = 2


class RuleAction(Enum):
    ACCEPT = "Accept"
    DENY = "Deny"
    PASS = "Pass"  # noqa: S105 - to the next tier; not a password


class PodPeers(Struct, frozen=True, gc=False, tag=True, cache_hash=True, array_like=True):
    """Pods with matching labels, in one namespace or in the namespaces that a selector matches."""

    namespace: str | None = None
    namespaces: Selector = EVERYTHING  # used if `namespace` is None
    pods: Selector = EVERYTHING


class NodePeers(Struct, frozen=True, gc=False, tag=True, cache_hash=True, array_like=True):
    nodes: Selector


class BlockPeers(Struct, frozen=True, gc=False, tag=True, cache_hash=True, array_like=True):
    network: str
    excepts: tuple[str, ...] = ()


class OwnNode(Struct, frozen=True, gc=False, tag=True, cache_hash=True, array_like=True):
    """The Node on which a Pod runs."""


RulePeers = PodPeers | NodePeers | BlockPeers | OwnNode


class UnlistedPods(Struct, frozen=True, gc=False, tag=True, cache_hash=True, array_like=True):
    """Addresses of Pods of other Nodes that are not known yet, and that this selector may match."""

    pods: PodPeers
    block: int | None = None  # only those in this block


@lru_cache(32_768)  # many rules have the same peers, and are read again with each change of a subject
def number_of(peers: RulePeers | UnlistedPods) -> int:
    """A digest, so it is the same in every process."""
    return digest_of(peers)


@lru_cache(32_768)
def possible_number_of(number: int) -> int:
    """For a peer whose namespace this selector may match: its labels are not known yet."""
    return digest_of((number, "possible"))


class NamedPort(Struct, frozen=True, gc=False, array_like=True):
    """A port of the destination Pod; without a protocol, of any protocol."""

    name: str
    protocol: Protocol | None = None


class PolicyRule(Struct, frozen=True, gc=False, array_like=True):
    name: str  # for people: the policy, the direction and the place of the rule in it
    action: RuleAction
    peers: tuple[RulePeers, ...] | None = None  # None: everyone
    ports: PortSet = ALL_PORTS
    named_ports: tuple[NamedPort, ...] = ()


class ReadPolicy(Struct, frozen=True, gc=False, array_like=True):
    """A policy in the form of the compiler. It does not affect a direction whose rules are None."""

    name: str  # for people: kind and key
    tier: Tier
    priority: int
    subject: PodPeers
    ingress: tuple[PolicyRule, ...] | None
    egress: tuple[PolicyRule, ...] | None

    def rules(self, direction: Direction) -> tuple[PolicyRule, ...] | None:
        return self.ingress if direction is Direction.INGRESS else self.egress

    @property
    def order(self) -> tuple[int, int, str]:
        """Kubernetes does not define the order of equal priorities; Windlass orders them by name."""
        return self.tier, self.priority, self.name
