"""A server of streams for tests, on a Unix socket or, on Windows, on a named pipe."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from windlass.channels import local

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path


@asynccontextmanager
async def serving_streams(
    path: Path, meet: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[None]:
    """`meet` is called for each connection."""
    async with local.listening(path, lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), meet)):
        yield
