"""Sets of ports, as the kernel writes them (`1-5,9`), and how many ports a host has for its own connections. Pure.

A set is an int: bit n stands for port n.
"""

from __future__ import annotations

from collections.abc import Iterable

ENOUGH_LOCAL_PORTS = 8192  # to one destination, for the connections of the host itself


def port_set(ranges: Iterable[tuple[int, int]]) -> int:
    found = 0
    for first, last in ranges:
        found |= (1 << last + 1) - (1 << first)
    return found


def parse(text: str) -> tuple[tuple[int, int], ...]:
    parts = (part.partition("-") for part in text.split(",") if part)
    return tuple((int(first), int(last or first)) for first, _, last in parts)


def ranges(ports: int) -> tuple[tuple[int, int], ...]:
    """The first and last port of each range. It does not loop over all 65,536 ports: every full pass calls it."""
    found = []
    while ports:
        first = _lowest(ports)
        end = _lowest(~ports >> first) + first  # the next port that is not in the set
        found.append((first, end - 1))
        ports = ports >> end << end
    return tuple(found)


def _lowest(ports: int) -> int:
    return (ports & -ports).bit_length() - 1


def text(ports: int) -> str:
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in ranges(ports))


def left_for_host(local: tuple[int, int], reserved: int) -> int:
    """How many ports are left for connections of the host that do not bind a certain port."""
    return (port_set((local,)) & ~reserved).bit_count()
