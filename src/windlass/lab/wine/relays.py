"""Relays Unix sockets to the named pipes of the Windows in this network namespace, through pipe_relays.py.

So Linux programs (ovs-vsctl, ovs-ofctl, the lab) reach a Windows Node in the same way as a Linux Node.
"""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from pathlib import Path

from windlass.lab.sandbox.relays import pass_on
from windlass.lab.wine.pipe_relays import OPENED, kept


async def relay(socket: Path, pipe: str, port: int) -> asyncio.Server:
    """`pipe`: the path that Windows programs use; `port`: the port of pipe_relays.py."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", port)
            with closing(their_writer):
                their_writer.write(f"{pipe}\n".encode())
                if await their_reader.read(1) == OPENED:
                    await asyncio.gather(pass_on(reader, their_writer), pass_on(their_reader, writer))

    socket.parent.mkdir(parents=True, exist_ok=True)
    return await asyncio.start_unix_server(kept(connect), socket)
