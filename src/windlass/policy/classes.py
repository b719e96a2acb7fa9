"""Groups peers that the policies of this Node treat alike: each address and network in use has a class.

A class is the set of selectors and blocks in use that match, and the named ports in use. Policies are resolved per
class, so adding or removing a Pod changes one entry, however many rules match it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct

from windlass.model.policies import NO_CLASS, digest_of
from windlass.model.prefixes import Prefix
from windlass.policy.blocks import Blocks, outermost
from windlass.policy.directories import Directory, PeerNode, SelectablePod
from windlass.policy.rules import BlockPeers, NodePeers, OwnNode, PodPeers, RulePeers, UnlistedPods
from windlass.policy.selections import Selections
from windlass.policy.subjects import NumberedPort
from windlass.policy.unlisted_peers import UnlistedPeers

ClassPart: TypeAlias = int | str  # the number of a selector or block, or the name of a port


class PeerClass(Struct, frozen=True, gc=False):
    """Made by `class_with`."""

    number: int  # a digest of the other fields; NO_CLASS for nothing
    peers: frozenset[int]  # the numbers of the selectors and blocks that match
    named_ports: tuple[NumberedPort, ...]

    @property
    def parts(self) -> set[ClassPart]:
        """Rules that use any of these may decide about the class."""
        return {*self.peers, *(name for name, _, _ in self.named_ports)}


@lru_cache(4096)  # called for each peer, and many peers have the same class
def class_with(peers: frozenset[int], named_ports: tuple[NumberedPort, ...] = ()) -> PeerClass:
    number = digest_of((sorted(peers), named_ports)) if peers or named_ports else NO_CLASS
    return PeerClass(number, peers, named_ports)


NO_PEERS = class_with(frozenset())


class PeerClasses:
    """The classes of one direction. `changed`, `added` and `removed` collect changes until `forget_changes`.

    Other methods only note which entries may have changed; `refresh` updates each of them once, however many selectors
    were added or removed.
    """

    def __init__(self, directory: Directory) -> None:
        self.entries: dict[Prefix, int] = {}  # the class of each address and network that needs an entry
        self.classes: dict[int, PeerClass] = {}
        self.having: dict[ClassPart, set[int]] = {}  # the classes with this part
        self.changed: dict[Prefix, None] = {}  # entries, in order
        self.added: set[int] = set()  # classes
        self.removed: set[int] = set()
        self._directory = directory
        self._selections = Selections(directory)
        self._blocks = Blocks()
        self._of_nodes: dict[int, NodePeers | OwnNode] = {}
        self._unlisted = UnlistedPeers(directory, self._selections)
        self._uses: Counter[int] = Counter()  # how many rules use a selector or block
        self._names: Counter[str] = Counter()  # of named ports: how many rules use them
        self._members: Counter[int] = Counter()  # how many entries have a class
        self._stale: dict[Prefix, None] = {}  # entries that `refresh` must update, in order
        self._stale_blocks: set[Prefix] = set()  # networks in which it must update all entries

    @property
    def namespaces(self) -> frozenset[str] | None:
        """The namespaces in which rules in use select Pods; None: all."""
        return self._selections.namespaces

    def use(self, number: int, peers: RulePeers | UnlistedPods) -> None:
        self._uses[number] += 1
        if self._uses[number] > 1:
            return
        match peers:
            case PodPeers():
                self._mark_pods(self._selections.add(number, peers))
            case BlockPeers():
                self._mark_block(self._blocks.add(number, peers))
            case NodePeers() | OwnNode():
                self._of_nodes[number] = peers
                self._mark(self._directory.node_addresses())
            case UnlistedPods():
                self._unlisted.add(number, peers)

    def release(self, number: int, peers: RulePeers | UnlistedPods) -> None:
        self._uses[number] -= 1
        if self._uses[number]:
            return
        del self._uses[number]
        match peers:
            case PodPeers():
                self._mark_pods(self._selections.remove(number))
            case BlockPeers():
                self._mark_block(self._blocks.remove(number, peers))
            case NodePeers() | OwnNode():
                del self._of_nodes[number]
                self._mark(self._directory.node_addresses())
            case UnlistedPods():
                self._unlisted.remove(number)

    def use_name(self, name: str) -> None:
        self._names[name] += 1
        if self._names[name] == 1:
            self._mark_pods(self._directory.naming.get(name, ()))

    def release_name(self, name: str) -> None:
        self._names[name] -= 1
        if not self._names[name]:
            del self._names[name]
            self._mark_pods(self._directory.naming.get(name, ()))

    def follow_pod(self, before: SelectablePod | None, after: SelectablePod | None) -> None:
        """Call it after the directory has been updated."""
        if before is not None and before.labels not in self._directory.label_sets.get(before.namespace, {}):
            self._selections.forget(before.namespace, before.labels)
        if self._uses or self._names:  # otherwise nothing has a class
            self.follow_addresses(before, after)

    def follow_addresses(self, *holders: SelectablePod | PeerNode | None) -> None:
        """`holders`: a Pod or a Node before and after a change."""
        self._mark({address for one in holders if one is not None for address in one.addresses})

    def follow_namespace(self, name: str) -> None:
        """Call it after the directory has been updated."""
        self._mark_pods(self._selections.follow_namespace(name))
        self._unlisted.follow_namespaces()

    def refresh(self) -> None:
        """Update `entries` and `classes`, as of all changes until now."""
        networks = self._unlisted.refresh()
        self._mark(networks)
        self._stale_blocks.update(networks)
        for network in outermost(self._stale_blocks):
            self._mark(self._unlisted.networks_in(network))
            self._mark(self._blocks.networks_in(network))
            self._mark(self._directory.addresses_in(network))
        self._stale_blocks.clear()
        entries = self.entries
        for prefix in self._stale:
            before, after = entries.get(prefix), self._class_at(prefix)
            if before == (None if after is None else after.number):
                continue
            self.changed[prefix] = None
            if after is None:
                del entries[prefix]
            else:
                entries[prefix] = after.number
                self._enter(after)
            if before is not None:
                self._leave(before)
        self._stale.clear()

    def forget_changes(self) -> None:
        self.changed.clear()
        self.added.clear()
        self.removed.clear()

    def class_of(self, address: Prefix) -> PeerClass:
        """As the switch looks it up: the longest prefix that has an entry decides."""
        return self._class_at(address) or self._class_of_unknown(address)

    # --- details ------------------------------------------------------------------------------------------------------

    def _mark(self, prefixes: Iterable[Prefix]) -> None:
        self._stale.update(dict.fromkeys(prefixes))

    def _mark_pods(self, keys: Iterable[str]) -> None:
        self._mark(address for key in keys for address in self._directory.pods[key].addresses)

    def _mark_block(self, networks: tuple[Prefix, ...]) -> None:
        """`networks`: the block itself, and then its exceptions."""
        self._mark(networks)
        self._stale_blocks.add(networks[0])

    def _class_at(self, prefix: Prefix) -> PeerClass | None:
        """None if no entry is needed, because a shorter prefix has the same class."""
        named_ports: tuple[NumberedPort, ...] = ()
        if (pod := self._directory.pod_at(prefix)) is not None:
            matching = self._selections.matching(pod.namespace, pod.labels)
            if self._names:
                named_ports = tuple(sorted(port for port in pod.named_ports if port[0] in self._names))
        elif nodes := self._directory.nodes_at(prefix):
            matching = frozenset(self._selectors_of(nodes))
        else:
            is_network = self._blocks.is_used(prefix) or prefix in self._unlisted.networks_in(prefix)
            return self._class_of_unknown(prefix) if is_network else None
        is_in_network = self._blocks.is_used(prefix) or self._unlisted.may_have(prefix)
        if not is_in_network and not matching and not named_ports:
            return None
        holding = self._blocks.holding_for(prefix)
        return class_with(matching | holding if holding else matching, named_ports)

    def _class_of_unknown(self, prefix: Prefix) -> PeerClass:
        """Of an address that no known Pod or Node has, or of a network."""
        holding = self._blocks.holding_for(prefix)
        return class_with(self._unlisted.together_with(holding) if self._unlisted.may_have(prefix) else holding)

    def _selectors_of(self, nodes: tuple[PeerNode, ...]) -> Iterator[int]:
        for number, peers in self._of_nodes.items():
            match peers:
                case NodePeers(nodes=selector):
                    is_match = any(selector.matches(dict(node.labels)) for node in nodes)
                case OwnNode():
                    is_match = any(node.name == self._directory.own_node for node in nodes)
            if is_match:
                yield number

    def _enter(self, peer_class: PeerClass) -> None:
        number = peer_class.number
        if number in self._members:
            self._members[number] += 1
            return
        self._members[number] = 1
        if number == NO_CLASS:
            return
        self.classes[number] = peer_class
        self.added.add(number)
        self.removed.discard(number)
        for part in peer_class.parts:
            self.having.setdefault(part, set()).add(number)

    def _leave(self, number: int) -> None:
        self._members[number] -= 1
        if self._members[number]:
            return
        del self._members[number]
        if number == NO_CLASS:
            return
        self.added.discard(number)
        self.removed.add(number)
        for part in self.classes.pop(number).parts:
            self.having[part].discard(number)
            if not self.having[part]:
                del self.having[part]
