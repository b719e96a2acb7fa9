"""The compiled policies as an immutable value of NodeState: each change makes a new one, which shares the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import NamedTuple

from windlass.model.mappings import PersistentMap
from windlass.model.policies import (
    Direction,
    NodePolicies,
    PeerEntry,
    PodPolicies,
    PolicyPorts,
    PolicySubject,
    RulePorts,
)
from windlass.model.prefixes import prefix_text
from windlass.policy.compiler import PolicyChange, PolicyCompiler, Verdicts

Changes = Mapping[Direction, PolicyChange]


class SettledKeys(NamedTuple):
    """The keys in NodePolicies that have changed."""

    pods: AbstractSet[str]
    subjects: AbstractSet[str]
    ports: AbstractSet[str]
    peers: AbstractSet[str]


class CompiledPolicies:
    """The output of a compiler; only `settle` changes it."""

    def __init__(self, compiler: PolicyCompiler) -> None:
        self.compiler = compiler
        self._pods: PersistentMap[PodPolicies] = PersistentMap()
        self._subjects: PersistentMap[PolicySubject] = PersistentMap()
        self._ports: PersistentMap[PolicyPorts] = PersistentMap()
        self._users: dict[PolicyPorts, int] = {}  # how many subjects have a set of ports
        self._peers: PersistentMap[PeerEntry] = PersistentMap()

    @property
    def policies(self) -> NodePolicies:
        return NodePolicies(pods=self._pods, subjects=self._subjects, ports=self._ports, peers=self._peers)

    def settle(self) -> SettledKeys:
        """Compiles all changes since the last call."""
        changes = self.compiler.settle()
        pods, subjects = self._changed_pods(changes), self._changed_subjects(changes)
        ports, peers = self._changed_ports(subjects), self._changed_peers(changes)
        self._pods = self._pods.updated(pods)
        self._subjects = self._subjects.updated(subjects)
        self._ports = self._ports.updated(ports)
        self._peers = self._peers.updated(peers)
        return SettledKeys(pods.keys(), subjects.keys(), ports.keys(), peers.keys())

    def _changed_pods(self, changes: Changes) -> dict[str, PodPolicies | None]:
        egress, ingress = self.compiler.egress.pods, self.compiler.ingress.pods
        changed = {key for change in changes.values() for key in change.pods}
        found = {key: PodPolicies(egress.get(key), ingress.get(key)) for key in changed}
        return {key: one if one.egress or one.ingress else None for key, one in found.items()}

    def _changed_subjects(self, changes: Changes) -> dict[str, PolicySubject | None]:
        changed: dict[str, PolicySubject | None] = {}
        for direction, change in changes.items():
            verdicts = self.compiler.of(direction).verdicts
            for number in change.subjects:
                found = verdicts.get(number)
                changed[PolicySubject.key_of(direction, number)] = (
                    PolicySubject(direction, number, found.default, dict(found.by_class), _parts_by_rule(found))
                    if found
                    else None
                )
        return changed

    def _changed_ports(self, subjects: Mapping[str, PolicySubject | None]) -> dict[str, PolicyPorts | None]:
        went = _port_sets(self._subjects.get(key) for key in subjects)
        came = _port_sets(subjects.values())
        changed: dict[str, PolicyPorts | None] = {}
        for ports in went | came:
            before = self._users.pop(ports, 0)
            if after := before + came[ports] - went[ports]:
                self._users[ports] = after
            if bool(after) != bool(before):
                changed[ports.key] = ports if after else None
        return changed

    def _changed_peers(self, changes: Changes) -> dict[str, PeerEntry | None]:
        egress, ingress = self.compiler.egress.entries, self.compiler.ingress.entries
        changed: dict[str, PeerEntry | None] = {}
        for prefix in dict.fromkeys(chain.from_iterable(change.entries for change in changes.values())):
            entry = PeerEntry(prefix, egress.get(prefix), ingress.get(prefix))
            changed[prefix_text(prefix)] = None if entry.egress is None and entry.ingress is None else entry
        return changed


def _parts_by_rule(verdicts: Verdicts) -> dict[int, tuple[RulePorts, ...]]:
    """If one rule decides about all ports, the flow of the verdict counts its packets."""
    return {
        peer_class: tuple(RulePorts(one.ports, one.allows) for one in parts)
        for peer_class, parts in verdicts.by_rule.items()
        if len(parts) > 1
    }


def _port_sets(subjects: Iterable[PolicySubject | None]) -> Counter[PolicyPorts]:
    """How many of the subjects have each set of ports."""
    return Counter(ports for subject in subjects if subject is not None for ports in subject.port_sets)
