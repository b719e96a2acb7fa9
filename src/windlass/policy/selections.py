"""Which of the Pod selectors in use match Pods with certain labels, cached for each set of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from windlass.cluster.clusters import Namespaces
from windlass.policy.directories import Directory, LabelSet
from windlass.policy.rules import PodPeers, possible_number_of
from windlass.policy.selector_places import Label
from windlass.policy.selectors import EVERYTHING, Selector


class MatchedNamespaces:
    """Which namespaces the selectors in use match, and the reverse, so that a change evaluates few selectors."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._of: dict[int, set[str]] = {}  # by selector
        self._selectors: dict[str, set[int]] = {}  # by namespace; no set is empty
        self._everywhere: set[int] = set()  # selectors of Pods in all namespaces

    @property
    def namespaces(self) -> Namespaces:
        return None if self._everywhere else frozenset(self._selectors)

    def is_inside(self, number: int, namespaces: frozenset[str]) -> bool:
        """Whether this selector matches Pods in these namespaces only."""
        return number in self._of and self._of[number] <= namespaces

    def selectors_in(self, namespace: str) -> set[int]:
        """Those that match this namespace, which is known."""
        return self._everywhere.union(self._selectors.get(namespace, ()))

    def add(self, number: int, peers: PodPeers) -> None:
        if peers.namespace is None and peers.namespaces == EVERYTHING:
            self._everywhere.add(number)
            return
        matched = set(self._directory.selected_namespaces(peers))
        if peers.namespace is None:
            matched &= self._directory.namespaces.keys()
        self._of[number] = matched
        for name in matched:
            self._selectors.setdefault(name, set()).add(number)

    def remove(self, number: int) -> None:
        self._everywhere.discard(number)
        for name in self._of.pop(number, ()):
            self._forget(name, number)

    def follow(self, name: str, in_use: Mapping[int, PodPeers]) -> None:
        """Call it when a namespace was added or removed, or its labels have changed."""
        is_there = name in self._directory.namespaces
        for number, matched in self._of.items():
            peers = in_use[number]
            if peers.namespace is not None:
                continue
            is_matched = is_there and bool(self._directory.selects_namespace(peers, name))
            if is_matched and name not in matched:
                matched.add(name)
                self._selectors.setdefault(name, set()).add(number)
            elif not is_matched and name in matched:
                matched.discard(name)
                self._forget(name, number)

    def _forget(self, name: str, number: int) -> None:
        self._selectors[name].discard(number)
        if not self._selectors[name]:
            del self._selectors[name]


class _LabelsInUse:
    """The selectors in use that ask for labels of Pods, by a label that every Pod that they match has."""

    def __init__(self) -> None:
        self._by_label: dict[Label | None, dict[int, Selector]] = {}  # None: they require no label by value

    def add(self, number: int, pods: Selector) -> None:
        for label in pods.labels_of_a_match() or (None,):
            self._by_label.setdefault(label, {})[number] = pods

    def remove(self, number: int, pods: Selector) -> None:
        for label in pods.labels_of_a_match() or (None,):
            del self._by_label[label][number]
            if not self._by_label[label]:
                del self._by_label[label]

    def matching(self, label_set: LabelSet, among: set[int]) -> list[int]:
        labels, found = dict(label_set), []
        for label in (None, *label_set):
            if there := self._by_label.get(label):
                found += [number for number in there.keys() & among if there[number].matches(labels)]
        return found


class _SelectorsInNamespace:
    """The selectors in use that look for Pods in one namespace."""

    def __init__(self, in_use: _LabelsInUse) -> None:
        self.found: dict[LabelSet, frozenset[int]] = {}  # those that match Pods with these labels
        self._in_use = in_use
        self._all_pods: set[int] = set()  # those that ask for no label
        self._frozen: frozenset[int] | None = None  # the same; None: must be rebuilt
        self._by_labels: set[int] = set()
        self._possible: set[int] = set()  # the labels of the namespace decide, and are not known yet

    def matching(self, label_set: LabelSet) -> frozenset[int]:
        if (for_all := self._frozen) is None:
            for_all = self._frozen = frozenset(self._as_matched(self._all_pods))
        if not self._by_labels:
            return for_all
        if (known := self.found.get(label_set)) is None:
            matched = self._in_use.matching(label_set, self._by_labels)
            self.found[label_set] = known = for_all.union(self._as_matched(matched)) if matched else for_all
        return known

    def add(self, number: int, pods: Selector, *, is_possible: bool) -> None:
        """The owner must remove entries of `found` that the selector matches."""
        if is_possible:
            self._possible.add(number)
        if pods == EVERYTHING:
            self._all_pods.add(number)
            self._forget_found()
        else:
            self._by_labels.add(number)

    def remove(self, number: int) -> None:
        if number in self._all_pods:
            self._all_pods.discard(number)
            self._forget_found()
        self._by_labels.discard(number)
        self._possible.discard(number)

    def _as_matched(self, numbers: Iterable[int]) -> Iterable[int]:
        if not self._possible:
            return numbers
        return [possible_number_of(number) if number in self._possible else number for number in numbers]

    def _forget_found(self) -> None:
        self._frozen = None
        self.found.clear()


class Selections:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._in_use: dict[int, PodPeers] = {}
        self._labels = _LabelsInUse()
        self._matched = MatchedNamespaces(directory)
        self._by_namespace: dict[str, _SelectorsInNamespace] = {}

    def matching(self, namespace: str, labels: LabelSet) -> frozenset[int]:
        """The numbers of the selectors that match Pods of this namespace with these labels.

        The possible number of a selector stands for one that may match: see `possible_number_of`.
        """
        return (self._by_namespace.get(namespace) or self._selectors_in(namespace)).matching(labels)

    @property
    def namespaces(self) -> Namespaces:
        """The namespaces in which the selectors in use can match Pods; None: all."""
        return self._matched.namespaces

    def is_inside(self, number: int, namespaces: Namespaces) -> bool:
        """Whether this selector can match Pods in these namespaces only. False if it is not in use."""
        return namespaces is None or self._matched.is_inside(number, namespaces)

    def add(self, number: int, peers: PodPeers) -> list[str]:
        """Returns the Pods that it matches."""
        self._in_use[number] = peers
        if peers.pods != EVERYTHING:
            self._labels.add(number, peers.pods)
        self._matched.add(number, peers)
        return self._changed_pods(peers, lambda name, there: self._add_to(there, name, number, peers))

    def remove(self, number: int) -> list[str]:
        peers = self._in_use.pop(number)
        if peers.pods != EVERYTHING:
            self._labels.remove(number, peers.pods)
        self._matched.remove(number)
        return self._changed_pods(peers, lambda _, there: there.remove(number))

    def follow_namespace(self, namespace: str) -> set[str]:
        """Call it when its labels have changed. Returns the Pods that other selectors match now."""
        before = self._by_namespace.pop(namespace, None) or _SelectorsInNamespace(self._labels)
        self._matched.follow(namespace, self._in_use)
        changed: set[str] = set()
        for labels, members in self._directory.label_sets.get(namespace, {}).items():
            if before.matching(labels) != self.matching(namespace, labels):
                changed |= members
        return changed

    def forget(self, namespace: str, labels: LabelSet) -> None:
        """Call it when no Pod of this namespace has these labels any more."""
        if namespace not in self._directory.label_sets:
            self._by_namespace.pop(namespace, None)  # without Pods, `selected_namespaces` may not list it any more
        elif (there := self._by_namespace.get(namespace)) is not None:
            there.found.pop(labels, None)

    def _selectors_in(self, namespace: str) -> _SelectorsInNamespace:
        there = self._by_namespace[namespace] = _SelectorsInNamespace(self._labels)
        if namespace in self._directory.namespaces:
            matching: Iterable[int] = self._matched.selectors_in(namespace)
        else:
            selects = self._directory.selects_namespace
            matching = (n for n, peers in self._in_use.items() if selects(peers, namespace) is not False)
        for number in matching:
            self._add_to(there, namespace, number, self._in_use[number])
        return there

    def _add_to(self, there: _SelectorsInNamespace, namespace: str, number: int, peers: PodPeers) -> None:
        is_known = namespace in self._directory.namespaces
        is_possible = not is_known and self._directory.selects_namespace(peers, namespace) is None
        there.add(number, peers.pods, is_possible=is_possible)

    def _changed_pods(self, peers: PodPeers, change: Callable[[str, _SelectorsInNamespace], None]) -> list[str]:
        """Apply the change wherever the selector looks for Pods. Returns the Pods that it matches or may match."""
        matched: list[str] = []
        for namespace in self._directory.selected_namespaces(peers):
            if (there := self._by_namespace.get(namespace)) is not None:
                change(namespace, there)
            label_sets = self._directory.label_sets.get(namespace, {})
            if peers.pods == EVERYTHING:
                matched.extend(chain.from_iterable(label_sets.values()))
                continue
            for labels in self._directory.matching_label_sets(namespace, peers.pods):
                matched += label_sets[labels]
                if there is not None:
                    there.found.pop(labels, None)
        return matched
