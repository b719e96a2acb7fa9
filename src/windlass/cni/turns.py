"""Whose turn it is: requests of one container one after the other, of different ones side by side, not too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from windlass.cni.errors import Code, RequestError


class Turns:
    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        # An entry lives as long as somebody holds or awaits its lock.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, container_id: str, deadline: float) -> AsyncIterator[None]:
        """This container is ours within the block. `deadline` is by the event loop's clock."""
        lock = self._locks.setdefault(container_id, asyncio.Lock())
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout_at(deadline):
                    await held.enter_async_context(lock)  # first: who waits for its container takes no slot
                    await held.enter_async_context(self._slots)
            except TimeoutError:
                raise RequestError(
                    Code.TRY_AGAIN_LATER,
                    f"the turn of container {container_id} did not come in time",
                    "An earlier request for it, or too many for others, are under way.",
                ) from None
            yield

    def taken(self) -> frozenset[str]:
        """The containers that have a request under way."""
        return frozenset(container_id for container_id, lock in self._locks.items() if lock.locked())
