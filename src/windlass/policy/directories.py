"""The Pods, namespaces and Nodes that policies may select, indexed for the lookups of policies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import TypeAlias, TypeVar

from msgspec import Struct

from windlass.cluster.clusters import Namespaces
from windlass.cluster.policy_objects import Labels
from windlass.model.prefixes import Prefix
from windlass.policy.blocks import outermost, within
from windlass.policy.rules import PodPeers
from windlass.policy.selector_places import Label
from windlass.policy.selectors import Selector
from windlass.policy.subjects import NumberedPort

LabelSet: TypeAlias = tuple[Label, ...]  # sorted: a value

_Key = TypeVar("_Key")
_Member = TypeVar("_Member")

_FEW = 100  # up to this many changed addresses are inserted one by one; more are sorted anew

NAME_LABEL = "kubernetes.io/metadata.name"


def namespace_labels(name: str, labels: Labels | None) -> Labels:
    """An API server labels each namespace with its name; manifests may omit the label, or the whole namespace."""
    return {NAME_LABEL: name, **(labels or {})}


class SelectablePod(Struct, frozen=True, gc=False):
    """A Pod with addresses of its own, and everything that policies can select it by."""

    namespace: str
    name: str
    labels: LabelSet
    addresses: tuple[Prefix, ...]
    named_ports: tuple[NumberedPort, ...] = ()
    created: datetime | None = None  # of two Pods with the same address, the newer one owns it

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def attributes(self) -> tuple[object, ...]:
        """What rules select it by."""
        return self.labels, self.named_ports


class PeerNode(Struct, frozen=True, gc=False):
    name: str
    labels: LabelSet
    addresses: tuple[Prefix, ...]
    pod_networks: tuple[Prefix, ...] = ()


_Holder = TypeVar("_Holder", bound=SelectablePod | PeerNode)


class Directory:
    def __init__(self, own_node: str, *, awaits_namespaces: bool = False) -> None:
        """`awaits_namespaces`: a namespace that is not known has labels, which come later. Else it has none."""
        self.own_node = own_node
        self._awaits_namespaces = awaits_namespaces
        self._awaited: set[str] = set()  # such namespaces that have Pods
        self.pods: dict[str, SelectablePod] = {}  # by namespace/name
        self.nodes: dict[str, PeerNode] = {}
        self.namespaces: dict[str, Labels] = {}
        self.listed: Namespaces = None  # namespaces all of whose Pods are known; None: all
        self.label_sets: dict[str, dict[LabelSet, set[str]]] = {}  # by namespace: the Pods with the same labels
        # By namespace and label: the label sets with it. Only of namespaces in which `matching_label_sets` needs it.
        self._with_label: dict[str, dict[Label, set[LabelSet]]] = {}
        self.naming: dict[str, set[str]] = {}  # by the name of a port: the Pods that have it
        self._namespaces_at: dict[tuple[str, str], set[str]] = {}  # by label
        self._pods_at: dict[Prefix, tuple[SelectablePod, ...]] = {}  # nearly always one Pod
        self._nodes_at: dict[Prefix, tuple[PeerNode, ...]] = {}
        self._unlisted_networks: list[Prefix] | None = None  # None: must be found again
        self._sorted: list[Prefix] = []  # the addresses of Pods and Nodes, as of the last `addresses_in`
        self._unsorted: set[Prefix] = set()  # addresses added or removed since then; of many, not all are noted

    def set_namespace(self, name: str, labels: Labels | None) -> None:
        _remove(self._namespaces_at, self.namespaces.pop(name, {}).items(), name)
        if labels is not None:
            self.namespaces[name] = labels
            _add(self._namespaces_at, labels.items(), name)
        self._follow_awaited(name)

    def set_pod(self, key: str, pod: SelectablePod | None) -> SelectablePod | None:
        """Returns the previous Pod of this name."""
        if (before := self.pods.pop(key, None)) is not None:
            in_namespace = self.label_sets[before.namespace]
            _remove(in_namespace, [before.labels], key)
            with_label = self._with_label.get(before.namespace)
            if with_label is not None and before.labels not in in_namespace:
                _remove(with_label, before.labels, before.labels)
            if not in_namespace:
                del self.label_sets[before.namespace]
                self._with_label.pop(before.namespace, None)
                self._follow_awaited(before.namespace)
            _remove(self.naming, {port[0] for port in before.named_ports}, key)
            self._leave(self._pods_at, before)
        if pod is not None:
            self.pods[key] = pod
            for name, _, _ in pod.named_ports:
                self.naming.setdefault(name, set()).add(key)
            if (with_labels := self.label_sets.get(pod.namespace)) is None:
                with_labels = self.label_sets[pod.namespace] = {}
                self._follow_awaited(pod.namespace)
            if (alike := with_labels.get(pod.labels)) is None:
                with_labels[pod.labels] = {key}
                if (with_label := self._with_label.get(pod.namespace)) is not None:
                    _add(with_label, pod.labels, pod.labels)
            else:
                alike.add(key)
            self._enter(self._pods_at, pod)
        return before

    def set_node(self, name: str, node: PeerNode | None) -> PeerNode | None:
        if (before := self.nodes.pop(name, None)) is not None:
            self._leave(self._nodes_at, before)
        if node is not None:
            self.nodes[name] = node
            self._enter(self._nodes_at, node)
        if (before.pod_networks if before else ()) != (node.pod_networks if node else ()):
            self._unlisted_networks = None
        return before

    def pod_at(self, address: Prefix) -> SelectablePod | None:
        """The newest Pod with this address: an address is reused after a Pod has ended."""
        pods = self._pods_at.get(address, ())
        if len(pods) == 1:
            return pods[0]
        return max(pods, key=lambda pod: (pod.created.timestamp() if pod.created else 0.0, pod.key), default=None)

    def nodes_at(self, address: Prefix) -> tuple[PeerNode, ...]:
        return self._nodes_at.get(address, ())

    def node_addresses(self) -> Iterator[Prefix]:
        return (address for node in self.nodes.values() for address in node.addresses)

    @property
    def unlisted_networks(self) -> list[Prefix]:
        """Where an unknown address may be that of a Pod that is not listed yet. Sorted, none inside another."""
        if (networks := self._unlisted_networks) is None:
            others = (node for node in self.nodes.values() if node.name != self.own_node)
            found = outermost(network for node in others for network in node.pod_networks)
            networks = self._unlisted_networks = list(found)
        return networks

    def matching_label_sets(self, namespace: str, pods: Selector) -> list[LabelSet]:
        """Those of Pods in this namespace that the selector matches. Often each Pod has a label of its own."""
        candidates: Iterable[LabelSet] = self.label_sets.get(namespace, ())
        if candidates and (labels := pods.labels_of_a_match()):
            if (with_label := self._with_label.get(namespace)) is None:
                with_label = self._with_label[namespace] = {}
                for label_set in candidates:
                    _add(with_label, label_set, label_set)
            candidates = chain.from_iterable(with_label.get(label, ()) for label in labels)
        return [label_set for label_set in candidates if pods.matches(dict(label_set))]

    def addresses_in(self, network: Prefix) -> list[Prefix]:
        """The addresses of Pods and Nodes inside a network."""
        if len(self._unsorted) > _FEW:
            self._sorted = sorted(self._pods_at.keys() | self._nodes_at.keys())
        else:
            for address in self._unsorted:
                self._sort_in(address)
        self._unsorted.clear()
        return within(self._sorted, network)

    def _sort_in(self, address: Prefix) -> None:
        place = bisect_left(self._sorted, address)
        is_listed = place < len(self._sorted) and self._sorted[place] == address
        is_known = address in self._pods_at or address in self._nodes_at
        if is_known and not is_listed:
            self._sorted.insert(place, address)
        elif is_listed and not is_known:
            del self._sorted[place]

    def _enter(self, index: dict[Prefix, tuple[_Holder, ...]], holder: _Holder) -> None:
        for address in holder.addresses:
            index[address] = (*index.get(address, ()), holder)
            self._note_unsorted(address)

    def _leave(self, index: dict[Prefix, tuple[_Holder, ...]], holder: _Holder) -> None:
        for address in holder.addresses:
            others = tuple(one for one in index.pop(address, ()) if one is not holder)
            if others:
                index[address] = others
            self._note_unsorted(address)

    def _note_unsorted(self, address: Prefix) -> None:
        if len(self._unsorted) <= _FEW:
            self._unsorted.add(address)

    def labels_of(self, namespace: str) -> Labels:
        known = self.namespaces.get(namespace)
        return namespace_labels(namespace, None) if known is None else known

    def selects_namespace(self, peers: PodPeers, namespace: str) -> bool | None:
        """None: labels decide that are not known yet."""
        if peers.namespace is not None:
            return peers.namespace == namespace
        selector, labels = peers.namespaces, self.labels_of(namespace)
        if not self._awaits_namespaces or namespace in self.namespaces:
            return selector.matches(labels)
        if not all(one.accepts(labels) for one in selector.requirements if one.key in labels):
            return False
        return True if all(one.key in labels for one in selector.requirements) else None

    def selected_namespaces(self, peers: PodPeers) -> list[str]:
        """Those that are known or have Pods, and are selected or may be."""
        if peers.namespace is not None:
            return [peers.namespace]
        if labels := peers.namespaces.labels_of_a_match():
            # A namespace that is not known has the label of its name: see `labels_of`.
            unknown = {value for key, value in labels if key == NAME_LABEL}
            names = unknown.union(self._awaited, *(self._namespaces_at.get(label, ()) for label in labels))
        else:
            names = self.namespaces.keys() | self.label_sets.keys()
        return [name for name in names if self.selects_namespace(peers, name) is not False]

    def selects(self, peers: PodPeers, pod: SelectablePod) -> bool:
        return bool(self.selects_namespace(peers, pod.namespace)) and peers.pods.matches(dict(pod.labels))

    def _follow_awaited(self, namespace: str) -> None:
        """Call it when the namespace or its first Pod came, or it or its last Pod went."""
        if self._awaits_namespaces and namespace in self.label_sets and namespace not in self.namespaces:
            self._awaited.add(namespace)
        else:
            self._awaited.discard(namespace)


def _add(index: dict[_Key, set[_Member]], keys: Iterable[_Key], member: _Member) -> None:
    for key in keys:
        index.setdefault(key, set()).add(member)


def _remove(index: dict[_Key, set[_Member]], keys: Iterable[_Key], member: _Member) -> None:
    for key in keys:
        index[key].discard(member)
        if not index[key]:
            del index[key]
