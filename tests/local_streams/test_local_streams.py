"""Local streams, on this operating system: Unix sockets, or named pipes where Windows runs the tests."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing

import pytest

from windlass.channels import local

MEGABYTE = bytes(range(256)) * 4096


class Echo(asyncio.Protocol):
    """Answers with what it gets, until END."""

    END = b"\xff.\n"

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)
        if data.endswith(self.END):
            self.transport.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.sock"


async def talk(path, data: bytes) -> bytes:
    reader, writer = await local.connect(path)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


async def test_a_stream_carries_megabytes_both_ways_and_ends(path):
    async with local.listening(path, Echo):
        assert await talk(path, MEGABYTE + Echo.END) == MEGABYTE + Echo.END


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self.received = b""
        self.closed = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data

    def connection_lost(self, error):
        assert error is None
        self.closed.set()


async def test_an_attached_protocol_can_write_at_once_and_gets_the_bytes_as_they_arrive(path):
    async with local.listening(path, Echo):
        client = Client()
        await local.attach(path, client)
        client.transport.write(MEGABYTE + Echo.END)
        await asyncio.wait_for(client.closed.wait(), 20)
        assert client.received == MEGABYTE + Echo.END


async def test_many_clients_at_once(path):
    async with local.listening(path, Echo):
        texts = [f"client {number}".encode() + Echo.END for number in range(50)]
        assert await asyncio.gather(*(talk(path, text) for text in texts)) == texts


async def test_a_client_without_an_event_loop(path):
    def ask() -> bytes:
        with closing(local.dial(path, 20)) as stream:
            stream.sendall(MEGABYTE + Echo.END)
            answer = b""
            while piece := stream.recv(65536):
                answer += piece
            return answer

    async with local.listening(path, Echo):
        assert await asyncio.to_thread(ask) == MEGABYTE + Echo.END


async def test_a_file_keeps_the_stream_open(path):
    def ask() -> bytes:
        stream = local.dial(path, 20)
        stream.sendall(b"kept" + Echo.END)
        with stream.makefile("rb") as file:
            stream.close()
            return file.read()

    async with local.listening(path, Echo):
        assert await asyncio.to_thread(ask) == b"kept" + Echo.END


async def test_a_silent_server_is_not_waited_for_longer_than_asked(path):
    async with local.listening(path, asyncio.Protocol):
        with closing(await asyncio.to_thread(local.dial, path, 0.05)) as stream, pytest.raises(TimeoutError):
            await asyncio.to_thread(stream.recv, 1)


async def test_where_nothing_listens(path):
    assert not local.is_served(path)
    with pytest.raises(FileNotFoundError):
        await local.connect(path)
    with pytest.raises(FileNotFoundError):
        local.dial(path, 1)


async def test_a_second_server_is_refused_and_the_first_goes_on(path):
    async with local.listening(path, Echo):
        assert local.is_served(path)
        with pytest.raises(local.ServedError, match=r"agent\.sock: another process serves this"):
            async with local.listening(path, Echo):
                pass
        assert await talk(path, Echo.END) == Echo.END
    assert not local.is_served(path)
    async with local.listening(path, Echo):  # and a successor may come
        assert await talk(path, Echo.END) == Echo.END


async def test_a_connection_outlives_its_listener(path):
    async with local.listening(path, Echo):
        reader, writer = await local.connect(path)
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"
    writer.write(Echo.END)
    assert await asyncio.wait_for(reader.read(), 20) == Echo.END
    writer.close()


async def test_a_client_that_leaves_at_once_costs_nothing(path):
    async with local.listening(path, Echo):
        for _ in range(20):
            (await asyncio.to_thread(local.dial, path, 5)).close()
        assert await talk(path, Echo.END) == Echo.END


@pytest.mark.skipif(sys.platform != "win32", reason="named pipes are only on Windows")
class TestNamedPipes:
    def test_a_pipe_is_named_after_the_path_without_its_slashes(self):
        from pathlib import Path  # noqa: PLC0415

        pipe = "\\\\.\\pipe\\"
        assert local.address(Path("C:/openvswitch/var/run/db.sock")) == f"{pipe}C:openvswitchvarrundb.sock"
        assert local.address(Path("C:\\openvswitch\\br-int.mgmt")) == f"{pipe}C:openvswitchbr-int.mgmt"
        assert local.address(Path(f"{pipe}already")) == f"{pipe}already"

    async def test_only_administrators_and_system_may_open_it(self, path):
        """Read back from the pipe itself, by the call that Windows has for it."""
        import ctypes  # noqa: PLC0415
        from ctypes import byref, wintypes  # noqa: PLC0415

        security = ctypes.WinDLL("advapi32", use_last_error=True)  # type: ignore[attr-defined]
        dacl_only, kernel_object = 4, 6
        async with local.listening(path, Echo):
            reader, writer = await local.connect(path)
            handle = wintypes.HANDLE(writer.transport.get_extra_info("pipe").handle)
            descriptor, text = wintypes.LPVOID(), wintypes.LPWSTR()
            assert not security.GetSecurityInfo(
                handle, kernel_object, dacl_only, None, None, None, None, byref(descriptor)
            )
            assert security.ConvertSecurityDescriptorToStringSecurityDescriptorW(
                descriptor, 1, dacl_only, byref(text), None
            )
            writer.write(Echo.END)
            assert await reader.read() == Echo.END
            writer.close()
        # However the generic right was mapped: nothing for Everyone (WD), anonymous (AN) or the network (NU).
        entries = text.value.removeprefix("D:").lstrip("PAI").strip("()").split(")(")
        assert {entry.rpartition(";")[2] for entry in entries} == {"BA", "SY"}, text.value
        assert all(entry.startswith("A;") for entry in entries)

    async def test_the_pipe_exists_while_a_client_that_left_is_replaced(self, path, monkeypatch):
        """Without an instance, Windows tells other clients that there is no such pipe."""
        from windlass.channels import named_pipes  # noqa: PLC0415

        next_instance = named_pipes._next_instance
        existed = []

        async def watched(*arguments):
            existed.append(named_pipes.is_served(path))
            return await next_instance(*arguments)

        monkeypatch.setattr(named_pipes, "_next_instance", watched)
        async with local.listening(path, Echo):
            local.dial(path, 5).close()  # before the server has had a turn to accept it
            assert await talk(path, Echo.END) == Echo.END
        assert existed
        assert all(existed)
