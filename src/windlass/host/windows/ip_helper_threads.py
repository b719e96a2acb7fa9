"""Runs calls of IP Helper in threads, because they may take milliseconds, and waits for conditions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Concatenate, ParamSpec, TypeVar

from windlass.host.protocol import HostError
from windlass.host.windows.ip_helper import IpHelper

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 4
_LOOK_AGAIN = 1.0  # seconds: Windows does not notify of changes in other compartments


class IpHelperThreads:
    def __init__(self, helper: IpHelper) -> None:
        self.helper = helper
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ip-helper")

    async def run(self, function: Callable[Concatenate[IpHelper, P], T], /, *arguments: P.args, **named: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: function(self.helper, *arguments, **named))
        except OSError as error:
            raise HostError(f"Windows refused a request: {error.strerror or error}") from error

    async def until(self, holds: Callable[[IpHelper], bool], seconds: float = math.inf) -> bool:
        """Whether the condition holds within this time."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        deadline = loop.time() + seconds
        with self.helper.watching(lambda: loop.call_soon_threadsafe(woken.set)):
            while not await self.run(holds):
                left = deadline - loop.time()
                if left <= 0:
                    return False
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _LOOK_AGAIN)):
                        await woken.wait()
                woken.clear()
        return True

    def close(self) -> None:
        self._threads.shutdown()
