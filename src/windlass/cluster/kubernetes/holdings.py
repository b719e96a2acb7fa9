"""The objects of one kind as an API server tells of them: one by one, whole or by their changes. Pure.

An object that says nothing new stays the very same, and counts as no change: most writes to a cluster (a Node's
heartbeat, a condition, who wrote which field) are about what no part of Windlass uses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Self

import msgspec
from msgspec import Raw

from windlass.cluster.kubernetes import decoding
from windlass.cluster.objects import Malformed, Problem, Reference, Watched
from windlass.model.mappings import Patched

_encode = msgspec.json.Encoder().encode


class Holding:
    def __init__(self, kind: type[Watched], earlier: Mapping[str, Watched] | None = None) -> None:
        """`earlier`: what was known before, for a list that is read anew."""
        self.objects: dict[str, Watched] = {}
        self.problems: dict[str, Problem] = {}
        self.touched: set[str] = set()  # the keys of what has changed since somebody last took note
        self.digest = 0  # names all objects together, in whatever order they came
        self._taken: Patched[Watched] = Patched()
        self._kind = kind
        self._decoder = decoding.Decoder(kind)
        self._earlier = earlier if earlier is not None else self.objects

    def put(self, content: Raw) -> bool:
        """Is it another one than before? Garbled where it is no object at all."""
        try:
            one = self._decoder.object(content)
        except Malformed as error:
            self._keep_earlier(decoding.place(content), str(error))
            return False
        key = one.key
        if self.problems.pop(key, None):
            self.touched.add(key)
        earlier = self._earlier.get(key)
        is_new = earlier != one
        self._set(key, one if is_new else earlier)
        return is_new

    def remove(self, content: Raw) -> None:
        key = decoding.place(content).key
        if self.problems.pop(key, None):
            self.touched.add(key)
        self._set(key, None)

    def anew(self) -> Self:
        """An empty one, to read the whole list into."""
        return type(self)(self._kind, self.objects)

    def replace(self, fresh: Holding) -> None:
        """All that there is now; only the differences count as touched."""
        before, now = self.objects, fresh.objects
        self.touched |= before.keys() - now.keys()
        self.touched |= {key for key, one in now.items() if before.get(key) is not one}
        self.touched |= {key for key, _ in self.problems.items() ^ fresh.problems.items()}
        self.objects = self._earlier = now
        self.problems, self.digest = fresh.problems, fresh.digest

    def taken(self) -> tuple[Patched[Watched], frozenset[str]]:
        """All objects, as a value that stays as it is, and the keys of what changed since this was last called."""
        keys, self.touched = frozenset(self.touched), set()
        if len(keys) > len(self.objects) // 2:
            self._taken = Patched(dict(self.objects))
        else:
            self._taken = self._taken.patched({key: self.objects.get(key) for key in keys})
        return self._taken, keys

    def _keep_earlier(self, place: decoding.Place, complaint: str) -> None:
        key, kind = place.key, self._kind.__name__
        earlier = self._earlier.get(key)
        now = "its earlier version stays" if earlier else "it is left out, the rest is used"
        reference = Reference(kind, place.name, place.namespace, place.uid) if place.name else None
        problem = Problem(f"{kind} {key or 'without a name'}", f"{complaint}; {now}", reference)
        if self.problems.get(key) != problem:
            self.problems[key] = problem
            self.touched.add(key)
        self._set(key, earlier)

    def _set(self, key: str, one: Watched | None) -> None:
        before = self.objects.get(key)
        if before is one:
            return
        if before is not None:
            self.digest ^= _digest(before)
            del self.objects[key]
        if one is not None:
            self.digest ^= _digest(one)
            self.objects[key] = one
        self.touched.add(key)


def _digest(one: Watched) -> int:
    """The same in every process: who knows the objects knows what an agent that has them calls their state."""
    return int.from_bytes(hashlib.blake2b(_encode(one), digest_size=8).digest())
