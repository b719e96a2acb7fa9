"""A Program that is kept in a bridge for the duration of a test, as the agent does."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from windlass.switch.programs import InstalledProgram

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from windlass.program import Program


@asynccontextmanager
async def installed(path: str, program: Program, **options: Callable) -> AsyncIterator[InstalledProgram]:
    """In sync with the bridge at this management socket; the connection ends with the block."""
    kept = InstalledProgram(path, program, **options)
    keeper = asyncio.create_task(kept.keep())
    try:
        await kept.synced()
        yield kept
    finally:
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper
