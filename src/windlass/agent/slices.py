"""Long work in slices, between which other tasks of the event loop run."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

R = TypeVar("R")


async def run_in_slices(slices: Generator[None, None, R]) -> R:
    """The result of the generator. Other tasks run at each of its yields.

    When cancelled, the rest is done at once, because a generator that stops half-way would lose changes.
    """
    try:
        while True:
            next(slices)
            await asyncio.sleep(0)
    except StopIteration as end:
        result: R = end.value
        return result
    except asyncio.CancelledError:
        for _ in slices:
            pass
        raise
