"""The connection to ovsdb-server: a live view of the database, and transactions. It decides nothing about them.

It speaks JSON-RPC (RFC 7047) on the agent's own event loop; docs/decisions/0002-ovsdb-client.md says why it does not
use the `ovs` library.
"""

from __future__ import annotations

import asyncio
import re
import time
from asyncio import Event, Future, StreamReader, StreamWriter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import NamedTuple, NoReturn, TypeVar

import msgspec
import structlog
from msgspec import Raw, Struct

from windlass.switch.operations import Operation, Select, increment_next_cfg
from windlass.switch.row_updates import Updates, monitored, updated
from windlass.switch.rows import DATABASE, View
from windlass.switch.streams import SwitchUnreachableError, open_stream

PROBE_INTERVAL = 5.0  # seconds of silence before an echo request, and again before the connection is lost
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts to connect; the socket is local, trying is cheap
PATIENCE = 10.0  # seconds in which ovs-vswitchd carries out a change, unless it is stopped or stuck

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class SwitchRefusedError(Exception):
    """The switch refused a request: a retry will not help. The text says what was refused and why."""


class DatabaseChange(NamedTuple):
    before: View
    after: View


@asynccontextmanager
async def open_database(path: str, patience: float = 0.0) -> AsyncIterator[Database]:
    """Connected and with a full view. Raises SwitchUnreachableError after `patience` seconds.

    From then on the connection is restored after a loss; `changes` reports both.
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
            keeper.result()  # it ends by itself only because of a bug: raise that


class Database:
    """A live view of the database, and transactions. Made by `open_database`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.view = View()
        self._new_view = Event()  # set, and replaced, whenever there is a new view
        self._changing = asyncio.Lock()
        self._writer: StreamWriter | None = None
        self._pending: dict[int, Future[Raw]] = {}
        self._last_id = 0

    # ---- reading

    async def wait_for(self, predicate: Callable[[View], T | None]) -> T:
        """Wait until the predicate is true for the view, and return its value."""
        while not (value := predicate(self.view)):
            await self._new_view.wait()
        return value

    async def changes(self, since: View) -> AsyncGenerator[DatabaseChange, None]:
        """Changes since that view. A slow reader gets several changes as one."""
        while True:
            while self.view is since:
                await self._new_view.wait()
            before, since = since, self.view
            yield DatabaseChange(before, since)

    # ---- writing

    async def change(self, decide: Callable[[View], Sequence[Operation]]) -> int:
        """Send the operations that `decide` derives from the view as one transaction; nothing if it returns none.

        No other task of this process changes the database in between. Returns a number for `carried_out`.
        """
        async with self._changing:
            operations = decide(self.view)
            if not operations:
                return 0
            results = await self.transact([*operations, increment_next_cfg(), Select("Open_vSwitch", [], ["next_cfg"])])
        match results:
            case [*_, OperationResult(rows=[counted])]:
                return counted.next_cfg
        raise SwitchRefusedError(f"{self.path}: malformed reply to a transaction: no next_cfg in it")

    async def carried_out(self, number: int) -> None:
        """Wait until ovs-vswitchd has carried out the change with this number."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self.wait_for(lambda view: view.done >= number)
        except TimeoutError:
            raise SwitchUnreachableError(
                self.view.problem
                or f"{self.path}: ovs-vswitchd has not carried out a change within {PATIENCE:g} s; is it running? "
                "It will carry out the change once it runs"
            ) from None

    async def transact(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """All of the operations, or none with SwitchRefusedError. The view includes them when this returns."""
        reply = await self._call("transact", [DATABASE, *operations])
        try:
            results = msgspec.json.decode(reply, type=list[OperationResult | None])
        except msgspec.MsgspecError as error:
            raise SwitchRefusedError(f"{self.path}: malformed reply to a transaction: {error}") from error
        for number, result in enumerate(results):
            if result is not None and result.error:
                # An error after those of the operations is about the commit of the whole transaction.
                at = f"{_describe(operations[number])}: " if number < len(operations) else ""
                raise SwitchRefusedError(
                    f"{self.path}: the database refused a change, nothing was changed: {at}{result.error}"
                    f"{f': {result.details}' if result.details else ''}"
                )
        return [result for result in results if result is not None]

    # ---- the connection

    async def keep_connected(self) -> NoReturn:
        """Connect and receive, again after each loss: the one task behind this object."""
        pause = FIRST_PAUSE
        try:
            while True:
                began, connections = time.monotonic(), self.view.connections
                try:
                    await self._connect_and_receive()
                except SwitchUnreachableError as error:
                    if self.view.connections > connections:
                        _log.warning("OVSDB connection lost", problem=str(error))
                    self._lost(str(error))
                # Reset the pause only after a connection that lasted: a server may crash after each accept.
                pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
                await asyncio.sleep(pause)
        finally:
            self._lost(f"{self.path}: closed")

    async def _connect_and_receive(self) -> NoReturn:
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
                f"{self.path}: ovsdb-server has not answered for {2 * PROBE_INTERVAL:g} s; restart it"
            ) from None
        except OSError as error:
            raise SwitchUnreachableError(f"{self.path}: connection lost ({error})") from error
        if not data:
            raise SwitchUnreachableError(f"{self.path}: ovsdb-server closed the connection; is it running?")
        return data

    def _receive(self, message: _Message) -> None:
        """Messages are handled strictly in order: an update that precedes a reply is in the view when the reply is."""
        match message:
            case _Message(method="echo"):
                self._send(_Reply(message.params, None, message.id))
            case _Message(method="update2"):
                _, updates = msgspec.json.decode(message.params, type=tuple[None, Updates])
                self._publish(updated(self.view, updates))
            case _Message(id="monitor"):
                if message.error is not None:
                    raise SwitchUnreachableError(
                        f"{self.path}: lacks tables of Open vSwitch that Windlass needs: {message.error}"
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
        self._new_view.set()
        self._new_view = Event()

    def _lost(self, problem: str) -> None:
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(
                    SwitchUnreachableError(
                        f"{problem}; whether the last change was committed is unknown until the connection is back"
                    )
                )
        self._pending.clear()
        # Publish also an unchanged view: `open_database` waits for each failed attempt.
        self._publish(self.view if problem == self.view.problem else replace(self.view, problem=problem))


class Frames:
    """Splits a stream into its JSON objects, which have no separator."""

    # Up to and including the next brace outside of strings. Possessive: no backtracking.
    _TO_BRACE = re.compile(rb'[^"{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"{}]*+)*+[{}]', re.DOTALL)

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._depth = 0

    def cut(self, data: bytes) -> list[bytes]:
        """The objects that are complete with `data`; the rest is kept. DecodeError if anything but an object begins."""
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
            raise msgspec.DecodeError(f"not the start of a JSON object: {bytes(self._buffer[:40])!r}")
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


class _SelectedRow(Struct, frozen=True):
    next_cfg: int = 0


class OperationResult(Struct, frozen=True):
    error: str | None = None
    details: str | None = None
    rows: list[_SelectedRow] = []


def _describe(operation: Operation) -> str:
    return f"{type(operation).__name__.lower()} in {operation.table}"
