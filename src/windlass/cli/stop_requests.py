"""Requests to end this process: signals, or the console events by which Windows and its container runtimes ask."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _LOGOFF = 5  # a user logs off: a service of the machine continues
    _LEAVES_TIME = (0, 1)  # Ctrl-C, Ctrl-Break; after the others the process ends as soon as its handler returns
    _SECONDS_TO_END = 20.0

    @contextmanager
    def stop_requests(stop: Callable[[], object]) -> Iterator[None]:
        """Within the block, `stop` is called in the running event loop when this process is asked to end."""
        loop = asyncio.get_running_loop()
        ended = threading.Event()

        def handle(event: int) -> bool:  # in a thread of its own
            if event != _LOGOFF:
                loop.call_soon_threadsafe(stop)
                if event not in _LEAVES_TIME:
                    ended.wait(_SECONDS_TO_END)
            return True

        handler = ctypes.WINFUNCTYPE(wintypes.BOOL, wintypes.DWORD)(handle)
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.SetConsoleCtrlHandler(handler, True)
        try:
            yield
        finally:
            kernel.SetConsoleCtrlHandler(handler, False)
            ended.set()
else:

    @contextmanager
    def stop_requests(stop: Callable[[], object]) -> Iterator[None]:
        """Within the block, `stop` is called in the running event loop when this process is asked to end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
