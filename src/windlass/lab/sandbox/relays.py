"""Copies bytes between two streams. It imports nothing of Linux: the relays of a Windows Node use it as well."""

from __future__ import annotations

from asyncio import StreamReader, StreamWriter
from contextlib import suppress

_BLOCK = 1 << 16


async def pass_on(reader: StreamReader, writer: StreamWriter) -> None:
    """Copies bytes until either end closes."""
    try:
        while block := await reader.read(_BLOCK):
            writer.write(block)
            await writer.drain()
    except OSError:
        pass  # either end may close at any moment
    finally:
        with suppress(OSError):
            writer.close()
