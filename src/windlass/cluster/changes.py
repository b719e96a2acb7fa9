"""What may have changed, as a set of (kind, key) or as everything.

A kind is anything hashable: the struct of a Kubernetes object, or a kind of owner in a Program.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, repr=False)
class ChangeSet:
    """Immutable. Empty unless made by `of`."""

    is_everything: bool = False
    _keys: Mapping[Hashable, AbstractSet[str]] = field(default_factory=dict)  # by kind; no set is empty

    @classmethod
    def of(cls, keys: Mapping[Hashable, AbstractSet[str]]) -> ChangeSet:
        """The keys of each kind."""
        return cls(_keys={kind: members for kind, members in keys.items() if members})

    def keys(self, kind: Hashable) -> AbstractSet[str]:
        return self.by_kind().get(kind, frozenset())

    def by_kind(self) -> Mapping[Hashable, AbstractSet[str]]:
        """The kinds that have changed, and their keys."""
        if self.is_everything:
            raise ValueError("everything may have changed: there is no list of keys")
        return self._keys

    def keys_between(
        self, kind: Hashable, before: Mapping[str, object], after: Mapping[str, object]
    ) -> AbstractSet[str]:
        """The keys of this kind. If everything may have changed, the objects of before and after are compared."""
        return differences(before, after) if self.is_everything else self.keys(kind)

    def concerns(self, *kinds: Hashable) -> bool:
        """Whether any object of these kinds may have changed."""
        return self.is_everything or any(kind in self._keys for kind in kinds)

    def __bool__(self) -> bool:
        return self.is_everything or bool(self._keys)

    def __iter__(self) -> Iterator[tuple[Hashable, str]]:
        return ((kind, key) for kind, keys in self.by_kind().items() for key in keys)

    def __or__(self, other: ChangeSet) -> ChangeSet:
        if self.is_everything or not other:
            return self
        if other.is_everything or not self:
            return other
        kinds = self._keys.keys() | other._keys.keys()
        return ChangeSet(_keys={kind: self.keys(kind) | other.keys(kind) for kind in kinds})

    def __repr__(self) -> str:
        if self.is_everything:
            return "everything"
        return ", ".join(sorted(f"{getattr(kind, '__name__', kind)} {key}" for kind, key in self)) or "nothing"


EVERYTHING, NOTHING = ChangeSet(is_everything=True), ChangeSet()


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> AbstractSet[str]:
    """The keys whose object differs, in order. It is cheap if the source keeps unchanged objects."""
    if old is new:
        return set()
    if [*old] == [*new]:  # usually the same keys in the same order: no lookup per key
        pairs = zip(new.items(), old.values(), strict=True)
        return {key: None for (key, value), before in pairs if value is not before}.keys()
    changed = {key: None for key, value in new.items() if old.get(key) is not value}
    return (changed | dict.fromkeys(key for key in old if key not in new)).keys()
