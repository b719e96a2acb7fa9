"""Opens the byte stream to a daemon of Open vSwitch."""

from __future__ import annotations

from asyncio import BaseProtocol, StreamReader, StreamWriter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass.channels import local

# A flow dump or the first view of a database has megabytes: the default of 64 KiB would pause reading often.
_BUFFER = 1 << 20


class SwitchUnreachableError(ConnectionError):
    """No daemon answers at this path. The text says why, and what to do."""


async def open_stream(path: str) -> tuple[StreamReader, StreamWriter]:
    """Connect to a socket of Open vSwitch by its path (`db.sock`, `<bridge>.mgmt`), on either operating system."""
    with _explained(path):
        return await local.connect(Path(path), limit=_BUFFER)


async def attach(path: str, protocol: BaseProtocol) -> None:
    """The same for a protocol of asyncio."""
    with _explained(path):
        await local.attach(Path(path), protocol)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SwitchUnreachableError(f"{path}: {_what_to_do(error)}") from error


def _what_to_do(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return (
                "no such socket; start Open vSwitch (ovsdb-server, ovs-vswitchd), or set ovsRunDirectory "
                "to the directory of its sockets"
            )
        case ConnectionRefusedError():
            return "the socket exists but no daemon listens; start Open vSwitch again"
        case PermissionError():
            return "permission denied; run as root (on Windows: as SYSTEM)"
        case _:
            return f"cannot be opened ({error.strerror or error}); is it a socket of Open vSwitch?"
