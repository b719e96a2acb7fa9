"""Threads in one network namespace, for requests to the kernel.

Requests are synchronous and mostly take microseconds. They take longer while the kernel's configuration lock is taken,
for example while a namespace with many interfaces is deleted; the event loop must not wait for that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from windlass.host.linux.namespaces import join
from windlass.host.linux.netlink import Netlink
from windlass.host.protocol import HostError

P = ParamSpec("P")
R = TypeVar("R")
_THREADS = 16  # the kernel handles one change at a time, but a deletion blocks its thread for some 20 ms more


class KernelThreads:
    """Run functions that need a Netlink connection, in the namespace in which this object was created."""

    def __init__(self) -> None:
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._threads = ThreadPoolExecutor(_THREADS, "host", initializer=join, initargs=(self._namespace,))

    async def run(self, do: Callable[Concatenate[Netlink, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        def connected() -> R:
            with self.connect() as netlink:
                return do(netlink, *args, **kwargs)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, connected)
        except OSError as error:
            raise HostError(f"the kernel refused: {error}") from error

    def connect(self) -> Netlink:
        return Netlink()

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        os.close(self._namespace)
