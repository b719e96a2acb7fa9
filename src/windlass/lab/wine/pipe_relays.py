"""Runs in Windows' Python: makes the named pipes of this Windows reachable by TCP on the loopback interface.

A client sends a line with the path of a socket. If a pipe of that path can be opened, the client receives one byte and
then the bytes of the pipe; otherwise the connection is closed. relays.py is the client, on Linux.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

from windlass.channels import local
from windlass.lab.sandbox.relays import pass_on

OPENED = b"+"
StreamHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


async def listen(port: int) -> asyncio.Server:
    return await asyncio.start_server(kept(_relay), "127.0.0.1", port)


async def _serve(port: int) -> None:
    async with await listen(port) as server:
        await server.serve_forever()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        path = (await reader.readline()).decode().rstrip("\n")
        pipe_reader, pipe_writer = await local.connect(Path(path))
    except OSError:
        writer.close()
        return
    writer.write(OPENED)
    await asyncio.gather(pass_on(reader, pipe_writer), pass_on(pipe_reader, writer))


def kept(handle: StreamHandler) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """Keeps a reference to the task of each connection: a server of Python 3.11 may lose a task with paused streams."""
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return connected


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
