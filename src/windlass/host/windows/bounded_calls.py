"""Runs calls that may never return, each in a thread of its own and with a timeout.

A call that is too slow continues in its thread. The process does not wait for it when it ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from windlass.host.protocol import HostError

T = TypeVar("T")


async def run_bounded(what: str, seconds: float, work: Callable[[], T]) -> T:
    """`what`: names the call in the error after a timeout."""
    return await bounded(what, seconds, start(what, work))


async def bounded(what: str, seconds: float, call: asyncio.Future[T]) -> T:
    """The result of a call of `start`. A timeout does not cancel the call."""
    done, _ = await asyncio.wait((call,), timeout=seconds)
    if not done:
        raise HostError(f"{what} did not finish within {seconds:g} s; it continues and may still succeed")
    return call.result()


def start(what: str, work: Callable[[], T]) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    done.add_done_callback(_retrieve)

    def run() -> None:
        settle: Callable[[], None]
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            failure = error
            settle = lambda: done.set_exception(failure)  # noqa: E731
        else:
            settle = lambda: done.set_result(result)  # noqa: E731
        with suppress(RuntimeError):  # the event loop has ended in the meantime
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name=what, daemon=True).start()
    return done


def _retrieve(done: asyncio.Future[T]) -> None:
    """Marks the exception as retrieved: a caller that timed out does not read it."""
    if not done.cancelled():
        done.exception()
