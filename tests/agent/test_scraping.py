"""The agent's metrics at a TCP address, and the kubelet's probes, requested as Prometheus and the kubelet do."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import aiohttp
import aiohttp.web
import pytest

from platforms import not_on_windows
from windlass.agent import scraping

WINDLASS = str(Path(sys.executable).with_name("windlass"))


async def figures() -> bytes:
    return b"windlass_ready 1.0\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def opened(port: int) -> None:
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await writer.wait_closed()
            return
        await asyncio.sleep(0.01)


async def test_only_the_metrics_paths_are_served():
    port = free_port()
    async with scraping.exposed(("127.0.0.1", port), figures, lambda _: None):
        await opened(port)
        assert await get(port, "/metrics") == (HTTPStatus.OK, "windlass_ready 1.0\n")
        assert await get(port, "/proxyMode") == (HTTPStatus.OK, "windlass")
        for path in ("/v1/state", "/v1/flows", "/healthz", "/"):
            assert (await get(port, path))[0] == HTTPStatus.NOT_FOUND


async def test_a_port_in_use_is_reported_and_retried(monkeypatch):
    monkeypatch.setattr(scraping, "RETRY_SECONDS", 0.01)
    told: asyncio.Queue[list[str]] = asyncio.Queue()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        exposed = scraping.exposed(("127.0.0.1", port), figures, lambda sentences: told.put_nowait(list(sentences)))
        async with exposed:
            (sentence,) = await told.get()
            assert sentence.startswith(f"port {port} for metrics cannot be opened: ")
            assert "Address already in use; it is tried" in sentence or sys.platform == "win32"  # Wine has no words
            taken.close()
            while await told.get():
                pass
            assert (await get(port, "/metrics"))[0] == HTTPStatus.OK


async def test_metrics_are_not_served_by_default():
    async with scraping.exposed(None, figures, lambda _: pytest.fail("there is nothing to tell")):
        pass


# kubelet's probes ----------------------------------------------------------------------------------------------------


runs_the_command = not_on_windows("it runs the command of Linux; tests/windows runs that of Windows")


async def probed(question: str, path: Path) -> tuple[int, str]:
    command = [WINDLASS, "probe", question, "--socket", str(path)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


async def answer(path: Path, status: int, body: str):
    async def reply(_request):
        return aiohttp.web.Response(status=status, text=body)

    runner = aiohttp.web.ServerRunner(aiohttp.web.Server(reply))
    await runner.setup()
    await aiohttp.web.UnixSite(runner, str(path)).start()
    return runner


@runs_the_command
async def test_an_agent_that_waits_is_live_but_not_ready(tmp_path):
    path = tmp_path / "agent.sock"
    runner = await answer(path, 503, '{"ready":false,"waitingFor":"the switch"}')
    try:
        assert await probed("live", path) == (0, "")
        status, said = await probed("ready", path)
        assert status == 1
        assert "not ready: " in said
        assert "the switch" in said
    finally:
        await runner.cleanup()


@runs_the_command
async def test_an_agent_that_is_ready(tmp_path):
    path = tmp_path / "agent.sock"
    runner = await answer(path, 200, '{"ready":true}')
    try:
        assert await probed("live", path) == (0, "")
        assert await probed("ready", path) == (0, "")
    finally:
        await runner.cleanup()


@runs_the_command
@pytest.mark.parametrize("question", ["live", "ready"])
async def test_without_an_agent_it_is_neither_live_nor_ready(tmp_path, question):
    path = tmp_path / "agent.sock"
    status, said = await probed(question, path)
    assert status == 1
    assert f"{path}: the agent does not answer: No such file or directory" in said


@runs_the_command
async def test_a_silent_client_does_not_block_others(tmp_path):
    path = tmp_path / "agent.sock"
    server = await asyncio.start_unix_server(lambda _, writer: writer.close(), path)
    async with server:
        status, said = await probed("live", path)
    assert status == 1
    assert "the agent does not answer: " in said
