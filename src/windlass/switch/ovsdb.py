"""The connection to ovsdb-server: a live view of the database, and changes to it. It decides nothing about them.

It speaks JSON-RPC as RFC 7047 has it, on the agent's own event loop; docs/decisions/0002-ovsdb-client.md says
why not with the `ovs` library.
"""

from __future__ import annotations

import asyncio
import re
import time
from asyncio import Event, Future, StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import NamedTuple, NoReturn, TypeVar

import msgspec
import structlog
from msgspec import Raw, Struct

from windlass.switch.rows import DATABASE, Operation, Select, Updates, View, count, monitored, updated
from windlass.switch.streams import SwitchUnreachableError, open_stream

PROBE_INTERVAL = 5.0  # seconds of silence after which the server is asked for a sign of life; twice that: lost
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts to reconnect: the socket is local and cheap
PATIENCE = 10.0  # seconds in which ovs-vswitchd carries out a change unless it is down or stuck

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class SwitchRefusedError(Exception):
    """The switch was reached and said no: the same again will not help. The text says what it refused and why."""


class Change(NamedTuple):
    before: View
    after: View


@asynccontextmanager
async def open_database(path: str, patience: float = 0.0) -> AsyncIterator[Database]:
    """Connected and with a full view, or SwitchUnreachableError once `patience` seconds are over.

    From then on a lost connection is regained by itself, and `changes` tells of both.
    """
    database = Database(path)
    keeper = asyncio.create_task(database.keep_connected(), name=f"ovsdb {path}")
    deadline = time.monotonic() + patience
    try:
        await database.wait_for(lambda view: view.connections or (view.problem and time.monotonic() >= deadline))
        if not database.view.connections:
            raise SwitchUnreachableError(database.view.problem)
        yield database
    finally:
        keeper.cancel()
        await asyncio.wait({keeper})
        if not keeper.cancelled():
            keeper.result()  # it only ends by itself through a mistake of ours: say so


class Database:
    """What the database holds, and a way to change it. Made by `open_database`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.view = View()
        self._news = Event()  # set, and replaced, whenever there is a new view
        self._changing = asyncio.Lock()
        self._writer: StreamWriter | None = None
        self._pending: dict[int, Future[Raw]] = {}
        self._last_id = 0

    # ---- reading

    async def wait_for(self, predicate: Callable[[View], T | None]) -> T:
        """The predicate's value as soon as it is true of the view."""
        while not (value := predicate(self.view)):
            await self._news.wait()
        return value

    async def changes(self, since: View) -> AsyncIterator[Change]:
        """What is new `since` that view, and from then on. A slow reader gets several changes as one."""
        while True:
            while self.view is since:
                await self._news.wait()
            before, since = since, self.view
            yield Change(before, since)

    # ---- writing

    async def change(self, decide: Callable[[View], Sequence[Operation]]) -> int:
        """Send what `decide` wants done in the light of the view, as one transaction; nothing wanted, nothing sent.

        Nobody else of this process changes the view in between. The number is for `carried_out`.
        """
        async with self._changing:
            operations = decide(self.view)
            if not operations:
                return 0
            outcomes = await self.transact([*operations, count(), Select("Open_vSwitch", [], ["next_cfg"])])
        match outcomes:
            case [*_, Outcome(rows=[counted])]:
                return counted.next_cfg
        raise SwitchRefusedError(f"{self.path}: answered a transaction with nonsense: it did not count it")

    async def carried_out(self, number: int) -> None:
        """Return when ovs-vswitchd has done what the change of that number asked for."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.wait_for(lambda view: view.done >= number)
        except TimeoutError:
            raise SwitchUnreachableError(
                self.view.problem
                or f"{self.path}: ovs-vswitchd has not carried out a change within {PATIENCE:g} s; is it running? "
                "The change stands in the database and is made once it is"
            ) from None

    async def transact(self, operations: Sequence[Operation]) -> list[Outcome]:
        """All of the operations or, with SwitchRefusedError, none. The view has them when this returns."""
        reply = await self._call("transact", [DATABASE, *operations])
        try:
            outcomes = msgspec.json.decode(reply, type=list[Outcome | None])
        except msgspec.MsgspecError as error:
            raise SwitchRefusedError(f"{self.path}: answered a transaction with nonsense: {error}") from error
        for number, outcome in enumerate(outcomes):
            if outcome is not None and outcome.error:
                # An error past the last operation is about the transaction as a whole, found when it was committed.
                at = f"{_words(operations[number])}: " if number < len(operations) else ""
                raise SwitchRefusedError(
                    f"{self.path}: the database refused a change, nothing was changed: {at}{outcome.error}"
                    f"{f': {outcome.details}' if outcome.details else ''}"
                )
        return [outcome for outcome in outcomes if outcome is not None]

    # ---- the connection

    async def keep_connected(self) -> NoReturn:
        """Connect, listen until the connection is lost, and again: the one task behind this object."""
        pause = FIRST_PAUSE
        try:
            while True:
                began, connections = time.monotonic(), self.view.connections
                try:
                    await self._connect_and_listen()
                except SwitchUnreachableError as error:
                    if self.view.connections > connections:
                        _log.warning("OVSDB connection lost", problem=str(error))
                    self._lost(str(error))
                # Only a connection that lasted starts the count anew: a server may accept us and break down each time.
                pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
                await asyncio.sleep(pause)
        finally:
            self._lost(f"{self.path}: closed")

    async def _connect_and_listen(self) -> NoReturn:
        reader, writer = await open_stream(self.path)
        self._writer = writer
        try:
            self._send(_Request("monitor_cond", [DATABASE, None, monitored()], "monitor"))
            frames = Frames()
            while True:
                for frame in frames.cut(await self._read(reader)):
                    self._receive(msgspec.json.decode(frame, type=_Message))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SwitchUnreachableError(
                f"{self.path}: does not speak OVSDB ({error}); is it the socket of ovsdb-server?"
            ) from error
        finally:
            self._writer = None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _read(self, reader: StreamReader) -> bytes:
        try:
            try:
                async with asyncio.timeout(PROBE_INTERVAL):
                    data = await reader.read(1 << 18)
            except TimeoutError:
                self._send(_Request("echo", [], "echo"))
                async with asyncio.timeout(PROBE_INTERVAL):
                    data = await reader.read(1 << 18)
        except TimeoutError:
            raise SwitchUnreachableError(
                f"{self.path}: ovsdb-server has been silent for {2 * PROBE_INTERVAL:g} s, also when asked; restart it"
            ) from None
        except OSError as error:
            raise SwitchUnreachableError(f"{self.path}: connection lost ({error})") from error
        if not data:
            raise SwitchUnreachableError(f"{self.path}: ovsdb-server closed the connection; is it running?")
        return data

    def _receive(self, message: _Message) -> None:
        """Strictly in order: an update that follows the first view, or precedes an answer, is applied there."""
        match message:
            case _Message(method="echo"):
                self._send(_Reply(message.params, None, message.id))
            case _Message(method="update2"):
                _, updates = msgspec.json.decode(message.params, type=tuple[None, Updates])
                self._publish(updated(self.view, updates))
            case _Message(id="monitor"):
                if message.error is not None:
                    raise SwitchUnreachableError(
                        f"{self.path}: has not the tables of Open vSwitch that Windlass needs: {message.error}"
                    )
                rows = msgspec.json.decode(message.result, type=Updates)
                self._publish(updated(View(connections=self.view.connections + 1), rows))
                _log.info("OVSDB connected", path=self.path)
            case _Message(id=int(number)) if (waiting := self._pending.pop(number, None)) and not waiting.done():
                if message.error is None:
                    waiting.set_result(message.result)
                else:
                    waiting.set_exception(SwitchRefusedError(f"{self.path}: {message.error}"))

    async def _call(self, method: str, params: list[object]) -> Raw:
        if self._writer is None or self.view.problem:
            raise SwitchUnreachableError(f"{self.view.problem or self.path}; nothing was changed")
        self._last_id += 1
        answer: Future[Raw] = asyncio.get_running_loop().create_future()
        self._pending[self._last_id] = answer
        self._send(_Request(method, params, self._last_id))
        return await answer

    def _send(self, message: _Request | _Reply) -> None:
        if self._writer is not None:
            self._writer.write(msgspec.json.encode(message))  # kilobytes at most: no need to wait for the buffer

    def _publish(self, view: View) -> None:
        self.view = view
        self._news.set()
        self._news = Event()

    def _lost(self, problem: str) -> None:
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(
                    SwitchUnreachableError(f"{problem}; whether the last change was made will show when it is back")
                )
        self._pending.clear()
        # Another attempt with the same outcome is no change, but `open_database` counts on hearing of it.
        self._publish(self.view if problem == self.view.problem else replace(self.view, problem=problem))


class Frames:
    """Cuts a stream into its JSON objects, which follow one another without a mark in between."""

    # Up to and with the next brace outside of strings. Possessive: what has been read over is never read again.
    _TO_BRACE = re.compile(rb'[^"{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"{}]*+)*+[{}]', re.DOTALL)

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._depth = 0

    def cut(self, data: bytes) -> list[bytes]:
        """The objects that are complete with `data`; the rest waits for more. Only an object may begin."""
        self._buffer += data
        frames = []
        start = 0
        while brace := self._TO_BRACE.match(self._buffer, self._scanned):
            self._scanned = brace.end()
            self._depth += 1 if self._buffer[self._scanned - 1] == _OPENING else -1
            if self._depth == 0:
                frames.append(bytes(self._buffer[start : self._scanned]))
                start = self._scanned
        del self._buffer[:start]
        self._scanned -= start
        if self._depth < 1 and self._buffer.strip():
            raise msgspec.DecodeError(f"no JSON object begins with {bytes(self._buffer[:40])!r}")
        return frames


_OPENING = ord("{")


class _Request(Struct, frozen=True):
    method: str
    params: list[object]
    id: int | str


class _Reply(Struct, frozen=True):
    result: Raw
    error: None
    id: int | str | None


class _Message(Struct, frozen=True):
    id: int | str | None = None
    method: str | None = None
    params: Raw = Raw(b"[]")
    result: Raw = Raw(b"null")
    error: object = None


class _Count(Struct, frozen=True):
    next_cfg: int = 0


class Outcome(Struct, frozen=True):
    """Of one operation."""

    error: str | None = None
    details: str | None = None
    rows: list[_Count] = []


def _words(operation: Operation) -> str:
    return f"{type(operation).__name__.lower()} in {operation.table}"
