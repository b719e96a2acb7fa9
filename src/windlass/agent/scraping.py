"""Serves the agent's metrics to Prometheus at a TCP address, and /proxyMode like kube-proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from windlass import os_errors

MODE = "windlass"  # the answer of /proxyMode, where kube-proxy names its mode
RETRY_SECONDS = 1.0  # between attempts to open a port that another program holds

Text = Callable[[], Awaitable[bytes]]


@asynccontextmanager
async def exposed(
    at: tuple[str, int] | None, text: Text, report: Callable[[Iterable[str]], object]
) -> AsyncIterator[None]:
    """Serve within the block, at this address (empty: all) and port; None: not at all.

    A port that cannot be opened is reported and tried again; the agent runs without it.
    """
    if at is None:
        yield
        return

    async def figures(_request: web.Request) -> web.Response:
        return web.Response(body=await text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def mode(_request: web.Request) -> web.Response:
        return web.Response(text=MODE)

    application = web.Application()
    application.add_routes([web.get("/metrics", figures), web.get("/proxyMode", mode)])
    runner = web.AppRunner(application, handle_signals=False, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    opening = asyncio.create_task(_open(runner, at, report), name="metrics")
    try:
        yield
    finally:
        opening.cancel()
        await asyncio.wait((opening,))
        await runner.cleanup()


async def _open(runner: web.AppRunner, at: tuple[str, int], report: Callable[[Iterable[str]], object]) -> None:
    address, port = at
    while True:
        try:
            await web.TCPSite(runner, address or None, port).start()
        except OSError as error:
            reason = os_errors.reason(error)
            report([f"port {port} for metrics cannot be opened: {reason}; it is tried again every {RETRY_SECONDS:g} s"])
            await asyncio.sleep(RETRY_SECONDS)
        else:
            report(())
            return
