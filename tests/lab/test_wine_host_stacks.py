"""The connections of a Windows Node with Linux: relays of pipes, and frames of TAP devices. Needs no Wine."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from windlass.host.linux import namespaces, rtnetlink
from windlass.host.linux.netlink import Netlink
from windlass.lab.wine import pipe_relays
from windlass.lab.wine.frames import Wire, open_tap
from windlass.lab.wine.relays import relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def relayed(tmp_path, target) -> AsyncIterator[str]:
    """A socket that reaches the target through both halves of the relay."""
    async with await pipe_relays.listen(0) as pipes:
        port = pipes.sockets[0].getsockname()[1]
        async with await relay(tmp_path / "relayed.sock", str(target), port):
            yield str(tmp_path / "relayed.sock")


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readexactly(500_000))
    await writer.drain()
    writer.close()


async def test_a_relayed_socket_carries_bytes_both_ways(tmp_path):
    target = tmp_path / "target.sock"
    payload = os.urandom(500_000)
    async with await asyncio.start_unix_server(pipe_relays.kept(_echo), target), relayed(tmp_path, target) as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(payload)
        assert await reader.read() == payload
        writer.close()


async def test_a_relayed_socket_is_closed_if_nothing_listens_behind_it(tmp_path):
    async with relayed(tmp_path, tmp_path / "nothing.sock") as path:
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make network namespaces")
async def test_frames_pass_between_a_tap_device_and_the_switch():
    name = f"wltest-{os.getpid()}-frames"
    path = namespaces.create(name)
    try:
        with namespaces.entered(path):
            tap = open_tap("tap0")
            _bring_up("tap0")
            host = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(0x88B5))
            host.bind(("tap0", 0))
        wire = await Wire.open(tap)
        host_name, port = wire.address.removeprefix("tcp:").split(":")
        reader, writer = await asyncio.open_connection(host_name, int(port))
        frame = bytes.fromhex("ffffffffffff02000000000188b5") + bytes(100)

        writer.write(len(frame).to_bytes(2) + frame)
        assert await asyncio.get_running_loop().sock_recv(host, 2000) == frame

        host.send(frame)
        while (received := await reader.readexactly(int.from_bytes(await reader.readexactly(2)))) != frame:
            assert received[12:14] != b"\x88\xb5"  # the kernel may send frames of its own
        writer.close()
        wire.close()
        host.close()
    finally:
        namespaces.delete(name)


def _bring_up(interface: str) -> None:
    with Netlink() as netlink:
        found = rtnetlink.link(netlink, interface)
        assert found
        rtnetlink.set_link(netlink, found.index, up=True)
