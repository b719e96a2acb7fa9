"""Sockets in network namespaces, an event loop over them, and servers that answer a load. It counts nothing."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from windlass.bench.loads import LoadServer
from windlass.host.linux import namespaces
from windlass.lab.probing.servers import identity

LARGEST_READ = 4096
_BACKLOG = 1024


class SocketLoop:
    def __init__(self, names: Iterable[str]) -> None:
        """`names` are the network namespaces in which there will be sockets."""
        self._selector = selectors.EpollSelector()
        self._namespaces = {name: os.open(namespaces.path_of(name), os.O_RDONLY | os.O_CLOEXEC) for name in names}

    def tcp(self, namespace: str) -> socket.socket:
        """A non-blocking socket. It stays in the namespace in which it was created."""
        namespaces.join(self._namespaces[namespace])
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    def watch(self, sock: socket.socket, on_readable: Callable[[], None]) -> None:
        self._selector.register(sock, selectors.EVENT_READ, on_readable)

    def close(self, sock: socket.socket) -> None:
        with suppress(KeyError):
            self._selector.unregister(sock)
        sock.close()

    def handle_readable(self, timeout: float) -> None:
        """Wait for readable sockets at most that long, and call their functions."""
        for key, _ in self._selector.select(max(0.0, timeout)):
            key.data()


class EchoServer:
    """Sends its name to each client, then echoes what it receives."""

    def __init__(self, loop: SocketLoop, server: LoadServer) -> None:
        self._loop = loop
        self._name = server.name
        listening = loop.tcp(server.namespace)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("0.0.0.0", server.port))  # noqa: S104 (in a Pod of the lab)
        listening.listen(_BACKLOG)
        loop.watch(listening, partial(self._accept, listening))

    def _accept(self, listening: socket.socket) -> None:
        with suppress(BlockingIOError):
            while True:
                sock, client = listening.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._loop.watch(sock, partial(self._echo, sock))
                sock.send(identity(self._name, client[0]) + b"\n")

    def _echo(self, sock: socket.socket) -> None:
        with suppress(OSError):  # the client is gone, and counts that itself
            data = sock.recv(LARGEST_READ)
            if data:
                sock.send(data)
                return
        self._loop.close(sock)
