"""Sends the packets of a probe: parallel connections, a held connection, or a rate of new ones."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address

from windlass.lab.probing import dialers
from windlass.lab.probing.arrivals import Arrivals
from windlass.lab.probing.dialers import Conversation, SocketAddress
from windlass.lab.probing.pauses import BEAT, Pauses
from windlass.lab.probing.stolen_time import StolenTime
from windlass.lab.probing.verdicts import Attempt, Observation
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.objects import ProbeOutcome, ProbeProtocol

AT_ONCE = 48  # connections that may be starting: more would delay each other on a small machine
START = 0.25  # seconds that a connection counts as starting; after that it only waits for an answer
BULK = 64 * 1024  # bytes from which a connection is a bulk transfer that keeps the machine busy
TRANSFERS_AT_ONCE = 4
SECONDS_TO_ANSWER = seconds(1.0)  # the time limit for each connection of a rate


@dataclass(frozen=True, slots=True)
class ProbeTraffic:
    """What to send from where to where, with all names resolved."""

    namespace: str
    protocol: ProbeProtocol
    to: SocketAddress
    connections: int = 1
    bytes: int = 0
    source: IPv4Address | IPv6Address | None = None  # spoofed


class Traffic:
    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._starting = asyncio.Semaphore(AT_ONCE)
        self._transferring = asyncio.Semaphore(TRANSFERS_AT_ONCE)
        self._stolen_time = StolenTime()

    async def observe(self, flow: ProbeTraffic) -> Observation:
        """Opens all connections of the probe in parallel."""
        attempts = await asyncio.gather(*(self._attempt(flow) for _ in range(flow.connections)))
        return Observation(tuple(attempts))

    async def hold(self, flow: ProbeTraffic) -> HeldConnection:
        """Opens a connection that is used until `HeldConnection.end`."""
        try:
            conversation = await dialers.dial(flow.namespace, flow.protocol, flow.to, self._arrivals)
        except (OSError, dialers.NoRouteError) as error:
            return HeldConnection(None, _failed(error), self._stolen_time)
        return HeldConnection(conversation, _connected(conversation), self._stolen_time)

    def rate(self, flow: ProbeTraffic, per_second: int) -> ConnectionRate:
        return ConnectionRate(flow, per_second, self._arrivals)

    async def _attempt(self, flow: ProbeTraffic) -> Attempt:
        if flow.source is not None:
            async with self._start_slot():
                return await self._forge(flow, flow.source)
        if flow.bytes < BULK:
            async with self._start_slot():
                return await attempt(flow, self._arrivals)
        async with self._transferring:
            return await attempt(flow, self._arrivals)

    async def _forge(self, flow: ProbeTraffic, source: IPv4Address | IPv6Address) -> Attempt:
        try:
            arrival = await dialers.forge(flow.namespace, flow.protocol, flow.to, source, self._arrivals)
        except (OSError, dialers.NoRouteError) as error:
            return _failed(error)
        return Attempt(ProbeOutcome.CONNECTED, arrival.backend, arrival.client, str(source))

    @asynccontextmanager
    async def _start_slot(self) -> AsyncIterator[None]:
        """Limits the number of connections that are starting. The slot is free again after START seconds."""
        await self._starting.acquire()
        waiting = [self._starting]
        later = asyncio.get_running_loop().call_later(START, lambda: waiting.pop().release())
        try:
            yield
        finally:
            later.cancel()
            if waiting:
                waiting.pop().release()


async def attempt(flow: ProbeTraffic, arrivals: Arrivals) -> Attempt:
    """One connection: opens it, transfers the bytes of the probe, closes it."""
    try:
        conversation = await dialers.dial(flow.namespace, flow.protocol, flow.to, arrivals)
    except (OSError, dialers.NoRouteError) as error:
        return _failed(error)
    try:
        made = _connected(conversation)
        payload = os.urandom(flow.bytes)
        if payload and await conversation.echo(payload) != payload:
            return replace(made, fault=f"{flow.bytes} bytes were sent, but other bytes came back")
    except OSError as error:
        return replace(_failed(error), backend=made.backend, client=made.client)
    else:
        return made
    finally:
        conversation.close()


class HeldConnection:
    """One connection that is used every 20 ms. Measures the longest gap, without time when this machine did not run."""

    def __init__(self, conversation: Conversation | None, opening: Attempt, stolen_time: StolenTime) -> None:
        self._opening = opening
        self._conversation = conversation
        self._stolen_time = stolen_time
        self._longest = 0.0
        self._broken = ""
        self._pauses = Pauses()
        self._last = asyncio.get_running_loop().time()
        self._paused, self._stolen = self._pauses.until_now(), stolen_time.until(self._last)  # up to the last answer
        jobs = (self._use(conversation), self._listen(conversation)) if conversation else ()
        self._tasks = [asyncio.ensure_future(job) for job in jobs]

    async def end(self) -> Observation:
        """Ends it; the time since the last answer counts as a gap, too."""
        self._heard()
        await _cancelled(self._tasks)
        await self._pauses.end()
        if not self._conversation:
            return Observation((self._opening,))
        self._conversation.close()
        return Observation((self._opening,), max_gap=self._longest, broken=self._broken)

    async def _use(self, conversation: Conversation) -> None:
        try:
            while not self._broken:
                await conversation.send(b"beat")
                await asyncio.sleep(BEAT)
        except OSError as error:
            self._broken = self._broken or _words(error)

    async def _listen(self, conversation: Conversation) -> None:
        try:
            while True:
                await conversation.receive()
                self._heard()
        except OSError as error:
            self._broken = self._broken or _words(error)

    def _heard(self) -> None:
        now = asyncio.get_running_loop().time()
        paused, stolen = self._pauses.until_now(), self._stolen_time.until(now)
        excused = max(paused - self._paused, stolen - self._stolen)  # they may overlap, so only the longer one counts
        self._longest = max(self._longest, now - self._last - excused)
        self._last, self._paused, self._stolen = now, paused, stolen


class ConnectionRate:
    """Opens new connections at a fixed rate. Pauses of this process do not count as time to answer."""

    def __init__(self, flow: ProbeTraffic, per_second: int, arrivals: Arrivals) -> None:
        self._flow = flow
        self._interval = seconds(1 / per_second)  # a slow machine also opens fewer
        self._arrivals = arrivals
        self._attempts: list[Attempt] = []
        self._pauses = Pauses()
        self._under_way: set[asyncio.Task[None]] = set()
        self._starting = asyncio.ensure_future(self._start())

    async def end(self) -> Observation:
        """Opens no more connections, and waits for the pending ones up to their time limit."""
        await _cancelled([self._starting])
        await asyncio.gather(*self._under_way)
        await self._pauses.end()
        failures = sum(attempt.outcome is not ProbeOutcome.CONNECTED for attempt in self._attempts)
        return Observation(tuple(self._attempts), failures=failures)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            task = asyncio.ensure_future(self._one())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            due += self._interval
            await asyncio.sleep(due - loop.time())

    async def _one(self) -> None:
        connecting = asyncio.ensure_future(attempt(self._flow, self._arrivals))
        left, paused = SECONDS_TO_ANSWER, self._pauses.until_now()
        while left > BEAT and not connecting.done():
            await asyncio.wait([connecting], timeout=left)
            before, paused = paused, self._pauses.until_now()
            left = paused - before
        if connecting.done():
            self._attempts.append(connecting.result())
        else:
            await _cancelled([connecting])
            self._attempts.append(_failed(TimeoutError()))


async def _cancelled(tasks: Iterable[asyncio.Future[None] | asyncio.Future[Attempt]]) -> None:
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def _connected(conversation: Conversation) -> Attempt:
    return Attempt(ProbeOutcome.CONNECTED, conversation.seen.backend, conversation.seen.client, conversation.local)


def _failed(error: Exception) -> Attempt:
    outcome = dialers.outcome_of(error)
    return Attempt(outcome) if outcome else Attempt(ProbeOutcome.TIMEOUT, fault=_words(error))


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
