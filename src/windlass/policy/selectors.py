"""Label selectors as values that can be compared, with a report of the requirements that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from windlass.cluster.policy_objects import Labels, LabelSelector


class LabelRequirement(Struct, frozen=True, gc=False, order=True, array_like=True):
    key: str
    operator: str  # In, NotIn, Exists or DoesNotExist
    values: tuple[str, ...] = ()

    def accepts(self, labels: Labels) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case _:
                return value is None


class Selector(Struct, frozen=True, gc=False, cache_hash=True, array_like=True):
    """Matches labels that meet all requirements; without requirements, all labels."""

    requirements: tuple[LabelRequirement, ...] = ()

    def matches(self, labels: Labels) -> bool:
        for requirement in self.requirements:  # noqa: SIM110 - a hot loop: faster than `all`
            if not requirement.accepts(labels):
                return False
        return True

    def labels_of_a_match(self) -> tuple[tuple[str, str], ...]:
        """Every object that matches has one of these labels. Empty if the selector requires no label by value."""
        for requirement in self.requirements:
            if requirement.operator == "In":
                return tuple((requirement.key, value) for value in requirement.values)
        return ()

    def __str__(self) -> str:
        return ",".join(map(_requirement_in_words, self.requirements)) or "all"


EVERYTHING = Selector()
_NEEDS_VALUES = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}


def read_selector(selector: LabelSelector | None) -> tuple[Selector, list[str]]:
    """The selector, without the requirements that cannot be read, and the reason for each of these.

    An API server refuses such requirements in a NetworkPolicy, but not in a custom resource.
    """
    if selector is None:
        return EVERYTHING, []
    if not selector.match_expressions:
        return selector_of_labels(selector.match_labels), []
    reasons = {one: _unreadable(one) for one in _requirements(selector)}
    readable = sorted(one for one, reason in reasons.items() if reason is None)
    return Selector(tuple(readable)), [reason for reason in reasons.values() if reason is not None]


def selector_of_labels(labels: Labels | None) -> Selector:
    return _of_labels(tuple(labels.items())) if labels else EVERYTHING


@lru_cache(4096)  # rules with the same labels share one object, which caches its hash
def _of_labels(labels: tuple[tuple[str, str], ...]) -> Selector:
    return Selector(tuple(sorted(LabelRequirement(key, "In", (value,)) for key, value in labels)))


def _requirements(selector: LabelSelector) -> Iterator[LabelRequirement]:
    for key, value in (selector.match_labels or {}).items():
        yield LabelRequirement(key, "In", (value,))
    for one in selector.match_expressions or ():
        yield LabelRequirement(one.key, one.operator, tuple(sorted(set(one.values or ()))))


def _unreadable(requirement: LabelRequirement) -> str | None:
    operator = requirement.operator
    if operator not in _NEEDS_VALUES:
        return f"unknown operator {operator}"
    if _NEEDS_VALUES[operator] != bool(requirement.values):
        return f"operator {operator} {'with' if requirement.values else 'without'} values"
    return None


def _requirement_in_words(requirement: LabelRequirement) -> str:
    values = "|".join(requirement.values)
    match requirement.operator:
        case "In":
            return f"{requirement.key}={values}"
        case "NotIn":
            return f"{requirement.key}!={values}"
        case "Exists":
            return requirement.key
        case _:
            return f"!{requirement.key}"
