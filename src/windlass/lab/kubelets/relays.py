"""Forwards a port on this machine's loopback to the API server in the lab, for kubectl."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import yaml

from windlass.host.linux import namespaces
from windlass.lab.control.control_planes import PORT, ControlPlane
from windlass.lab.sandbox.relays import pass_on


@asynccontextmanager
async def reachable(plane: ControlPlane) -> AsyncIterator[Path]:
    """A kubeconfig that works outside of the lab within the block."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            with namespaces.entered(namespaces.path_of(plane.namespace)):
                there = socket.create_connection(("127.0.0.1", PORT))
            there.setblocking(False)
            their_reader, their_writer = await asyncio.open_connection(sock=there)
            await asyncio.gather(pass_on(reader, their_writer), pass_on(their_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        content = yaml.safe_load(plane.kubeconfig().read_text())
        content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        outside = plane.folder / "kubeconfig"
        outside.touch(mode=0o600)
        outside.write_text(yaml.safe_dump(content))
        yield outside
