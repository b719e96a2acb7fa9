"""One OpenFlow 1.5 connection to a bridge: requests and their replies, and events.

It carries messages and reports the result of each. What to send is decided elsewhere (`ownership`, `changes`),
`openflow.wire` encodes it, and the caller reconnects after a loss.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Future, Queue
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import chain, repeat
from typing import TypeVar

from windlass.openflow.actions import Actions
from windlass.openflow.wire import bundles, monitors, packets
from windlass.openflow.wire import messages as wire
from windlass.openflow.wire.errors import OpenFlowError, parse_error
from windlass.openflow.wire.messages import Header, Multipart, Type
from windlass.switch.deliveries import Delivery, DeliveryResult
from windlass.switch.message_streams import NO_REPLY, ConnectionLostError, MessageStream
from windlass.switch.streams import SwitchUnreachableError, attach
from windlass.switch.switch_events import EventQueue, GroupsChanged, SwitchEvent, UnclaimedError

T = TypeVar("T")

PROBE_INTERVAL = 5.0  # seconds of silence before the switch is sent an echo request, and again before it is lost
PACKETS_PER_SECOND = 500  # enough for well-behaved clients of Services without endpoints, and little work
HELLO_TIMEOUT = 5.0  # seconds: a local daemon that takes longer is stuck

_MONITOR = 1


@asynccontextmanager
async def connected(
    path: str, probe_interval: float = PROBE_INTERVAL, limit: PacketLimit | None = None
) -> AsyncIterator[OpenFlowConnection]:
    """A connection that is ready for use. SwitchUnreachableError if no switch answers at `path`.

    Packets beyond the limit are dropped unread.
    """
    connection = OpenFlowConnection(path, limit or PacketLimit(PACKETS_PER_SECOND))
    stream = connection.stream
    await attach(path, stream)
    probing = asyncio.create_task(stream.probe(probe_interval), name=f"openflow probe {path}")
    try:
        await connection.greet()
        yield connection
    finally:
        stream.lose("it was closed")
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        await stream.closed()


class PacketLimit:
    """Limits the packets that the agent accepts from the switch: a token bucket with the tokens of one second."""

    def __init__(self, per_second: float) -> None:
        self.refused = 0  # packets beyond the limit
        self._per_second = per_second
        self._left = per_second
        self._at = time.monotonic()

    def admits(self) -> bool:
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * self._per_second, self._per_second)
        self._at = now
        if self._left < 1:
            self.refused += 1
            return False
        self._left -= 1
        return True


class OpenFlowConnection:
    """Made by `connected`."""

    def __init__(self, path: str, limit: PacketLimit) -> None:
        self.stream = MessageStream(path, self._handle, self._fail)
        self._limit = limit
        self._xid = partial(next, chain.from_iterable(repeat(range(NO_REPLY + 1, 1 << 32))))  # starts again at its end
        self._greeted = asyncio.Event()
        self._replies: dict[int, Future[None]] = {}  # by xid
        self._dumps: dict[int, Queue[Multipart | Exception]] = {}  # by xid
        self._claims: list[Callable[[int, OpenFlowError], bool]] = []  # the claims of the deliveries in progress
        self._events = EventQueue()

    # ---- requests

    async def deliver(self, items: Iterable[T], message: Callable[[T, int], bytes]) -> DeliveryResult[T]:
        """Send the message of each item, in this order, and wait until the switch has processed all of them.

        The items are independent: one that is refused does not affect the others.
        """
        with self._delivery(items, message) as delivery:
            await self._request(wire.barrier_request, after=delivery.messages)
        return delivery.result()

    async def commit(self, items: Iterable[T], message: Callable[[T, int], bytes]) -> DeliveryResult[T] | None:
        """The same as one atomic change: packets meet all of it or none. None if the switch refused it as a whole.

        Open vSwitch leaves out messages that it cannot parse and commits the rest; a message that it can parse but not
        carry out fails the whole bundle.
        """
        bundle = self._xid()
        with self._delivery(items, message) as delivery:
            opening = (bundles.open_(bundle, bundle),)
            adding = (bundles.add(bundle, message) for message in delivery.messages)
            try:
                await self._request(lambda xid: bundles.commit(bundle, xid), after=chain(opening, adding))
            except OpenFlowError:
                return None
        return delivery.result()

    async def dump(self, request: Callable[[int], bytes]) -> AsyncIterator[bytes]:
        """The parts of the reply to a multipart request, as they arrive."""
        xid = self._xid()
        parts: Queue[Multipart | Exception] = Queue()
        self._dumps[xid] = parts
        try:
            await self.stream.send((request(xid),))
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
        """From now on `events` has the changes that other clients make to flows."""
        async for _ in self.dump(lambda xid: monitors.monitor_request(_MONITOR, xid)):
            pass

    async def unwatch_flows(self) -> None:
        async for _ in self.dump(lambda xid: monitors.cancel_request(_MONITOR, xid)):
            pass

    async def packet_out(self, packet: bytes, in_port: int, actions: Actions) -> None:
        """Does not wait for the result: a refusal is an `UnclaimedError` among the events."""
        await self.stream.send((packets.packet_out(packet, in_port, actions, NO_REPLY),))

    async def events(self) -> list[SwitchEvent]:
        """All events since the last call; waits for at least one. Raises when the connection is lost.

        Updates of flows that a dump has shown in the meantime are left out.
        """
        return await self._events.take()

    async def greet(self) -> None:
        """Agree on the version of the protocol, and subscribe to events."""
        await self.stream.send((wire.hello(self._xid()),))
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                await self._greeted.wait()
            self.stream.check()
        except TimeoutError:
            raise SwitchUnreachableError(
                f"{self.stream.path}: the peer sent no OpenFlow hello within {HELLO_TIMEOUT:.0f} s; "
                "is ovs-vswitchd stuck? See its log"
            ) from None
        except ConnectionLostError as error:
            raise SwitchUnreachableError(str(error)) from None
        await self.stream.send(
            (wire.ask_for_events(NO_REPLY), packets.ask_for_userdata(NO_REPLY), wire.ask_for_forwards(NO_REPLY))
        )

    async def _request(self, request: Callable[[int], bytes], after: Iterable[bytes] = ()) -> None:
        """Returns with the reply. The messages before it are sent along: a short list is one write, and one read."""
        xid = self._xid()
        reply: Future[None] = asyncio.get_running_loop().create_future()
        self._replies[xid] = reply
        try:
            await self.stream.send(chain(after, (request(xid),)))
            await reply
        finally:
            del self._replies[xid]
            if reply.done() and not reply.cancelled():
                reply.exception()  # mark it as retrieved: asyncio would log it if `send` failed, too

    @contextmanager
    def _delivery(self, items: Iterable[T], message: Callable[[T, int], bytes]) -> Iterator[Delivery[T]]:
        delivery = Delivery(items, message, self._xid)
        self._claims.append(delivery.claim)
        try:
            yield delivery
        finally:
            self._claims.remove(delivery.claim)

    # ---- messages from the switch

    def _handle(self, header: Header, body: bytes) -> None:
        xid = header.xid
        match header.type:
            case Type.MULTIPART_REPLY:
                self._handle_multipart(xid, wire.parse_multipart(body))
            case Type.BARRIER_REPLY | Type.BUNDLE_CONTROL:
                reply = self._replies.get(xid)
                if reply is not None and not reply.done():
                    reply.set_result(None)
            case Type.ERROR:
                self._handle_error(xid, parse_error(body))
            case Type.EXPERIMENTER:
                if packets.is_packet_in(body) and self._limit.admits() and not self._events.is_full:
                    self._events.put(packets.parse_packet_in(body))
            case Type.REQUEST_FORWARD:
                self._events.put(GroupsChanged())
            case Type.ECHO_REQUEST:
                self.stream.send_now(wire.echo_reply(xid, body))
            case Type.HELLO:
                self._handle_hello(wire.versions(header, body))

    def _handle_hello(self, versions: frozenset[int]) -> None:
        if wire.VERSION not in versions:
            self.stream.lose(
                "the bridge does not speak OpenFlow 1.5; add it: "
                "ovs-vsctl set bridge NAME protocols=OpenFlow10,OpenFlow13,OpenFlow15"
            )
        else:
            self._greeted.set()

    def _handle_multipart(self, xid: int, part: Multipart) -> None:
        if part.part == wire.MultipartType.FLOW_MONITOR and xid == NO_REPLY:
            for update in monitors.updates(part.body):
                self._events.put(update)
        elif xid in self._dumps:
            self._dumps[xid].put_nowait(part)
            if part.part == wire.MultipartType.FLOWS and not part.more:
                self._events.drop_flow_updates()

    def _handle_error(self, xid: int, error: OpenFlowError) -> None:
        reply = self._replies.get(xid)
        if reply is not None:
            if not reply.done():
                reply.set_exception(error)
        elif xid in self._dumps:
            self._dumps[xid].put_nowait(error)
        elif not any(claim(xid, error) for claim in self._claims):
            self._events.put(UnclaimedError(error))

    def _fail(self, loss: str) -> None:
        """The connection is lost: everything that waits for it fails."""
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(ConnectionLostError(loss))
        for parts in self._dumps.values():
            parts.put_nowait(ConnectionLostError(loss))
        self._events.fail(loss)
        self._greeted.set()
