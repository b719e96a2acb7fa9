"""Commands to ovs-vswitchd by its control socket, as `ovs-appctl` sends them, but without a process for each."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader
from contextlib import suppress
from pathlib import Path

import msgspec

from windlass.switch import ovsdb
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError, open_stream


def control_socket(run_directory: str) -> str:
    """The path of the control socket: its name has the process id of the daemon, unless it was started with another."""
    directory = Path(run_directory)
    chosen = directory / "ovs-vswitchd.ctl"
    if chosen.exists():
        return str(chosen)
    try:
        process = (directory / "ovs-vswitchd.pid").read_text().strip()
    except OSError as error:
        raise SwitchUnreachableError(
            f"{directory}/ovs-vswitchd.pid: {error.strerror}; start ovs-vswitchd with --pidfile, "
            "or set ovsRunDirectory to the directory of its sockets"
        ) from error
    return str(directory / f"ovs-vswitchd.{process}.ctl")


async def ask(socket: str, command: str, *arguments: str) -> str:
    """What `ovs-appctl COMMAND ARGUMENTS` would print."""
    reader, writer = await open_stream(socket)
    try:
        async with asyncio.timeout(ovsdb.PATIENCE):  # a caller may hold a lock meanwhile
            writer.write(msgspec.json.encode({"method": command, "params": arguments, "id": 0}))
            answer = await _answer(reader)
    except TimeoutError:
        raise SwitchUnreachableError(
            f"{socket}: ovs-vswitchd does not answer {command} within {ovsdb.PATIENCE:g} s; is it stuck? See its log"
        ) from None
    except (OSError, EOFError) as error:
        raise SwitchUnreachableError(f"{socket}: ovs-vswitchd does not answer {command}: {error}") from error
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if answer.error is not None:
        asked = " ".join((command, *arguments))
        raise SwitchRefusedError(f"{socket}: ovs-vswitchd refuses {asked}: {answer.error.strip()}")
    return answer.result or ""


class _ControlAnswer(msgspec.Struct):
    result: str | None = None
    error: str | None = None


async def _answer(reader: StreamReader) -> _ControlAnswer:
    """The connection stays open: the answer is complete when it is a whole JSON object."""
    received = bytearray()
    while chunk := await reader.read(1 << 20):
        received += chunk
        if chunk.rstrip().endswith(b"}"):  # not all that was received: a dump of connections has many chunks
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(received, type=_ControlAnswer)
    raise EOFError("it closed the connection")
