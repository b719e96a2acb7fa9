"""Which rules may match an address, because a Pod of another Node that has it may not be listed yet."""

from __future__ import annotations

from windlass.cluster.clusters import Namespaces
from windlass.model.prefixes import Prefix
from windlass.policy.blocks import is_within_any, within
from windlass.policy.directories import Directory
from windlass.policy.rules import UnlistedPods, number_of
from windlass.policy.selections import Selections


class UnlistedPeers:
    """Its answers are those of the last `refresh`."""

    def __init__(self, directory: Directory, selections: Selections) -> None:
        self._directory = directory
        self._selections = selections
        self._in_use: dict[int, UnlistedPods] = {}
        self._listed: Namespaces = None
        self._is_stale = False  # what is possible must be found again
        self._possible: frozenset[int] = frozenset()  # those in use that may match a Pod that is not listed
        self._networks: list[Prefix] = []  # of such Pods: sorted, and none inside another. Empty if nothing is possible
        self._together: dict[frozenset[int], frozenset[int]] = {}  # by the blocks that hold for an address

    def add(self, number: int, peers: UnlistedPods) -> None:
        self._in_use[number] = peers
        self._is_stale = True

    def remove(self, number: int) -> None:
        del self._in_use[number]
        self._is_stale = True

    def follow_namespaces(self) -> None:
        """Call it when a namespace was added or removed, or its labels have changed."""
        self._is_stale = True

    def refresh(self) -> list[Prefix]:
        """Returns the networks in which the answers have changed."""
        possible, networks, listed = self._possible, self._networks, self._directory.listed
        if self._is_stale or listed != self._listed:
            self._is_stale, self._listed = False, listed
            self._possible = frozenset(self._possible_numbers())
        self._networks = self._directory.unlisted_networks if self._possible else []
        if possible != self._possible:
            self._together.clear()
            return [*networks, *self._networks]
        return [] if networks == self._networks else sorted({*networks} ^ {*self._networks})

    def networks_in(self, network: Prefix) -> list[Prefix]:
        """The networks of such Pods inside this one, itself included."""
        return within(self._networks, network)

    def may_have(self, address: Prefix) -> bool:
        return bool(self._networks) and is_within_any(self._networks, address)

    def together_with(self, blocks: frozenset[int]) -> frozenset[int]:
        """Those that may match an address that such a Pod may have, and these blocks, which hold for it."""
        if (known := self._together.get(blocks)) is None:
            in_use = self._in_use
            matching = (one for one in self._possible if in_use[one].block is None or in_use[one].block in blocks)
            self._together[blocks] = known = blocks.union(matching)
        return known

    def _possible_numbers(self) -> list[int]:
        if self._listed is None:
            return []
        is_inside = self._selections.is_inside
        return [one for one, peers in self._in_use.items() if not is_inside(number_of(peers.pods), self._listed)]
