"""Which of the Pod selectors in use match the Pods with certain labels, remembered for each set of labels."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.policy.directories import Directory, Identity
from windlass.policy.rules import PodPeers


class Selections:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._in_use: dict[int, PodPeers] = {}
        self._found: dict[Identity, frozenset[int]] = {}
        self._by_namespace: dict[str, dict[int, PodPeers]] = {}  # the selectors whose namespaces include this one

    def matching(self, identity: Identity) -> frozenset[int]:
        """The numbers of the selectors that match Pods with these labels."""
        if (known := self._found.get(identity)) is not None:
            return known
        labels = dict(identity[1])
        there = self._selectors_in(identity[0])
        found = frozenset(number for number, peers in there.items() if peers.pods.matches(labels))
        self._found[identity] = found
        return found

    def add(self, number: int, peers: PodPeers) -> set[str]:
        """Returns the Pods that it matches."""
        self._in_use[number] = peers
        for namespace, there in self._by_namespace.items():
            if self._directory.selects_namespace(peers, namespace):
                there[number] = peers
        return self._forget_matches(peers)

    def remove(self, number: int) -> set[str]:
        peers = self._in_use.pop(number)
        for there in self._by_namespace.values():
            there.pop(number, None)
        return self._forget_matches(peers)

    def follow_namespace(self, namespace: str) -> set[str]:
        """Its labels have changed: returns the Pods that other selectors match now."""
        self._by_namespace.pop(namespace, None)
        changed: set[str] = set()
        for identity, members in self._directory.identities.get(namespace, {}).items():
            before = self._found.pop(identity, frozenset())
            if before != self.matching(identity):
                changed |= members
        return changed

    def forget(self, identity: Identity) -> None:
        """No Pod has these labels any more."""
        self._found.pop(identity, None)

    def _selectors_in(self, namespace: str) -> dict[int, PodPeers]:
        if (known := self._by_namespace.get(namespace)) is not None:
            return known
        selects = self._directory.selects_namespace
        there = {number: peers for number, peers in self._in_use.items() if selects(peers, namespace)}
        self._by_namespace[namespace] = there
        return there

    def _forget_matches(self, peers: PodPeers) -> set[str]:
        namespaces: Iterable[str] = self._directory.identities if peers.namespace is None else (peers.namespace,)
        matched: set[str] = set()
        for namespace in namespaces:
            if self._directory.selects_namespace(peers, namespace):
                for identity, members in self._directory.identities.get(namespace, {}).items():
                    if peers.pods.matches(dict(identity[1])):
                        self._found.pop(identity, None)
                        matched |= members
        return matched
