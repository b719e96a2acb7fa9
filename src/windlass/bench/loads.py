"""The load of `windlass bench continuity`: new connections at a steady rate beside held ones, and what answers them.

One lean process with sockets in all the namespaces concerned, so that the lab's own work delays no connection. It is
told over a unix socket which frontends to load, and answers with what came of the time before. It judges nothing.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from windlass.bench.tallies import Failure, Notes
from windlass.host.linux import namespaces
from windlass.lab.probing.servers import identity, parse_identity

SECONDS_TO_ANSWER = 1.0  # of a new connection: a lost SYN is a failure, because it is sent again only after one
BEAT = 0.02  # seconds between two uses of a held connection
BACKLOG = 1024
LARGEST_READ = 4096
_IN_WORDS = {errno.ECONNREFUSED: "refused", errno.ECONNRESET: "reset", errno.EPIPE: "reset"}


class Server(Struct, frozen=True):
    """Speaks as the lab's own do: says its name to whoever connects, then sends back what it gets."""

    name: str
    namespace: str
    port: int


class Frontend(Struct, frozen=True):
    """Where connections go, and the namespace they come from."""

    name: str
    namespace: str
    address: str
    port: int


class Plan(Struct, frozen=True):
    servers: tuple[Server, ...]
    frontends: tuple[Frontend, ...]
    per_second: int  # new connections to each frontend
    held: int  # connections to each frontend


def prefer(thread: int) -> None:
    """Lets it run as soon as it can. What carries or measures packets must not wait for others on a busy machine."""
    with suppress(PermissionError):  # then the floor tells how busy it was
        os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))


def main() -> None:
    """`python -m windlass.bench.loads PLAN SOCKET`, as root. For ever: who started it ends it."""
    plan_file, control = map(Path, sys.argv[1:])
    load = Load(msgspec.json.decode(plan_file.read_bytes(), type=Plan))
    prefer(0)
    gc.collect()
    gc.freeze()  # a collection must not look like a gap in the network
    load.run(control)


@dataclass(slots=True, eq=False)
class Connection:
    """New until the server has said its name; then it is closed, or held and used at every beat."""

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
    """What goes on at one frontend."""

    frontend: Frontend
    active: bool = False
    due: float = 0.0  # when the next connection begins
    new: dict[int, Connection] = field(default_factory=dict)  # by socket, oldest first
    held: list[Connection] = field(default_factory=list)


class Load:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._selector = selectors.EpollSelector()
        names = {*(server.namespace for server in plan.servers), *(frontend.namespace for frontend in plan.frontends)}
        self._namespaces = {name: os.open(namespaces.path_of(name), os.O_RDONLY | os.O_CLOEXEC) for name in names}
        self._streams = {frontend.name: Stream(frontend) for frontend in plan.frontends}
        self._notes = Notes()
        self._beat = time.monotonic()
        self._commands: deque[socket.socket] = deque()  # from whom: a tally is due as soon as what was to stop has
        for server in plan.servers:
            self._serve(server)

    def run(self, control: Path) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(control))
        listening.listen()
        self._watch(listening, partial(self._accept_control, listening))
        while True:
            for key, _ in self._selector.select(max(0.0, self._next() - time.monotonic())):
                key.data()
            now = time.monotonic()
            for stream in self._streams.values():
                self._expire(stream, now)
                self._begin(stream, now)
            self._use_held(now)
            self._report()

    def _next(self) -> float:
        return min([self._beat, *(stream.due for stream in self._streams.values() if stream.active)])

    # New connections --------------------------------------------------------------------------------------------

    def _begin(self, stream: Stream, now: float) -> None:
        while stream.active and stream.due <= now:
            self._notes.longest_lag = max(self._notes.longest_lag, now - stream.due)
            self._notes.attempted += 1
            stream.due += 1 / self._plan.per_second
            self._open(stream, hold=False)

    def _open(self, stream: Stream, *, hold: bool) -> None:
        sock = self._socket(stream.frontend.namespace)
        if hold:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each beat is a packet of its own
        connection = Connection(sock, time.monotonic(), hold)
        stream.new[sock.fileno()] = connection
        try:
            sock.connect((stream.frontend.address, stream.frontend.port))
        except BlockingIOError:
            self._watch(sock, partial(self._readable, stream, connection))
        except OSError as error:
            self._failed(stream, connection, _words(error))

    def _readable(self, stream: Stream, connection: Connection) -> None:
        try:
            data = connection.sock.recv(LARGEST_READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._failed(stream, connection, _words(error))
            return
        if not data:
            self._failed(stream, connection, "closed")
        elif connection.heard:
            self._heard(connection)
        else:
            self._made(stream, connection, parse_identity(data).backend)

    def _made(self, stream: Stream, connection: Connection, server: str) -> None:
        now = time.monotonic()
        del stream.new[connection.sock.fileno()]
        if connection.hold:
            connection.heard = now
            stream.held.append(connection)
            return
        self._notes.longest_wait = max(self._notes.longest_wait, now - connection.began)
        self._notes.answered[f"{stream.frontend.name} by {server}"] += 1
        self._close(connection.sock)

    def _failed(self, stream: Stream, connection: Connection, what: str) -> None:
        found = Failure(stream.frontend.name, what, connection.began, time.monotonic(), connection.port)
        (self._notes.broken if connection.hold else self._notes.failures).append(found)
        if connection in stream.held:
            stream.held.remove(connection)
        stream.new.pop(connection.sock.fileno(), None)
        self._close(connection.sock)

    def _expire(self, stream: Stream, now: float) -> None:
        """Called when all that had arrived was read: who is late here was not answered, however busy we were."""
        while stream.new:
            oldest = next(iter(stream.new.values()))
            if now - oldest.began < SECONDS_TO_ANSWER:
                return
            self._failed(stream, oldest, "no answer")

    # Held connections -------------------------------------------------------------------------------------------

    def _use_held(self, now: float) -> None:
        if now < self._beat:
            return
        self._notes.longest_lag = max(self._notes.longest_lag, now - self._beat)
        self._beat = now + BEAT
        for stream in self._streams.values():
            for connection in list(stream.held):
                try:
                    connection.sock.send(b".")
                except BlockingIOError:
                    pass  # so much is unanswered that it is noticed as silence
                except OSError as error:
                    self._failed(stream, connection, _words(error))

    def _heard(self, connection: Connection) -> None:
        now = time.monotonic()
        self._notes.longest_gap = max(self._notes.longest_gap, now - connection.heard)
        connection.heard = now

    # What answers -----------------------------------------------------------------------------------------------

    def _serve(self, server: Server) -> None:
        sock = self._socket(server.namespace)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("0.0.0.0", server.port))  # noqa: S104 (in a Pod of the lab)
        sock.listen(BACKLOG)
        self._watch(sock, partial(self._accept, sock, server.name))

    def _accept(self, listening: socket.socket, name: str) -> None:
        with suppress(BlockingIOError):
            while True:
                sock, client = listening.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._watch(sock, partial(self._echo, sock))
                sock.send(identity(name, client[0]) + b"\n")

    def _echo(self, sock: socket.socket) -> None:
        with suppress(OSError):  # the client is gone, and counted there
            data = sock.recv(LARGEST_READ)
            if data:
                sock.send(data)
                return
        self._close(sock)

    # Who asks ---------------------------------------------------------------------------------------------------

    def _accept_control(self, listening: socket.socket) -> None:
        sock, _ = listening.accept()
        self._watch(sock, partial(self._obey, sock))

    def _obey(self, sock: socket.socket) -> None:
        """A line is a list of the frontends to load from now on; so short that it comes in one piece."""
        asked = sock.recv(LARGEST_READ)
        if not asked:
            self._close(sock)
            return
        wanted = msgspec.json.decode(asked, type=list[str])
        now = time.monotonic()
        for name, stream in self._streams.items():
            if name in wanted and not stream.active:
                stream.due = now
                for _ in range(self._plan.held):
                    self._open(stream, hold=True)
            stream.active = name in wanted
        self._commands.append(sock)

    def _report(self) -> None:
        """Once nothing is under way where it was to stop."""
        if not self._commands or any(stream.new and not stream.active for stream in self._streams.values()):
            return
        for stream in self._streams.values():
            for connection in stream.held:
                self._heard_nothing_since(connection)
            if not stream.active:
                while stream.held:
                    self._close(stream.held.pop().sock)
        notes, self._notes = self._notes, Notes()
        self._commands.popleft().sendall(msgspec.json.encode(notes.tally()) + b"\n")

    def _heard_nothing_since(self, connection: Connection) -> None:
        """Silence up to now counts, and is not forgotten."""
        self._notes.longest_gap = max(self._notes.longest_gap, time.monotonic() - connection.heard)

    # Sockets ----------------------------------------------------------------------------------------------------

    def _socket(self, namespace: str) -> socket.socket:
        """A socket stays in the namespace in which it was made."""
        namespaces.join(self._namespaces[namespace])
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    def _watch(self, sock: socket.socket, call: Callable[[], None]) -> None:
        self._selector.register(sock, selectors.EVENT_READ, call)

    def _close(self, sock: socket.socket) -> None:
        with suppress(KeyError):
            self._selector.unregister(sock)
        sock.close()


def _words(error: OSError) -> str:
    return _IN_WORDS.get(error.errno or 0) or error.strerror or type(error).__name__


if __name__ == "__main__":
    main()
