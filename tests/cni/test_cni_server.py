"""The socket of the server: permissions, invalid requests, start and stop."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import sys
from contextlib import asynccontextmanager

import pytest

from platforms import not_on_windows
from windlass.cni import server
from windlass.cni.server import SocketError, serving
from windlass.cni.wire import PROTOCOL, PluginReply

pytestmark = not_on_windows("its client closes its half of a connection, which a named pipe does not know")


async def says_yes(_request) -> PluginReply:
    return PluginReply(0, b"yes")


async def talk(path, data: bytes, *, finish: bool = True) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(data)
        if finish:
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


def error_in(answer: bytes):
    header, text = answer.split(b"\n", 1)
    assert header == PROTOCOL + b"1 %d" % len(text)
    return json.loads(text)


async def test_only_root_may_use_the_socket_and_the_server_removes_it(tmp_path):
    path = tmp_path / "cni.sock"
    async with serving(path, says_yes):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert await talk(path, PROTOCOL + b"0 0\n") == PROTOCOL + b"0 3\nyes"
    assert list(tmp_path.iterdir()) == []


async def test_the_mode_of_the_socket_does_not_depend_on_the_umask(tmp_path):
    path = tmp_path / "cni.sock"
    command = f"""
import asyncio, os, pathlib
from windlass.cni.server import serving
async def main():
    os.umask(0)
    async with serving(pathlib.Path({str(path)!r}), None):
        print(oct(os.stat({str(path)!r}).st_mode & 0o777))
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output == b"0o600\n"


async def test_a_stale_socket_is_replaced(tmp_path):
    path = tmp_path / "cni.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(path, says_yes):
        assert await talk(path, PROTOCOL + b"0 0\n") == PROTOCOL + b"0 3\nyes"


async def test_a_live_agent_is_not_pushed_aside(tmp_path):
    path = tmp_path / "cni.sock"
    async with serving(path, says_yes):
        with pytest.raises(SocketError, match=r"cni\.sock: another agent uses this socket; stop it"):
            async with serving(path, says_yes):
                pass
        assert await talk(path, PROTOCOL + b"0 0\n") == PROTOCOL + b"0 3\nyes"


async def test_the_socket_of_a_successor_is_not_removed(tmp_path):
    path = tmp_path / "cni.sock"
    async with serving(path, says_yes):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))
    assert path.exists()


@pytest.mark.parametrize("place", ["missing/cni.sock", "x" * 120])
async def test_an_unusable_socket_path_is_named_in_the_error(tmp_path, place):
    with pytest.raises(SocketError, match=r"the agent cannot listen there: .*; see runDirectory"):
        async with serving(tmp_path / place, says_yes):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "closed after 0 bytes"),
        (b"\0\xff\n" * 40, "not with 'WINDLASS-CNI 1 '"),
        (b"x" * 100, "no line end"),
        (PROTOCOL + b"10 0\nCNI_", "closed after 24 bytes, before the end of the request"),
        (PROTOCOL + b"0 999999999\n", "the maximum is 65536 and 1048576"),
    ],
)
async def test_an_invalid_request_gets_an_error_and_the_server_continues(served, data, words):
    failed = error_in(await talk(served.socket, data))
    assert failed["code"] == 6
    assert words in failed["details"]
    assert (await served.call("ADD")).exit_code == 0


async def test_a_request_that_does_not_come_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.05)
    async with serving(tmp_path / "cni.sock", says_yes):
        failed = error_in(await talk(tmp_path / "cni.sock", PROTOCOL, finish=False))
    assert failed["code"] == 5
    assert "was incomplete after" in failed["msg"]


@asynccontextmanager
async def slow_request(path):
    """A server with one request that it has begun, and the event that ends the request."""
    inside, go = asyncio.Event(), asyncio.Event()

    async def slow(_request):
        inside.set()
        await go.wait()
        return PluginReply(0, b"yes")

    async with serving(path, slow):
        first = asyncio.create_task(talk(path, PROTOCOL + b"0 0\n"))
        await inside.wait()
        yield first, go


async def test_too_many_connections_get_try_again_later(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_CONNECTIONS", 1)
    path = tmp_path / "cni.sock"
    async with slow_request(path) as (first, go):
        assert error_in(await talk(path, b""))["code"] == 11
        go.set()
        assert (await first).endswith(b"yes")


async def test_a_plugin_that_disconnects_does_not_disturb_the_server(tmp_path):
    path = tmp_path / "cni.sock"
    inside, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_request):
        inside.set()
        await go.wait()
        done.set()
        return PluginReply(0, b"x" * 1_000_000)

    async with serving(path, slow):
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(PROTOCOL + b"0 0\n")
        await inside.wait()
        writer.transport.abort()
        go.set()
        await done.wait()
    assert not path.exists()


async def test_a_stop_waits_for_running_requests(tmp_path):
    path = tmp_path / "cni.sock"
    async with slow_request(path) as (first, go):
        asyncio.get_running_loop().call_soon(go.set)
    assert (await first).endswith(b"yes")


async def test_a_stop_cancels_a_hanging_request_which_rolls_back(node, plugin, monkeypatch):
    monkeypatch.setattr(server, "_STOP_SECONDS", 0.05)
    node.faults.hang.add("programmed")
    async with node.serving():
        adding = asyncio.create_task(node.run(plugin, "ADD"))
        await node.faults.reached["programmed"].wait()
    outcome = await adding
    assert (outcome.exit_code, outcome.json["code"]) == (1, 11)
    assert "the connection was closed before the reply" in outcome.json["msg"]
    assert node.is_empty()
