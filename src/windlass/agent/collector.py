"""Settings of Python's cyclic garbage collector for an agent: many objects that stay, and few reference cycles."""

from __future__ import annotations

import gc

_YOUNG = 50_000  # new objects before a collection of the youngest; the default of 700 is a few Services
_OLDER = 20  # collections of a generation before one of the next


def relax() -> None:
    """For the whole process. Objects without references are freed at once, as before."""
    gc.set_threshold(_YOUNG, _OLDER, _OLDER)
