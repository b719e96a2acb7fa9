"""The Pods, namespaces and Nodes that policies may mean, indexed by what policies ask of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TypeAlias, TypeVar

from msgspec import Struct

from windlass.model.families import IPAddress
from windlass.policy.blocks import Prefix, prefix_of
from windlass.policy.rules import PodPeers
from windlass.policy.selectors import Labels
from windlass.policy.subjects import PodPort

LabelSet: TypeAlias = tuple[tuple[str, str], ...]  # sorted: a value
Identity: TypeAlias = tuple[str, LabelSet]  # the namespace and the labels of a Pod: all that selectors see of it

Key = TypeVar("Key")

NAME_LABEL = "kubernetes.io/metadata.name"


def namespace_labels(name: str, labels: Labels | None) -> Labels:
    """An API server gives each namespace a label with its name; manifests may lack it, or the whole namespace."""
    return {NAME_LABEL: name, **(labels or {})}


class PeerPod(Struct, frozen=True, gc=False):
    """A Pod with addresses of its own, and all that policies can mean of it."""

    namespace: str
    name: str
    labels: LabelSet
    addresses: tuple[IPAddress, ...]
    named_ports: tuple[PodPort, ...] = ()
    created: datetime | None = None  # of two Pods that claim one address, the newer has it

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def identity(self) -> Identity:
        return self.namespace, self.labels


class PeerNode(Struct, frozen=True, gc=False):
    name: str
    labels: LabelSet
    addresses: tuple[IPAddress, ...]


class Directory:
    def __init__(self, own_node: str) -> None:
        self.own_node = own_node
        self.pods: dict[str, PeerPod] = {}  # by namespace/name
        self.nodes: dict[str, PeerNode] = {}
        self.namespaces: dict[str, Labels] = {}
        self.identities: dict[str, dict[Identity, set[str]]] = {}  # by namespace: the Pods of each
        self.addresses: list[Prefix] = []  # of Pods and Nodes, sorted
        self._pods_at: dict[IPAddress, set[str]] = {}
        self._nodes_at: dict[IPAddress, set[str]] = {}

    def set_pod(self, key: str, pod: PeerPod | None) -> PeerPod | None:
        """Returns the Pod that it was before."""
        if (before := self.pods.pop(key, None)) is not None:
            _remove(self.identities[before.namespace], [before.identity], key)
            _remove(self._pods_at, before.addresses, key)
        if pod is not None:
            self.pods[key] = pod
            self.identities.setdefault(pod.namespace, {}).setdefault(pod.identity, set()).add(key)
            for address in pod.addresses:
                self._pods_at.setdefault(address, set()).add(key)
        self._list_addresses((before, pod))
        return before

    def set_node(self, name: str, node: PeerNode | None) -> PeerNode | None:
        if (before := self.nodes.pop(name, None)) is not None:
            _remove(self._nodes_at, before.addresses, name)
        if node is not None:
            self.nodes[name] = node
            for address in node.addresses:
                self._nodes_at.setdefault(address, set()).add(name)
        self._list_addresses((before, node))
        return before

    def pod_at(self, address: IPAddress) -> PeerPod | None:
        """The newest of those that claim it: an address is given out again when a Pod has ended."""
        claims = [self.pods[key] for key in self._pods_at.get(address, ())]
        return max(claims, key=lambda pod: (pod.created.timestamp() if pod.created else 0.0, pod.key), default=None)

    def nodes_at(self, address: IPAddress) -> Iterator[PeerNode]:
        return (self.nodes[name] for name in self._nodes_at.get(address, ()))

    def node_addresses(self) -> Iterator[IPAddress]:
        return (address for node in self.nodes.values() for address in node.addresses)

    def _list_addresses(self, holders: Iterable[PeerPod | PeerNode | None]) -> None:
        """Bring `addresses` up to date with those that these had or have."""
        for address in {address for one in holders if one is not None for address in one.addresses}:
            prefix = prefix_of(address)
            place = bisect_left(self.addresses, prefix)
            is_listed = place < len(self.addresses) and self.addresses[place] == prefix
            is_known = address in self._pods_at or address in self._nodes_at
            if is_known and not is_listed:
                self.addresses.insert(place, prefix)
            elif is_listed and not is_known:
                del self.addresses[place]

    def labels_of(self, namespace: str) -> Labels:
        known = self.namespaces.get(namespace)
        return namespace_labels(namespace, None) if known is None else known

    def selects_namespace(self, peers: PodPeers, namespace: str) -> bool:
        if peers.namespace is not None:
            return peers.namespace == namespace
        return peers.namespaces.matches(self.labels_of(namespace))

    def selects(self, peers: PodPeers, pod: PeerPod) -> bool:
        return self.selects_namespace(peers, pod.namespace) and peers.pods.matches(dict(pod.labels))


def _remove(index: dict[Key, set[str]], keys: Iterable[Key], member: str) -> None:
    for key in keys:
        index[key].discard(member)
        if not index[key]:
            del index[key]
