"""Named pipes of Windows. See `local`.

asyncio can serve pipes, but its security descriptor lets everyone read, it accepts clients of other machines, and it
allows a second server of the same name. So this module creates the instances, and passes them to the event loop.
"""

from __future__ import annotations

import sys

if sys.platform != "win32":
    raise ImportError("named pipes are only on Windows")

import _winapi
import asyncio
import ctypes
import io
from asyncio import BaseProtocol, ProactorEventLoop, StreamReader, StreamReaderProtocol, StreamWriter
from asyncio.windows_utils import PipeHandle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ctypes import POINTER, byref, wintypes
from pathlib import Path

from windlass.channels.streams import BUFFER, ProtocolFactory, ServedError

_PREFIX = "\\\\.\\pipe\\"
_ADMINISTRATORS = "D:P(A;;GA;;;BA)(A;;GA;;;SY)"  # the Administrators group and SYSTEM; nothing is inherited
_SDDL_REVISION = 1
_REJECT_REMOTE_CLIENTS = 0x8
_ANY_COUNT = 255  # PIPE_UNLIMITED_INSTANCES
_PIPE_BYTES = 64 * 1024  # of the kernel's buffers
_IDENTIFICATION_ONLY = 0x00110000  # SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION: a server cannot impersonate us
_FILE_NOT_FOUND, _PIPE_BUSY = 2, 231
_RETRY_SECONDS = 0.1

_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_security = ctypes.WinDLL("advapi32", use_last_error=True)


class _SecurityAttributes(ctypes.Structure):
    _fields_ = (("size", wintypes.DWORD), ("descriptor", wintypes.LPVOID), ("inherit", wintypes.BOOL))


_create_pipe = _kernel.CreateNamedPipeW
_create_pipe.restype = wintypes.HANDLE
_create_pipe.argtypes = (wintypes.LPCWSTR, *[wintypes.DWORD] * 6, POINTER(_SecurityAttributes))
_wait_pipe = _kernel.WaitNamedPipeW
_wait_pipe.argtypes = (wintypes.LPCWSTR, wintypes.DWORD)
_local_free = _kernel.LocalFree
_local_free.argtypes = (wintypes.LPVOID,)
_to_descriptor = _security.ConvertStringSecurityDescriptorToSecurityDescriptorW
_to_descriptor.argtypes = (wintypes.LPCWSTR, wintypes.DWORD, POINTER(wintypes.LPVOID), POINTER(wintypes.ULONG))


def address(path: Path) -> str:
    """The pipe for a path, as Open vSwitch on Windows names it: without any slash."""
    name = str(path)
    return name if name.startswith(_PREFIX) else _PREFIX + name.replace("\\", "").replace("/", "")


async def connect(path: Path, limit: int = BUFFER) -> tuple[StreamReader, StreamWriter]:
    loop = _loop()
    reader = StreamReader(limit=limit, loop=loop)
    protocol = StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_pipe_connection(lambda: protocol, address(path))
    return reader, StreamWriter(transport, protocol, reader, loop)


async def attach(path: Path, protocol: BaseProtocol) -> None:
    # asyncio accepts any protocol; its type stubs require a StreamReaderProtocol.
    await _loop().create_pipe_connection(lambda: protocol, address(path))  # type: ignore[arg-type,return-value]
    await asyncio.sleep(0)  # `connection_made` is called in the next turn of the loop; Unix sockets wait for it


def dial(path: Path, seconds: float | None) -> PipeStream:
    milliseconds = _milliseconds(seconds)
    while True:
        try:
            access = _winapi.GENERIC_READ | _winapi.GENERIC_WRITE
            flags = _winapi.FILE_FLAG_OVERLAPPED | _IDENTIFICATION_ONLY
            handle = _winapi.CreateFile(address(path), access, 0, 0, _winapi.OPEN_EXISTING, flags, 0)
        except OSError as error:
            if error.winerror != _PIPE_BUSY:
                raise
            if not _wait_pipe(address(path), milliseconds):
                raise TimeoutError(f"{path}: all instances of the pipe are in use") from None
        else:
            return PipeStream(PipeHandle(handle), milliseconds)


@asynccontextmanager
async def listening(path: Path, factory: ProtocolFactory) -> AsyncIterator[None]:
    """One server for a name. Connections outlive the block."""
    if is_served(path):
        raise ServedError(f"{path}: another process serves this pipe")
    try:
        pipe = _instance(address(path), first=True)
    except PermissionError as error:
        raise ServedError(f"{path}: another process serves this pipe, or only SYSTEM may serve it") from error
    accepting = asyncio.create_task(_accept(_loop(), address(path), pipe, factory), name=f"accept {path}")
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.wait((accepting,))


def is_served(path: Path) -> bool:
    if _wait_pipe(address(path), 1):
        return True
    return ctypes.get_last_error() != _FILE_NOT_FOUND


class PipeStream:
    """The client's end of a pipe, for callers without an event loop."""

    def __init__(self, pipe: PipeHandle, milliseconds: int) -> None:
        self._pipe = pipe
        self._milliseconds = milliseconds  # for each read and write
        self._has_reader = False

    def sendall(self, data: bytes, /) -> None:
        left = memoryview(data)
        while left:
            written, _ = self._finish(_winapi.WriteFile(self._pipe.handle, bytes(left), overlapped=True))
            left = left[written:]

    def recv(self, size: int, /) -> bytes:
        try:
            count, operation = self._finish(_winapi.ReadFile(self._pipe.handle, size, overlapped=True))
        except BrokenPipeError:
            return b""
        return (operation.getbuffer() or b"")[:count]

    def makefile(self, mode: str) -> io.BufferedReader:
        if mode != "rb":
            raise ValueError(f"a pipe has no file of mode {mode}")
        self._has_reader = True
        return io.BufferedReader(_PipeReader(self))

    def close(self) -> None:
        """As with a socket, a file from `makefile` keeps it open."""
        if not self._has_reader:
            self._pipe.close()

    def reader_closed(self) -> None:
        self._has_reader = False
        self.close()

    def _finish(self, started: tuple[_winapi.Overlapped, int]) -> tuple[int, _winapi.Overlapped]:
        operation, _ = started
        if _winapi.WaitForMultipleObjects([operation.event], False, self._milliseconds) == _winapi.WAIT_TIMEOUT:
            operation.cancel()
            operation.GetOverlappedResult(True)
            raise TimeoutError("timed out")
        count, _ = operation.GetOverlappedResult(True)
        return count, operation


class _PipeReader(io.RawIOBase):
    def __init__(self, stream: PipeStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._stream.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._stream.reader_closed()


async def _accept(loop: ProactorEventLoop, name: str, pipe: PipeHandle, factory: ProtocolFactory) -> None:
    while True:
        is_open = True
        try:
            await loop._proactor.accept_pipe(pipe)  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way
        except BrokenPipeError:  # the client has closed its end already
            is_open = False
        except BaseException:
            pipe.close()
            raise
        # The next instance comes first, so that there is always one: a client waits, and does not fail.
        accepted, pipe = pipe, await _next_instance(loop, name)
        if is_open:
            loop._make_duplex_pipe_transport(accepted, factory(), extra={"addr": name})  # type: ignore[attr-defined]  # noqa: SLF001
        else:
            accepted.close()


async def _next_instance(loop: ProactorEventLoop, name: str) -> PipeHandle:
    while True:
        try:
            return _instance(name, first=False)
        except OSError as error:
            loop.call_exception_handler(
                {"message": f"{name}: cannot create an instance of the pipe", "exception": error}
            )
            await asyncio.sleep(_RETRY_SECONDS)


def _instance(name: str, *, first: bool) -> PipeHandle:
    flags = _winapi.PIPE_ACCESS_DUPLEX | _winapi.FILE_FLAG_OVERLAPPED
    if first:
        flags |= _winapi.FILE_FLAG_FIRST_PIPE_INSTANCE
    descriptor = wintypes.LPVOID()
    if not _to_descriptor(_ADMINISTRATORS, _SDDL_REVISION, byref(descriptor), None):
        raise ctypes.WinError(ctypes.get_last_error())
    try:
        attributes = _SecurityAttributes(ctypes.sizeof(_SecurityAttributes), descriptor, False)
        # No flag for a stream of bytes: its value is 0.
        size = _PIPE_BYTES
        handle = _create_pipe(name, flags, _REJECT_REMOTE_CLIENTS, _ANY_COUNT, size, size, 0, byref(attributes))
        if handle == wintypes.HANDLE(-1).value:
            raise ctypes.WinError(ctypes.get_last_error())
    finally:
        _local_free(descriptor)
    return PipeHandle(handle)


def _loop() -> ProactorEventLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, ProactorEventLoop):
        raise OSError(0, "only the Proactor event loop of asyncio opens named pipes")
    return loop


def _milliseconds(seconds: float | None) -> int:
    return _winapi.INFINITE if seconds is None else int(seconds * 1000)
