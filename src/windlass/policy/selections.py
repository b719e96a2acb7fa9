"""Which of the Pod selectors in use match the Pods with certain labels, remembered for each set of labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from windlass.policy.directories import Directory, Identity
from windlass.policy.rules import PodPeers
from windlass.policy.selectors import EVERYTHING


class MeantNamespaces:
    """The namespaces that selectors in use mean, counted, so that a change costs no more than its own selector."""

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
            meant = {peers.namespace}
        elif peers.namespaces == EVERYTHING:
            self._everywhere.add(number)
            return
        else:
            meant = {name for name in self._directory.namespaces if self._directory.selects_namespace(peers, name)}
        self._of[number] = meant
        self._uses.update(meant)

    def remove(self, number: int) -> None:
        self._everywhere.discard(number)
        for name in self._of.pop(number, ()):
            self._forget(name)

    def follow(self, name: str, in_use: Mapping[int, PodPeers]) -> None:
        """Its labels have changed, or it came or went."""
        is_there = name in self._directory.namespaces
        for number, meant in self._of.items():
            peers = in_use[number]
            if peers.namespace is not None:
                continue
            is_meant = is_there and self._directory.selects_namespace(peers, name)
            if is_meant and name not in meant:
                meant.add(name)
                self._uses[name] += 1
            elif not is_meant and name in meant:
                meant.discard(name)
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
        self._meant = MeantNamespaces(directory)
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
        """Those in which the selectors in use can match Pods; None: all."""
        return self._meant.namespaces

    def add(self, number: int, peers: PodPeers) -> set[str]:
        """Returns the Pods that it matches."""
        self._in_use[number] = peers
        self._meant.add(number, peers)
        for namespace, there in self._by_namespace.items():
            if self._directory.selects_namespace(peers, namespace):
                there[number] = peers
        return self._forget_matches(peers)

    def remove(self, number: int) -> set[str]:
        peers = self._in_use.pop(number)
        self._meant.remove(number)
        for there in self._by_namespace.values():
            there.pop(number, None)
        return self._forget_matches(peers)

    def follow_namespace(self, namespace: str) -> set[str]:
        """Its labels have changed: returns the Pods that other selectors match now."""
        self._by_namespace.pop(namespace, None)
        self._meant.follow(namespace, self._in_use)
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
