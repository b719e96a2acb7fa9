"""The objects of one kind, as the API server sends them: as a list, or as changes. Pure.

If no used field of an object differs, the store keeps the earlier object and does not report a change: most writes to a
cluster (heartbeats of a Node, conditions, managed fields) concern fields that Windlass does not use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Self

import msgspec
from msgspec import Raw

from windlass.cluster.kinds import WatchedKind
from windlass.cluster.kubernetes import decoding
from windlass.cluster.objects import APIObject, Malformed, Problem, Reference
from windlass.model.mappings import PersistentMap

_encode = msgspec.json.Encoder().encode


class ObjectStore:
    def __init__(self, kind: WatchedKind[APIObject], earlier: Mapping[str, APIObject] | None = None) -> None:
        """`earlier`: the previous objects, if a list is read again."""
        self.objects: dict[str, APIObject] = {}
        self.problems: dict[str, Problem] = {}
        self.changed: set[str] = set()  # keys, since the last `snapshot`
        self.digest = 0  # identifies all objects together, whatever the order in which they came
        self._snapshot: PersistentMap[APIObject] = PersistentMap()
        self._kind = kind
        self._decoder = decoding.Decoder(kind)
        self._earlier = earlier if earlier is not None else self.objects

    def put(self, content: Raw) -> bool:
        """Whether the object differs from the one before. Garbled if the content is not an object."""
        try:
            one = self._decoder.object(content)
        except Malformed as error:
            self._keep_instead(content, str(error))
            return False
        key = one.key
        if self.problems.pop(key, None):
            self.changed.add(key)
        earlier = self._earlier.get(key)
        is_new = earlier != one
        self._set(key, one if is_new else earlier)
        return is_new

    def remove(self, content: Raw) -> None:
        key = decoding.object_meta(content).key
        if self.problems.pop(key, None):
            self.changed.add(key)
        self._set(key, None)

    def emptied(self) -> Self:
        """An empty store, to read the whole list into."""
        return type(self)(self._kind, self.objects)

    def remember(self, objects: Mapping[str, APIObject]) -> None:
        """Use these objects until a list is read."""
        for key, one in objects.items():
            self._set(key, one)

    def replace(self, listed: ObjectStore) -> None:
        """Take over the objects of a complete list; only the differences count as changed."""
        before, now = self.objects, listed.objects
        self.changed |= before.keys() - now.keys()
        self.changed |= {key for key, one in now.items() if before.get(key) is not one}
        self.changed |= {key for key, _ in self.problems.items() ^ listed.problems.items()}
        self.objects = self._earlier = now
        self.problems, self.digest = listed.problems, listed.digest

    def snapshot(self) -> tuple[Mapping[str, APIObject], frozenset[str]]:
        """All objects as an immutable mapping, and the keys of those that changed since the last snapshot."""
        if not self.changed:
            return self._snapshot, frozenset()
        keys, self.changed = frozenset(self.changed), set()
        if len(keys) > len(self.objects) // 2:
            self._snapshot = PersistentMap(dict(self.objects))
        else:
            self._snapshot = self._snapshot.updated({key: self.objects.get(key) for key in keys})
        return self._snapshot, keys

    def _keep_instead(self, content: Raw, complaint: str) -> None:
        meta = decoding.object_meta(content)
        key, kind = meta.key, self._kind.name
        kept, now = self._kind.instead_of(msgspec.json.decode(content), self._earlier.get(key))
        reference = Reference(kind, meta.name, meta.namespace, meta.uid) if meta.name else None
        problem = Problem(f"{kind} {key or 'without a name'}", f"{complaint}; {now}", reference)
        if self.problems.get(key) != problem:
            self.problems[key] = problem
            self.changed.add(key)
        self._set(key, kept)

    def _set(self, key: str, one: APIObject | None) -> None:
        before = self.objects.get(key)
        if before is one:
            return
        if before is not None:
            self.digest ^= _digest(before)
            del self.objects[key]
        if one is not None:
            self.digest ^= _digest(one)
            self.objects[key] = one
        self.changed.add(key)


def _digest(one: APIObject) -> int:
    """The same in every process, so that the lab can predict the revision that an agent reports."""
    return int.from_bytes(hashlib.blake2b(_encode(one), digest_size=8).digest())
