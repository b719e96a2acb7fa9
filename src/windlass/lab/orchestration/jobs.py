"""Concurrent work of a cluster that leaves nothing running behind when a part of it fails or is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


async def run_in_thread(function: Callable[_P, _R], *arguments: _P.args, **more: _P.kwargs) -> _R:
    """A cancelled caller still waits for the thread, so that it creates nothing after the lab was removed."""
    job = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **more))
    try:
        return await asyncio.shield(job)
    finally:
        await asyncio.wait([job])


async def run_together(jobs: Iterable[Coroutine[None, None, None]]) -> None:
    """Runs the jobs concurrently. The first failure cancels the others, and is raised when they have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
