"""A mapping that changes by making another one: the work is that of the change, and who holds the former keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")

_LONGEST_PATCH = 512  # keys; then the mapping is made anew, which a change in so many can bear


class Patched(Mapping[str, V], Generic[V]):
    """Ten thousand Services of which one changes every few milliseconds: a copy of all would cost more than the one."""

    __slots__ = ("_base", "_patch", "_size")

    def __init__(self, base: Mapping[str, V] | None = None) -> None:
        self._base: Mapping[str, V] = {} if base is None else base  # the caller does not change it any more
        self._patch: dict[str, V | None] = {}  # None: it is gone
        self._size = len(self._base)

    def patched(self, changes: Mapping[str, V | None]) -> Patched[V]:
        """With these values instead; without the keys that have None."""
        patch = {**self._patch, **changes}
        if len(patch) > _LONGEST_PATCH:
            return Patched({key: value for key, value in {**self._base, **patch}.items() if value is not None})
        after: Patched[V] = Patched()
        after._base, after._patch = self._base, patch
        after._size = self._size + sum((value is not None) - (key in self) for key, value in changes.items())
        return after

    def __getitem__(self, key: str) -> V:
        if key in self._patch:
            value = self._patch[key]
            if value is None:
                raise KeyError(key)
            return value
        return self._base[key]

    def __iter__(self) -> Iterator[str]:
        patch, base = self._patch, self._base
        if not patch:
            yield from base
            return
        for key in base:
            if key not in patch or patch[key] is not None:
                yield key
        for key, value in patch.items():
            if value is not None and key not in base:
                yield key

    def __len__(self) -> int:
        return self._size
