"""Which CIDR blocks match an address or a network, except for their exceptions.

A block matches a network that is inside it and inside none of its exceptions. Each network that is a block or an
exception has one entry, and the longest prefix that contains an address decides: no network has to be split.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from ipaddress import ip_network

from windlass.model.prefixes import BITS, Prefix, prefix_of
from windlass.policy.rules import BlockPeers


class Blocks:
    """The blocks in use, by number."""

    def __init__(self) -> None:
        self._begins: dict[Prefix, set[int]] = {}
        self._excepts: dict[Prefix, set[int]] = {}
        self._uses: Counter[Prefix] = Counter()  # how many blocks have this network, or have it as an exception
        self._lengths: Counter[tuple[int, int]] = Counter()  # of the networks in use: version and length
        self._sorted: list[Prefix] = []

    def add(self, number: int, block: BlockPeers) -> tuple[Prefix, ...]:
        """Returns the block's network and then its exceptions; only addresses inside the first are affected."""
        whole, *excepts = networks_of(block)
        self._begins.setdefault(whole, set()).add(number)
        for one in excepts:
            self._excepts.setdefault(one, set()).add(number)
        for one in (whole, *excepts):
            self._uses[one] += 1
            if self._uses[one] == 1:
                self._lengths[one[0], one[2]] += 1
                insort(self._sorted, one)
        return whole, *excepts

    def remove(self, number: int, block: BlockPeers) -> tuple[Prefix, ...]:
        whole, *excepts = networks_of(block)
        _discard(self._begins, whole, number)
        for one in excepts:
            _discard(self._excepts, one, number)
        for one in (whole, *excepts):
            self._uses[one] -= 1
            if not self._uses[one]:
                del self._uses[one]
                self._lengths[one[0], one[2]] -= 1
                del self._sorted[bisect_left(self._sorted, one)]
        return whole, *excepts

    def is_used(self, prefix: Prefix) -> bool:
        return prefix in self._uses

    def networks_in(self, prefix: Prefix) -> list[Prefix]:
        """The networks in use inside this one, itself included."""
        return within(self._sorted, prefix)

    def holding_for(self, prefix: Prefix) -> frozenset[int]:
        if not self._uses:
            return frozenset()
        version, first, length = prefix
        held: set[int] = set()
        excepted: set[int] = set()
        for (of_version, shorter), used in self._lengths.items():
            if used and of_version == version and shorter <= length:
                host_bits = BITS[version] - shorter
                parent = version, first >> host_bits << host_bits, shorter
                held |= self._begins.get(parent, frozenset())
                excepted |= self._excepts.get(parent, frozenset())
        return frozenset(held - excepted)


def within(ordered: list[Prefix], prefix: Prefix) -> list[Prefix]:
    """The members of a sorted list that are inside a network, itself included."""
    version, first, length = prefix
    last = first + (1 << (BITS[version] - length)) - 1
    return ordered[bisect_left(ordered, prefix) : bisect_right(ordered, (version, last, BITS[version]))]


def is_within_any(ordered: list[Prefix], prefix: Prefix) -> bool:
    """`ordered`: sorted, and none inside another."""
    place = bisect_right(ordered, prefix)
    return place > 0 and bool(within([prefix], ordered[place - 1]))


def outermost(networks: Iterable[Prefix]) -> Iterator[Prefix]:
    """Those that are inside no other."""
    outer: list[Prefix] = []
    for network in sorted(networks):  # a network is followed by those inside it
        if not outer or not within([network], outer[-1]):
            outer.append(network)
            yield network


def networks_of(block: BlockPeers) -> tuple[Prefix, ...]:
    """The block's network, and then its exceptions."""
    return prefix_of(ip_network(block.network)), *{prefix_of(ip_network(text)) for text in block.excepts}


def _discard(index: dict[Prefix, set[int]], prefix: Prefix, number: int) -> None:
    index[prefix].discard(number)
    if not index[prefix]:
        del index[prefix]
