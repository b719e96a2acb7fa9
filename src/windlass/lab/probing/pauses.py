"""Measures how long this process did not run because the machine was busy, which is not a fault of the network."""

from __future__ import annotations

import asyncio

BEAT = 0.02  # seconds


class Pauses:
    """Wakes up at every beat; a late beat is a pause. Its owner must call `end`."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._awake = asyncio.get_running_loop().time()
        self._beats = asyncio.ensure_future(self._beat())

    def until_now(self) -> float:
        """The seconds of all pauses so far."""
        now = asyncio.get_running_loop().time()
        self._seconds += max(0.0, now - self._awake - 2 * BEAT)
        self._awake = now
        return self._seconds

    async def end(self) -> None:
        self._beats.cancel()
        await asyncio.wait([self._beats])

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            self.until_now()
