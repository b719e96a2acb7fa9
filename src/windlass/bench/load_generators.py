"""Generates new connections at a steady rate beside held ones, and counts what becomes of them.

One small process with sockets in all namespaces concerned, so that the lab's own work delays no connection. Over a unix
socket it receives which targets to load, and replies with the tally since the last command. It judges nothing.
"""

from __future__ import annotations

import errno
import gc
import os
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from windlass.bench.loads import Failure, LoadPlan, LoadServer, LoadTarget, Tally
from windlass.host.linux import namespaces
from windlass.lab.probing.servers import identity, parse_identity

SECONDS_TO_ANSWER = 1.0  # for a new connection: a lost SYN is a failure, because it is sent again only after a second
BEAT = 0.02  # seconds between two uses of a held connection
_LARGEST_READ = 4096
_BACKLOG = 1024
_IN_WORDS = {errno.ECONNREFUSED: "refused", errno.ECONNRESET: "reset", errno.EPIPE: "reset"}


def prefer(thread: int) -> None:
    """Schedule this thread before others: on a busy machine, what carries or measures packets must not wait."""
    with suppress(PermissionError):  # then the floor shows how busy the machine was
        os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))


def main() -> None:
    """`python -m windlass.bench.load_generators PLAN SOCKET`, as root. Runs until it is killed."""
    plan_file, control = map(Path, sys.argv[1:])
    plan = msgspec.json.decode(plan_file.read_bytes(), type=LoadPlan)
    loop = SocketLoop({*(one.namespace for one in plan.servers), *(one.namespace for one in plan.targets)})
    for server in plan.servers:
        EchoServer(loop, server)
    generator = LoadGenerator(loop, plan)
    commands = CommandSocket(loop, control)
    prefer(0)
    gc.collect()
    gc.freeze()  # a garbage collection must not look like a gap in the network
    while True:
        loop.handle_readable(generator.due - time.monotonic())
        generator.work()
        commands.serve(generator)


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
            data = sock.recv(_LARGEST_READ)
            if data:
                sock.send(data)
                return
        self._loop.close(sock)


@dataclass(slots=True, eq=False)
class LoadConnection:
    """It is open when the server has sent its name. Then it is closed, or held and used at every beat."""

    sock: socket.socket
    began: float
    hold: bool
    heard: float = 0.0  # the last answer; 0: none yet

    @property
    def port(self) -> int:
        with suppress(OSError):
            return int(self.sock.getsockname()[1])
        return 0


@dataclass(slots=True, eq=False)
class Stream:
    """The connections to one target."""

    target: LoadTarget
    active: bool = False
    due: float = 0.0  # when the next connection begins
    new: dict[int, LoadConnection] = field(default_factory=dict)  # by socket, oldest first
    held: list[LoadConnection] = field(default_factory=list)


class LoadGenerator:
    def __init__(self, loop: SocketLoop, plan: LoadPlan) -> None:
        self._loop = loop
        self._plan = plan
        self._streams = {target.name: Stream(target) for target in plan.targets}
        self._tally = Tally()
        self._beat = time.monotonic()

    @property
    def due(self) -> float:
        """When there is something to do, by the monotonic clock."""
        return min([self._beat, *(stream.due for stream in self._streams.values() if stream.active)])

    def work(self) -> None:
        """Called after all data that had arrived was read."""
        now = time.monotonic()
        for stream in self._streams.values():
            self._expire(stream, now)
            self._begin(stream, now)
        self._use_held(now)

    def load(self, targets: Collection[str]) -> None:
        """Load these targets and no others from now on."""
        now = time.monotonic()
        for name, stream in self._streams.items():
            if name in targets and not stream.active:
                stream.due = now
                for _ in range(self._plan.held):
                    self._open(stream, hold=True)
            stream.active = name in targets

    @property
    def has_stopped(self) -> bool:
        """Whether no connection is pending to a target that is not loaded any more."""
        return not any(stream.new and not stream.active for stream in self._streams.values())

    def take_tally(self) -> Tally:
        """The tally since the last call. Closes the held connections to targets that are not loaded any more."""
        for stream in self._streams.values():
            for connection in stream.held:
                self._note_gap(time.monotonic() - connection.heard)  # silence up to now counts
            if not stream.active:
                while stream.held:
                    self._loop.close(stream.held.pop().sock)
        tally, self._tally = self._tally, Tally()
        return tally

    def _begin(self, stream: Stream, now: float) -> None:
        while stream.active and stream.due <= now:
            self._tally.longest_lag = max(self._tally.longest_lag, now - stream.due)
            self._tally.attempted += 1
            stream.due += 1 / self._plan.per_second
            self._open(stream, hold=False)

    def _open(self, stream: Stream, *, hold: bool) -> None:
        sock = self._loop.tcp(stream.target.namespace)
        if hold:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each beat is a separate packet
        connection = LoadConnection(sock, time.monotonic(), hold)
        stream.new[sock.fileno()] = connection
        try:
            sock.connect((stream.target.address, stream.target.port))
        except BlockingIOError:
            self._loop.watch(sock, partial(self._read, stream, connection))
        except OSError as error:
            self._fail(stream, connection, _words(error))

    def _read(self, stream: Stream, connection: LoadConnection) -> None:
        try:
            data = connection.sock.recv(_LARGEST_READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(stream, connection, _words(error))
            return
        if not data:
            self._fail(stream, connection, "closed")
        elif connection.heard:
            now = time.monotonic()
            self._note_gap(now - connection.heard)
            connection.heard = now
        else:
            self._established(stream, connection, parse_identity(data).backend)

    def _established(self, stream: Stream, connection: LoadConnection, server: str) -> None:
        now = time.monotonic()
        del stream.new[connection.sock.fileno()]
        if connection.hold:
            connection.heard = now
            stream.held.append(connection)
            return
        self._tally.longest_wait = max(self._tally.longest_wait, now - connection.began)
        by = f"{stream.target.name} by {server}"
        self._tally.answered[by] = self._tally.answered.get(by, 0) + 1
        self._loop.close(connection.sock)

    def _fail(self, stream: Stream, connection: LoadConnection, what: str) -> None:
        failure = Failure(stream.target.name, what, connection.began, time.monotonic(), connection.port)
        (self._tally.broken if connection.hold else self._tally.failures).append(failure)
        if connection in stream.held:
            stream.held.remove(connection)
        stream.new.pop(connection.sock.fileno(), None)
        self._loop.close(connection.sock)

    def _expire(self, stream: Stream, now: float) -> None:
        while stream.new:
            oldest = next(iter(stream.new.values()))
            if now - oldest.began < SECONDS_TO_ANSWER:
                return
            self._fail(stream, oldest, "no answer")

    def _use_held(self, now: float) -> None:
        if now < self._beat:
            return
        self._tally.longest_lag = max(self._tally.longest_lag, now - self._beat)
        self._beat = now + BEAT
        for stream in self._streams.values():
            for connection in list(stream.held):
                try:
                    connection.sock.send(b".")
                except BlockingIOError:
                    pass  # the send buffer is full of unanswered data: it shows as a gap
                except OSError as error:
                    self._fail(stream, connection, _words(error))

    def _note_gap(self, seconds: float) -> None:
        self._tally.longest_gap = max(self._tally.longest_gap, seconds)


class CommandSocket:
    """Receives which targets to load; replies with the tally once the others have stopped."""

    def __init__(self, loop: SocketLoop, path: Path) -> None:
        self._loop = loop
        self._commands: deque[tuple[socket.socket, list[str]]] = deque()
        self._waiting: deque[socket.socket] = deque()  # clients whose reply is due
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
        listening.listen()
        loop.watch(listening, partial(self._accept, listening))

    def serve(self, generator: LoadGenerator) -> None:
        while self._commands:
            client, targets = self._commands.popleft()
            generator.load(targets)
            self._waiting.append(client)
        if self._waiting and generator.has_stopped:
            self._waiting.popleft().sendall(msgspec.json.encode(generator.take_tally()) + b"\n")

    def _accept(self, listening: socket.socket) -> None:
        sock, _ = listening.accept()
        self._loop.watch(sock, partial(self._read, sock))

    def _read(self, sock: socket.socket) -> None:
        """A command is a list of targets, so short that it arrives in one piece."""
        command = sock.recv(_LARGEST_READ)
        if command:
            self._commands.append((sock, msgspec.json.decode(command, type=list[str])))
        else:
            self._loop.close(sock)


def _words(error: OSError) -> str:
    return _IN_WORDS.get(error.errno or 0) or error.strerror or type(error).__name__


if __name__ == "__main__":
    main()
