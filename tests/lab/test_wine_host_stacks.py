"""The connections of a Windows Node with Linux: relays of pipes, frames of TAP devices, processes. Needs no Wine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bridge_ports import SPEC, pod
from switches import requires_ovs, run
from windlass.host.linux import namespaces, rtnetlink
from windlass.host.linux.netlink import Netlink
from windlass.lab.wine import pipe_relays
from windlass.lab.wine.frames import Wire, open_tap
from windlass.lab.wine.host_stacks import Wires
from windlass.lab.wine.relays import relay
from windlass.lab.wine.wine_machines import WindowsPrograms, WineMachine
from windlass.switch.bridges import delete_bridge, ensure_bridge
from windlass.switch.ovsdb import open_database
from windlass.switch.pod_ports import declare_pod_port

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


@requires_ovs
async def test_the_frames_of_a_pod_are_those_of_the_tap_device_in_its_namespace(switch):
    name = f"wltest-{os.getpid()}-pod"
    path = namespaces.create(name)
    port = replace(pod(1), netns=name)
    try:
        await run("ip", "-n", name, "tuntap", "add", "dev", "eth0", "mode", "tap")  # as the stand-in of HNS does
        await run("ip", "-n", switch.namespace, "link", "set", "lo", "up")
        async with open_database(str(switch.database)) as database:
            with namespaces.entered(namespaces.path_of(switch.namespace)):
                wires = Wires("br-int", "eth0")
                await ensure_bridge(database, SPEC)
                await declare_pod_port(database, "br-int", port)
                await wires.follow(database)
                assert not database.view.interfaces[port.interface].options, "the endpoint is not attached yet"

                await switch.add_nics(port.interface)  # the interface that stands for the endpoint
                await wires.follow(database)
                address = database.view.interfaces[port.interface].options["stream"]
                host, number = address.removeprefix("tcp:").split(":")
                reader, writer = await asyncio.open_connection(host, int(number))
            with namespaces.entered(path):
                _bring_up("eth0")  # the kernel sends frames of its own
            mac = json.loads(await run("ip", "-n", name, "-json", "link", "show", "eth0"))[0]["address"]
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
            assert frame[6:12].hex(":") == mac

            await delete_bridge(database, "br-int")
            with namespaces.entered(namespaces.path_of(switch.namespace)):
                await wires.follow(database)
            assert "NO-CARRIER" in await run("ip", "-n", name, "link", "show", "eth0"), "the device is still open"
            writer.close()
    finally:
        namespaces.delete(name)


async def test_processes_of_another_windows_are_not_killed(tmp_path):
    machines = [WineMachine("", tmp_path / name, WindowsPrograms(tmp_path)) for name in ("one", "one-more")]
    own, other = [
        await asyncio.create_subprocess_exec("sleep", "60", env={**os.environ, "WINEPREFIX": str(machine.folder)})
        for machine in machines
    ]
    machines[0].kill_processes()
    assert await own.wait() == -signal.SIGKILL
    assert other.returncode is None
    other.kill()
    await other.wait()


def _bring_up(interface: str) -> None:
    with Netlink() as netlink:
        found = rtnetlink.link(netlink, interface)
        assert found
        rtnetlink.set_link(netlink, found.index, up=True)
