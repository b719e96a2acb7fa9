"""Python's collector of cyclic garbage, set up for what it meets here: much that stays, and hardly a cycle in it."""

from __future__ import annotations

import gc

_YOUNG = 50_000  # that many new objects before it looks at them: the 700 by default are a few Services
_OLDER = 20  # looks at the young before it looks at the older ones, too


def relax() -> None:
    """For the whole process. Nothing else changes: what is no longer used is freed at once, as ever."""
    gc.set_threshold(_YOUNG, _OLDER, _OLDER)
