"""Group numbers for Services: the same after every restart, unless two happen to want the same."""

from __future__ import annotations

from hashlib import blake2b

SPACE = 256  # numbers for one port of a Service: its groups by policy, and several of each where endpoints are many
_SPACES = 0xFFFFFF  # OpenFlow reserves group numbers from 0xffffff00


class GroupNumbers:
    """Gives each name a space of its own, by its digest: so the switch holds what a restarted agent asks for."""

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}
        self._taken: set[int] = set()  # also by Services that are gone: they may come back

    def of(self, name: str) -> int:
        """The first number of the name's space."""
        known = self._by_name.get(name)
        if known is None:
            known = int.from_bytes(blake2b(name.encode(), digest_size=3).digest()) % _SPACES
            while known in self._taken:
                known = (known + 1) % _SPACES
            self._by_name[name] = known
            self._taken.add(known)
        return known * SPACE
