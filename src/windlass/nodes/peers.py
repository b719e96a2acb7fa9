"""The other Nodes of the cluster, as far as this Node can forward to them. Pure.

No two Nodes may share addresses of a PodCIDR. If two Nodes claim the same addresses, the Node that had them keeps them;
if neither had them, the Node whose name comes first gets them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from windlass.cluster.nodes import Identity, NotUsable, identity
from windlass.cluster.objects import Node, Problem
from windlass.model.families import Family, IPNetwork
from windlass.model.nodes import Peer


class _Taken(NotUsable):
    """A PodCIDR that another Node holds."""

    def __init__(self, cidr: IPNetwork, holder: str) -> None:
        super().__init__(f"its PodCIDR {cidr} overlaps that of Node {holder}, which keeps it")
        self.holder = holder


class Peers:
    """The peers of one Node, from one state of the cluster to the next."""

    def __init__(self) -> None:
        self.usable: Mapping[str, Peer] = {}  # by name; never changed in place
        self._own: Identity | None = None
        self._nodes: Mapping[str, Node] = {}
        self._refused: dict[str, NotUsable] = {}
        self._ranges = _AddressRanges()

    def follow(self, nodes: Mapping[str, Node], own: Identity, names: Iterable[str] | None = None) -> set[str]:
        """Update the peers from these Node objects. Returns the names of the peers that were added, removed or changed.

        `names`: only these Nodes may have changed. The work grows with their number.
        """
        before, kept = self.usable, dict(self.usable)
        if names is None or own != self._own:
            names = {*nodes, *self._nodes}
            self._ranges = _AddressRanges()
            self._ranges.add(own)
            kept = {}
            self._refused = {}
        self._own, self._nodes = own, nodes
        claiming = {name for name in names if name != own.name}
        for name in claiming:
            self._refused.pop(name, None)
            if kept.pop(name, None):
                self._ranges.remove(before[name])
        claiming |= {name for name, reason in self._refused.items() if isinstance(reason, _Taken)}
        self._claim(claiming, before, kept)
        changed = {name for name in claiming | before.keys() - kept.keys() if before.get(name) != kept.get(name)}
        if changed:
            self.usable = kept
        return changed

    def problems(self) -> list[Problem]:
        """One for each Node that cannot be used, and one for this Node if others claim its PodCIDR."""
        now = "its Pods cannot be reached until this is corrected"
        problems = [Problem.of(self._nodes[name], f"{self._refused[name]}; {now}") for name in sorted(self._refused)]
        return problems + self._problems_of_this_node()

    def _claim(self, names: Iterable[str], before: Mapping[str, Peer], usable: dict[str, Peer]) -> None:
        candidates = []
        for name in names:
            self._refused.pop(name, None)
            if name in self._nodes:
                try:
                    other = identity(self._nodes[name])
                    candidates.append(Peer(name, other.addresses, other.pod_cidrs))
                except NotUsable as reason:
                    self._refused[name] = reason
        for peer in sorted(candidates, key=lambda peer: (not _keeps_its_cidrs(peer, before.get(peer.name)), peer.name)):
            try:
                self._ranges.add(peer)
                usable[peer.name] = before[peer.name] if before.get(peer.name) == peer else peer
            except _Taken as reason:
                self._refused[peer.name] = reason

    def _problems_of_this_node(self) -> list[Problem]:
        """Other Nodes may have decided that this Node is the one that cannot be reached."""
        own = self._own
        if own is None or own.name not in self._nodes:
            return []
        refused = sorted(self._refused.items())
        others = [name for name, reason in refused if isinstance(reason, _Taken) and reason.holder == own.name]
        if not others:
            return []
        cidrs, names = ", ".join(map(str, own.pod_cidrs.values())), ", ".join(others)
        sentence = f"its PodCIDR {cidrs} overlaps that of Node {names}; delete one of them and register it again"
        return [Problem.of(self._nodes[own.name], sentence)]


def _keeps_its_cidrs(peer: Peer, before: Peer | None) -> bool:
    return before is not None and before.pod_cidrs == peer.pod_cidrs


class _AddressRanges:
    """The PodCIDRs in use. They do not overlap and are sorted, so a new one is compared with its neighbours only."""

    def __init__(self) -> None:
        self._ranges: dict[Family, list[tuple[int, int, str]]] = {family: [] for family in Family}

    def add(self, holder: Identity | Peer) -> None:
        """Add all PodCIDRs of the Node, or none and raise `_Taken`."""
        added = _ranges_of(holder)
        for family, (first, last, _) in added.items():
            held = self._ranges[family]
            index = bisect_left(held, (first,))
            for start, end, other in held[max(index - 1, 0) : index + 1]:
                if first <= end and start <= last:
                    raise _Taken(holder.pod_cidrs[family], other)
        for family, added_range in added.items():
            insort(self._ranges[family], added_range)

    def remove(self, holder: Peer) -> None:
        for family, removed in _ranges_of(holder).items():
            held = self._ranges[family]
            del held[bisect_left(held, removed)]


def _ranges_of(holder: Identity | Peer) -> dict[Family, tuple[int, int, str]]:
    return {
        family: (int(cidr.network_address), int(cidr.broadcast_address), holder.name)
        for family, cidr in holder.pod_cidrs.items()
    }
