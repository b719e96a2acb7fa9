"""Counts the lines that Python runs in a call: its cost, in a unit that does not depend on the speed of the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def lines_run(call: Callable[[], object]) -> int:
    """Calls made in C count as the line that makes them."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        call()
    finally:
        sys.settrace(before)
    return count
