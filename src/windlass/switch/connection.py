"""One OpenFlow 1.5 connection to a bridge: requests and their answers, events, and a peer that may die.

It carries messages and says what became of each. What to send is decided elsewhere (`changes`, `programs`), how it
looks on the wire is `openflow.wire`, and to connect again after a loss is the caller's.
"""

from __future__ import annotations

import asyncio
import struct
from asyncio import Future, Queue, StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import chain
from typing import Generic, TypeAlias, TypeVar

from msgspec import Struct

from windlass.openflow.actions import Actions
from windlass.openflow.wire import bundles, forwards, monitors, packets, ports
from windlass.openflow.wire import messages as wire
from windlass.openflow.wire.errors import OpenFlowError, parse_error
from windlass.openflow.wire.messages import HEADER_SIZE, Header, MalformedMessage, Multipart, Type
from windlass.openflow.wire.monitors import FlowUpdate
from windlass.openflow.wire.packets import PacketIn
from windlass.openflow.wire.ports import PortStatus
from windlass.switch.packet_limits import PACKETS_PER_SECOND, PacketLimit
from windlass.switch.streams import SwitchUnreachableError, open_stream

T = TypeVar("T")

PROBE_INTERVAL = 5.0  # seconds of silence before the switch is asked whether it is alive, and again before it is lost
GREETING_PATIENCE = 5.0  # seconds for its hello: a local daemon that takes longer is stuck

_READ = 1 << 18  # bytes
_WRITE = 1 << 16  # bytes to encode before they are handed on: the switch works on them while we encode the next
_MOST_EVENTS = 10_000  # that nobody has taken yet; beyond that packets are dropped, which their senders survive
_MONITOR = 1
_OF_ANY_VERSION = (Type.HELLO, Type.ERROR)  # they come before the version is agreed on
_NOBODY = 0  # the xid of messages whose outcome nobody awaits


class ConnectionLostError(ConnectionError):
    """The connection is gone, and with it the answers that were awaited. Connect again."""


class GroupsChanged(Struct, frozen=True, gc=False):
    """Somebody else changed groups or meters of this bridge."""


class Complaint(Struct, frozen=True):
    """The switch refused a message whose outcome nobody awaited, such as a packet."""

    error: OpenFlowError


Event: TypeAlias = FlowUpdate | GroupsChanged | PacketIn | PortStatus | Complaint


class Refused(Struct, Generic[T], frozen=True):
    what: T
    error: OpenFlowError


class Outcome(Struct, Generic[T], frozen=True):
    """What became of things that were sent to the switch."""

    accepted: list[T]
    refused: list[Refused[T]]


@asynccontextmanager
async def connected(
    path: str, probe_interval: float = PROBE_INTERVAL, limit: PacketLimit | None = None
) -> AsyncIterator[Connection]:
    """A connection that has greeted and may be used. SwitchUnreachableError if there is nobody to talk to at `path`.

    Packets beyond the limit are dropped unread.
    """
    reader, writer = await open_stream(path)
    connection = Connection(path, reader, writer, limit or PacketLimit(PACKETS_PER_SECOND))
    tasks = [
        asyncio.create_task(connection.receive(), name=f"openflow {path}"),
        asyncio.create_task(connection.probe(probe_interval), name=f"openflow probe {path}"),
    ]
    try:
        await connection.greet()
        yield connection
    finally:
        connection.lose("it was closed")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(OSError):
            await writer.wait_closed()


class Connection:
    """Made by `connected`."""

    def __init__(self, path: str, reader: StreamReader, writer: StreamWriter, limit: PacketLimit) -> None:
        self.path = path
        self._limit = limit
        self._reader = reader
        self._writer = writer
        self._last_xid = 0
        self._heard = True  # anything since the last look
        self._loss = ""  # why it is gone; empty while it is there
        self._greeted = asyncio.Event()
        self._answers: dict[int, Future[None]] = {}  # by xid
        self._dumps: dict[int, Queue[Multipart | Exception]] = {}  # by xid
        self._claims: list[Callable[[int, OpenFlowError], bool]] = []  # is an error about something under way?
        self._events: list[Event] = []
        self._something_happened = asyncio.Event()

    # ---- what one can ask for

    async def deliver(self, things: Iterable[T], message: Callable[[T, int], bytes]) -> Outcome[T]:
        """Send the message of each thing, in this order, and wait until the switch has dealt with them all.

        Each stands for itself: one that is refused does not keep the others out.
        """
        with self._delivery(things, message) as delivery:
            await self._ask(wire.barrier_request, after=delivery.messages)
        return delivery.outcome()

    async def commit(self, things: Iterable[T], message: Callable[[T, int], bytes]) -> Outcome[T] | None:
        """The same as one atomic change: no packet meets a part of it. None if the switch refused and did nothing.

        Open vSwitch leaves out what it cannot read and commits the rest; what it can read but not do fails the whole.
        """
        bundle = self._xid()
        with self._delivery(things, message) as delivery:
            opening = (bundles.open_(bundle, bundle),)
            adding = (bundles.add(bundle, message) for message in delivery.messages)
            try:
                await self._ask(lambda xid: bundles.commit(bundle, xid), after=chain(opening, adding))
            except OpenFlowError:
                return None
        return delivery.outcome()

    async def barrier(self) -> None:
        """Returns when the switch has dealt with all that was sent before."""
        await self._ask(wire.barrier_request)

    async def dump(self, request: Callable[[int], bytes]) -> AsyncIterator[bytes]:
        """The parts of the answer to a multipart request, as they come."""
        xid = self._xid()
        parts: Queue[Multipart | Exception] = Queue()
        self._dumps[xid] = parts
        try:
            await self._send((request(xid),))
            while True:
                part = await parts.get()
                if isinstance(part, Exception):
                    raise part
                yield part.body
                if not part.more:
                    return
        finally:
            del self._dumps[xid]

    async def watch_flows(self) -> None:
        """From now on tell in `events` of flows that somebody else changes."""
        await self._drained(lambda xid: monitors.monitor_request(_MONITOR, xid))

    async def unwatch_flows(self) -> None:
        await self._drained(lambda xid: monitors.cancel_request(_MONITOR, xid))

    async def packet_out(self, packet: bytes, in_port: int, does: Actions) -> None:
        """Fire and forget: a refusal is a `Complaint` among the events."""
        await self._send((packets.packet_out(packet, in_port, does, _NOBODY),))

    async def events(self) -> list[Event]:
        """What happened since the last call, at least one thing; waits for it. Raises when the connection is lost.

        Updates of flows that a dump has shown in the meantime are left out.
        """
        while not self._events:
            self._something_happened.clear()
            self._check()
            await self._something_happened.wait()
        happened, self._events = self._events, []
        return happened

    # ---- the life of the connection

    async def greet(self) -> None:
        await self._send((wire.hello(self._xid()),))
        try:
            async with asyncio.timeout(GREETING_PATIENCE):
                await self._greeted.wait()
            self._check()
        except TimeoutError:
            raise SwitchUnreachableError(
                f"{self.path}: somebody listens but does not greet within {GREETING_PATIENCE:.0f} s; "
                "is ovs-vswitchd stuck? Its log says more"
            ) from None
        except ConnectionLostError as error:
            raise SwitchUnreachableError(str(error)) from None
        await self._send(
            (
                wire.ask_for_events(_NOBODY),
                packets.ask_for_userdata(_NOBODY),
                forwards.ask_for_changes(_NOBODY),
            )
        )

    async def receive(self) -> None:
        """Reads until the connection ends. Large chunks, for a dump has many thousand messages."""
        unread = b""
        try:
            while chunk := await self._reader.read(_READ):
                self._heard = True
                unread = self._handle_all(unread + chunk)
        except (ValueError, IndexError, struct.error) as error:  # of a message that does not hold what it should
            self.lose(f"the peer sent what is no OpenFlow 1.5: {error}")
        except OSError as error:
            self.lose(str(error))
        else:
            self.lose("the switch closed it; ovs-vswitchd has stopped, or the bridge was deleted")

    async def probe(self, interval: float) -> None:
        """A peer that says nothing is asked for an echo, and lost if it does not even answer that."""
        while not self._loss:
            self._heard = False
            await asyncio.sleep(interval)
            if self._heard:
                continue
            await self._send((wire.echo_request(_NOBODY),))
            await asyncio.sleep(interval)
            if not self._heard:
                self.lose(f"the switch has not answered for {interval:g} s; ovs-vswitchd is stuck or stopped")

    def lose(self, reason: str) -> None:
        """The end: everybody who waits hears of it, now and later."""
        if self._loss:
            return
        self._loss = f"{self.path}: the connection was lost: {reason}"
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionLostError(self._loss))
        for parts in self._dumps.values():
            parts.put_nowait(ConnectionLostError(self._loss))
        self._something_happened.set()
        self._greeted.set()
        self._writer.close()

    # ---- details

    def _xid(self) -> int:
        self._last_xid = self._last_xid % 0xFFFF_FFFF + 1  # never _NOBODY
        return self._last_xid

    def _check(self) -> None:
        if self._loss:
            raise ConnectionLostError(self._loss)

    async def _send(self, messages: Iterable[bytes]) -> None:
        """At the pace of the switch: what it has not taken in yet does not pile up here."""
        chunk: list[bytes] = []
        size = 0
        for message in messages:
            chunk.append(message)
            size += len(message)
            if size >= _WRITE:
                await self._write(b"".join(chunk))
                chunk.clear()
                size = 0
                await asyncio.sleep(0)  # a long list is no reason to keep others waiting
        await self._write(b"".join(chunk))

    async def _write(self, data: bytes) -> None:
        self._check()
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError as error:
            self.lose(str(error))
            self._check()

    async def _ask(self, request: Callable[[int], bytes], after: Iterable[bytes] = ()) -> None:
        """Returns with the answer. The messages before it go along: what is little is written, and read, at once."""
        xid = self._xid()
        answer: Future[None] = asyncio.get_running_loop().create_future()
        self._answers[xid] = answer
        try:
            await self._send(chain(after, (request(xid),)))
            await answer
        finally:
            del self._answers[xid]
            if answer.done() and not answer.cancelled():
                answer.exception()  # or asyncio would complain of one that nobody took, when sending failed, too

    async def _drained(self, request: Callable[[int], bytes]) -> None:
        async for _ in self.dump(request):
            pass

    @contextmanager
    def _delivery(self, things: Iterable[T], message: Callable[[T, int], bytes]) -> Iterator[_Delivery[T]]:
        delivery = _Delivery(things, message, self._xid)
        self._claims.append(delivery.claim)
        try:
            yield delivery
        finally:
            self._claims.remove(delivery.claim)

    def _handle_all(self, data: bytes) -> bytes:
        """Handles every whole message, and returns the beginning of the one that is not whole yet."""
        offset, end = 0, len(data)
        while end - offset >= HEADER_SIZE:
            header = wire.parse_header(data, offset)
            following = offset + header.length
            if header.version != wire.VERSION and header.type not in _OF_ANY_VERSION:
                raise MalformedMessage(f"a message of version {header.version}")
            if following > end:
                break
            self._handle(header, data[offset + HEADER_SIZE : following])
            offset = following
        return data[offset:]

    def _handle(self, header: Header, body: bytes) -> None:
        xid = header.xid
        match header.type:
            case Type.MULTIPART_REPLY:
                self._handle_multipart(xid, wire.parse_multipart(body))
            case Type.BARRIER_REPLY | Type.BUNDLE_CONTROL:
                answer = self._answers.get(xid)
                if answer is not None and not answer.done():
                    answer.set_result(None)
            case Type.ERROR:
                self._handle_error(xid, parse_error(body))
            case Type.EXPERIMENTER:
                if packets.is_packet_in(body) and self._limit.admits() and len(self._events) < _MOST_EVENTS:
                    self._tell(packets.parse_packet_in(body))
            case Type.PORT_STATUS:
                self._tell(ports.parse_status(body))
            case forwards.REQUEST_FORWARD:
                self._tell(GroupsChanged())
            case Type.ECHO_REQUEST:
                self._writer.write(wire.echo_reply(xid, body))
            case Type.HELLO:
                self._handle_hello(wire.versions(header, body))

    def _handle_hello(self, versions: frozenset[int]) -> None:
        if wire.VERSION not in versions:
            self.lose(
                "the bridge does not speak OpenFlow 1.5; add it: "
                "ovs-vsctl set bridge NAME protocols=OpenFlow10,OpenFlow13,OpenFlow15"
            )
        else:
            self._greeted.set()

    def _handle_multipart(self, xid: int, part: Multipart) -> None:
        if part.part == wire.Part.FLOW_MONITOR and xid == _NOBODY:
            for update in monitors.updates(part.body):
                if update.flow is not None:
                    self._tell(update)
        elif xid in self._dumps:
            self._dumps[xid].put_nowait(part)
            if part.part == wire.Part.FLOWS and not part.more:
                self._events = [event for event in self._events if not isinstance(event, FlowUpdate)]

    def _handle_error(self, xid: int, error: OpenFlowError) -> None:
        answer = self._answers.get(xid)
        if answer is not None:
            if not answer.done():
                answer.set_exception(error)
        elif xid in self._dumps:
            self._dumps[xid].put_nowait(error)
        elif not any(claim(xid, error) for claim in self._claims):
            self._tell(Complaint(error))

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self._something_happened.set()


class _Delivery(Generic[T]):
    """Things under way. Their xids tell which of them an error is about."""

    def __init__(self, things: Iterable[T], message: Callable[[T, int], bytes], xid: Callable[[], int]) -> None:
        self.messages = self._numbered(things, message, xid)
        self._sent: dict[int, T] = {}
        self._errors: dict[int, OpenFlowError] = {}

    def _numbered(
        self, things: Iterable[T], message: Callable[[T, int], bytes], next_xid: Callable[[], int]
    ) -> Iterator[bytes]:
        for thing in things:
            xid = next_xid()
            self._sent[xid] = thing
            yield message(thing, xid)

    def claim(self, xid: int, error: OpenFlowError) -> bool:
        if xid not in self._sent:
            return False
        self._errors.setdefault(xid, error)
        return True

    def outcome(self) -> Outcome[T]:
        errors = self._errors
        return Outcome(
            [thing for xid, thing in self._sent.items() if xid not in errors] if errors else list(self._sent.values()),
            [Refused(self._sent[xid], error) for xid, error in errors.items()],
        )
