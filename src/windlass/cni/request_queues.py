"""The queue of CNI requests: one at a time for each container, several at a time for different containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from windlass.cni.errors import Code, RequestError


class RequestQueue:
    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        # An entry exists while a request holds or awaits its lock.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, container_id: str, deadline: float) -> AsyncIterator[None]:
        """Hold this container within the block. `deadline` is a time of the event loop's clock."""
        lock = self._locks.setdefault(container_id, asyncio.Lock())
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout_at(deadline):
                    await held.enter_async_context(lock)  # first: a request that waits for its container takes no slot
                    await held.enter_async_context(self._slots)
            except TimeoutError:
                raise RequestError(
                    Code.TRY_AGAIN_LATER,
                    f"the request for container {container_id} waited too long in the queue",
                    "An earlier request for the same container, or too many requests for others, are in progress.",
                ) from None
            yield

    def busy_containers(self) -> frozenset[str]:
        """The containers that have a request in progress."""
        return frozenset(container_id for container_id, lock in self._locks.items() if lock.locked())
