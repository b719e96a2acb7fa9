"""Which of the Pod selectors in use match Pods with certain labels, cached for each set of labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from windlass.policy.directories import Directory, Identity
from windlass.policy.rules import PodPeers
from windlass.policy.selectors import EVERYTHING


class MatchedNamespaces:
    """The namespaces that selectors in use match, with a count, so that a change evaluates its own selector only."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._of: dict[int, set[str]] = {}  # by selector
        self._everywhere: set[int] = set()  # selectors of Pods in all namespaces
        self._uses: Counter[str] = Counter()

    @property
    def namespaces(self) -> frozenset[str] | None:
        return None if self._everywhere else frozenset(self._uses)

    def add(self, number: int, peers: PodPeers) -> None:
        if peers.namespace is not None:
            matched = {peers.namespace}
        elif peers.namespaces == EVERYTHING:
            self._everywhere.add(number)
            return
        else:
            matched = {name for name in self._directory.namespaces if self._directory.selects_namespace(peers, name)}
        self._of[number] = matched
        self._uses.update(matched)

    def remove(self, number: int) -> None:
        self._everywhere.discard(number)
        for name in self._of.pop(number, ()):
            self._forget(name)

    def follow(self, name: str, in_use: Mapping[int, PodPeers]) -> None:
        """Call it when a namespace was added or removed, or its labels have changed."""
        is_there = name in self._directory.namespaces
        for number, matched in self._of.items():
            peers = in_use[number]
            if peers.namespace is not None:
                continue
            is_matched = is_there and self._directory.selects_namespace(peers, name)
            if is_matched and name not in matched:
                matched.add(name)
                self._uses[name] += 1
            elif not is_matched and name in matched:
                matched.discard(name)
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._uses[name] -= 1
        if not self._uses[name]:
            del self._uses[name]


class Selections:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._in_use: dict[int, PodPeers] = {}
        self._found: dict[Identity, frozenset[int]] = {}
        self._matched = MatchedNamespaces(directory)
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

    @property
    def namespaces(self) -> frozenset[str] | None:
        """The namespaces in which the selectors in use can match Pods; None: all."""
        return self._matched.namespaces

    def add(self, number: int, peers: PodPeers) -> set[str]:
        """Returns the Pods that it matches."""
        self._in_use[number] = peers
        self._matched.add(number, peers)
        for namespace, there in self._by_namespace.items():
            if self._directory.selects_namespace(peers, namespace):
                there[number] = peers
        return self._forget_matches(peers)

    def remove(self, number: int) -> set[str]:
        peers = self._in_use.pop(number)
        self._matched.remove(number)
        for there in self._by_namespace.values():
            there.pop(number, None)
        return self._forget_matches(peers)

    def follow_namespace(self, namespace: str) -> set[str]:
        """Call it when its labels have changed. Returns the Pods that other selectors match now."""
        self._by_namespace.pop(namespace, None)
        self._matched.follow(namespace, self._in_use)
        changed: set[str] = set()
        for identity, members in self._directory.identities.get(namespace, {}).items():
            before = self._found.pop(identity, frozenset())
            if before != self.matching(identity):
                changed |= members
        return changed

    def forget(self, identity: Identity) -> None:
        """Call it when no Pod has these labels any more."""
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
