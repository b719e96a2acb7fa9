"""Sets of (protocol, port): the traffic of a rule, and the traffic that a Pod may receive or send.

All protocols share one number line: TCP, UDP and SCTP have 65,536 places each, and one place stands for every protocol
without ports. A set is a sorted tuple of ranges that neither touch nor overlap, so equal sets are equal values.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter

from windlass.model.services import Protocol

Range = tuple[int, int]  # first and last place, both included
PortSet = tuple[Range, ...]

_FIRST, _LAST = itemgetter(0), itemgetter(1)  # of a range

_PORTS = 0x10000
_FIRST_PLACE = {Protocol.TCP: 0, Protocol.UDP: _PORTS, Protocol.SCTP: 2 * _PORTS}
_OTHERS = 3 * _PORTS  # every protocol without ports, for example ICMP

NO_PORTS: PortSet = ()
ALL_PORTS: PortSet = ((0, _OTHERS),)


def ports(protocol: Protocol, first: int = 0, last: int = _PORTS - 1) -> PortSet:
    """Empty if the range is empty."""
    start = _FIRST_PLACE[protocol]
    return ((start + first, start + last),) if first <= last else ()


def contains(port_set: PortSet, protocol: Protocol | None, port: int | None) -> bool:
    """`protocol` is None for a protocol without ports."""
    place = _OTHERS if protocol is None else _FIRST_PLACE[protocol] + (port or 0)
    return any(first <= place <= last for first, last in port_set)


def is_partial(port_set: PortSet, protocol: Protocol) -> bool:
    """Whether the set has some ports of a protocol, but not all."""
    whole = ports(protocol)
    return intersection(port_set, whole) not in {NO_PORTS, whole}


def union(sets: Iterable[PortSet]) -> PortSet:
    distinct = frozenset(sets)
    if len(distinct) < 2:
        return next(iter(distinct), NO_PORTS)
    return ALL_PORTS if ALL_PORTS in distinct else _merged(distinct)


@lru_cache(4096)  # many subjects and classes combine the same few sets
def _merged(distinct: frozenset[PortSet]) -> PortSet:
    merged: list[Range] = []
    for first, last in sorted(one for port_set in distinct for one in port_set):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)


def intersection(left: PortSet, right: PortSet) -> PortSet:
    if left == ALL_PORTS:
        return right
    if right == ALL_PORTS:
        return left
    few, many = (left, right) if len(left) < len(right) else (right, left)
    found: list[Range] = []
    for first, last in few:
        if overlapping := [*many[bisect_left(many, first, key=_LAST) : bisect_right(many, last, key=_FIRST)]]:
            overlapping[0] = max(first, overlapping[0][0]), overlapping[0][1]
            overlapping[-1] = overlapping[-1][0], min(last, overlapping[-1][1])
            found += overlapping
    return tuple(found)


def difference(left: PortSet, right: PortSet) -> PortSet:
    return intersection(left, _complement(right))


def _complement(port_set: PortSet) -> PortSet:
    gaps: list[Range] = []
    start = 0
    for first, last in port_set:
        if start < first:
            gaps.append((start, first - 1))
        start = last + 1
    if start <= _OTHERS:
        gaps.append((start, _OTHERS))
    return tuple(gaps)


def atoms(sets: Iterable[PortSet]) -> Iterator[PortSet]:
    """The parts into which the sets divide their union: each set contains a part completely or not at all."""
    whole, cuts = NO_PORTS, {0}
    for port_set in sets:
        whole = union((whole, port_set))
        cuts |= {place for first, last in port_set for place in (first, last + 1)}
    for first, after in pairwise(sorted(cuts)):
        if part := intersection(whole, ((first, after - 1),)):
            yield part


def by_protocol(port_set: PortSet) -> Iterator[tuple[Protocol | None, int, int]]:
    """(protocol, first port, last port); a protocol of None stands for those without ports."""
    for first, last in port_set:
        for protocol, start in _FIRST_PLACE.items():
            low, high = max(first, start), min(last, start + _PORTS - 1)
            if low <= high:
                yield protocol, low - start, high - start
        if last == _OTHERS:
            yield None, 0, 0


def in_words(port_set: PortSet) -> str:
    """For people: "all traffic", "TCP 80, UDP 53-54", "nothing"."""
    if port_set == ALL_PORTS:
        return "all traffic"
    return ", ".join(_range_in_words(*one) for one in by_protocol(port_set)) or "nothing"


def _range_in_words(protocol: Protocol | None, first: int, last: int) -> str:
    if protocol is None:
        return "protocols without ports"
    if (first, last) == (0, _PORTS - 1):
        return f"all of {protocol.name}"
    return f"{protocol.name} {first}" if first == last else f"{protocol.name} {first}-{last}"
