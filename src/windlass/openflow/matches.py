"""Matches: conditions in a canonical order, so that equal matches are equal values."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.openflow.fields import Term

Match = tuple[Term, ...]  # in the order of the fields' declarations, one term a field

# What `match` and `Table.flow` take: a term, or several that belong together (`ip to this address`).
Condition = Term | Iterable[Term]


class ContradictionError(ValueError):
    """Two conditions of a match contradict each other: no packet can match."""


def match(*conditions: Condition) -> Match:
    """All conditions together. Terms on different bits of one field become one term; a mask of 0 is no condition."""
    terms: list[Term] = []
    for condition in conditions:
        if isinstance(condition, Term):
            terms.append(condition)
        else:
            terms.extend(condition)
    return tuple(terms) if _is_canonical(terms) else _canonical(terms)


def _is_canonical(terms: list[Term]) -> bool:
    """A fast check: most terms need no merging, sorting or dropping."""
    last = -1
    for term in terms:
        order = term.field.order
        if order <= last or term.mask == 0:
            return False
        last = order
    return True


def _canonical(terms: list[Term]) -> Match:
    merged: dict[int, Term] = {}
    for term in terms:
        order = term.field.order
        known = merged.setdefault(order, term)
        if known is not term and known != term:
            merged[order] = _both(known, term)
    return tuple([merged[order] for order in sorted(merged) if merged[order].mask != 0])


def _both(one: Term, other: Term) -> Term:
    every_bit = (1 << one.field.bits) - 1
    mask, other_mask = (every_bit if term.mask is None else term.mask for term in (one, other))
    if (one.value ^ other.value) & mask & other_mask:
        raise ContradictionError(f"{one.field.name} cannot be both {one.value:#x} and {other.value:#x}")
    return one.field(one.value | other.value, mask | other_mask)
