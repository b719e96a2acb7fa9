"""An immutable mapping whose updates copy only a small part of it."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from itertools import chain
from typing import Generic, TypeVar
from zlib import crc32

V = TypeVar("V")
D = TypeVar("D")

_SHARDS = 128  # an update of one key copies one shard: of ten thousand keys, eighty


class PersistentMap(Mapping[str, V], Generic[V]):
    """For ten thousand Services of which one changes every few milliseconds: a copy of all would cost too much.

    Iteration order is arbitrary, but the same keys have the same order in every process.
    """

    __slots__ = ("_shards", "_size")

    def __init__(self, content: Mapping[str, V] | None = None) -> None:
        self._shards: list[dict[str, V]] = [{} for _ in range(_SHARDS)]
        for key, value in (content or {}).items():
            self._shards[_shard_of(key)][key] = value
        self._size = len(content or ())

    def updated(self, changes: Mapping[str, V | None]) -> PersistentMap[V]:
        """A copy with these values; keys with the value None are removed."""
        after: PersistentMap[V] = PersistentMap.__new__(PersistentMap)
        after._shards = self._shards.copy()
        copies: dict[int, dict[str, V]] = {}
        for key, value in changes.items():
            number = _shard_of(key)
            if (shard := copies.get(number)) is None:
                shard = copies[number] = after._shards[number] = self._shards[number].copy()
            if value is None:
                shard.pop(key, None)
            else:
                shard[key] = value
        after._size = self._size + sum(len(copies[number]) - len(self._shards[number]) for number in copies)
        return after

    def __getitem__(self, key: str) -> V:
        return self._shards[_shard_of(key)][key]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._shards[_shard_of(key)]

    def get(self, key: str, default: V | D | None = None) -> V | D | None:  # type: ignore[override]
        """Faster than that of `Mapping`, which raises and catches an exception for a missing key."""
        return self._shards[_shard_of(key)].get(key, default)

    def items(self) -> ItemsView[str, V]:
        return _Items(self)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._shards)

    def __len__(self) -> int:
        return self._size


class _Items(ItemsView[str, V]):
    def __iter__(self) -> Iterator[tuple[str, V]]:
        """Without a lookup of each key."""
        shards: list[dict[str, V]] = self._mapping._shards  # type: ignore[attr-defined] # noqa: SLF001 - a PersistentMap
        return chain.from_iterable(shard.items() for shard in shards)


def _shard_of(key: str) -> int:
    """Not by `hash`, which differs between processes."""
    return crc32(key.encode()) % _SHARDS
