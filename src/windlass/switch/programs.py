"""Keeps one bridge equal to a Program: connects, syncs, sends changes, repairs what other clients change.

`ownership` decides the steps; `retirement` deletes and rotates groups later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

import structlog

from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import groups as group_wire
from windlass.openflow.wire.errors import OpenFlowError
from windlass.openflow.wire.flows import EncodedFlow, Key
from windlass.openflow.wire.messages import MalformedMessage
from windlass.openflow.wire.monitors import FlowUpdate
from windlass.openflow.wire.packets import PacketIn
from windlass.program import Program
from windlass.switch.changes import EntryIdentity, SwitchContents, SwitchStep, message
from windlass.switch.connection import PACKETS_PER_SECOND, OpenFlowConnection, PacketLimit, connected
from windlass.switch.deliveries import DeliveryResult
from windlass.switch.learned import group_of, is_learned
from windlass.switch.message_streams import ConnectionLostError
from windlass.switch.meters import InstalledMeters
from windlass.switch.ownership import FlowOwnership, InstallFailure
from windlass.switch.requests import SwitchRequests
from windlass.switch.retirement import GroupRetirement
from windlass.switch.switch_events import GroupsChanged, UnclaimedError

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts to connect; the socket is local, trying is cheap

# While flows are monitored the switch reports each of our own messages too, which makes a sync a third slower. If the
# flows of more owners than this are missing, the monitor is off during the sync, and an audit follows.
_BULK = 1000

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Counters:
    """For the metrics; they only grow."""

    syncs: int = 0
    changes_sent: int = 0  # messages that add, modify or delete a flow or a group
    drift_healed: int = 0  # flows and groups that another client had changed


class InstalledProgram:
    """A Program in a switch. `keep` must be running for anything to happen."""

    def __init__(
        self,
        path: str,
        program: Program,
        on_packet: Callable[[PacketIn], None] = lambda _: None,
        on_loss: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`path` is the bridge's management socket. The Program replaces whatever the bridge holds."""
        self.path = path
        self.counters = Counters()
        self.requests = SwitchRequests()
        self.trouble = "not connected yet"  # why there is no connection; empty while there is one
        self._on_packet = on_packet
        self._on_loss = on_loss
        self._ownership = FlowOwnership(program)
        self._retirement = GroupRetirement(self._ownership, self._send_later)
        self._synced = asyncio.Event()
        self._lock = asyncio.Lock()  # held while a change is under way
        self._meters = InstalledMeters()
        self._limit = PacketLimit(PACKETS_PER_SECOND)

    @property
    def program(self) -> Program:
        return self._ownership.program

    @property
    def flow_count(self) -> int:
        """Flows that the switch holds. To count those of the Program would compute all of them."""
        return len(self._ownership.installed.flows)

    @property
    def problems(self) -> Sequence[InstallFailure]:
        return tuple(self._ownership.failures.values())

    async def synced(self) -> None:
        """Returns when the switch holds the Program, except for what `problems` names."""
        await self._synced.wait()

    async def settled(self) -> None:
        """Returns when groups to which no flow leads have been deleted, too."""
        await self._retirement.settled()

    async def apply(self, parts: Program) -> None:
        """Replace the parts of these owners, by NOTHING for an owner that is gone. Returns when the switch has them.

        The work grows with these parts, not with the Program. All of them become visible to packets at once. While
        the switch is away this waits for it.
        """
        async with self._lock:
            steps = self._ownership.adopt(parts)
            connection = self.requests.connection
            if connection is not None:
                try:
                    if any(part.meters for part in parts.values()):
                        await self._meters.install(connection, self.program)
                    await self._send(connection, self._retirement.postpone(steps))
                except ConnectionLostError as error:
                    if connection is self.requests.connection:  # `keep` has not noticed it yet
                        self._lost(str(error))
        await self._synced.wait()

    async def audit(self) -> int:
        """Compare all that the switch holds with what it should hold, and repair it. Returns how much differed.

        Changes continue in the meantime. While the switch is down there is nothing to do: a sync will follow.
        """
        if self.requests.connection is None:
            return 0
        try:
            return await self._audit(self.requests.connection)
        except ConnectionLostError:
            return 0

    async def packets_suppressed(self) -> Counter[int]:
        """How many packets to the agent were dropped since it started, by meter of the switch; 0: by the agent."""
        if self.requests.connection is not None:
            with suppress(ConnectionLostError, OpenFlowError):
                await self._meters.count(self.requests.connection)
        return self._meters.dropped + Counter({0: self._limit.refused})

    async def keep(self) -> NoReturn:
        """Connect, sync and repair; after a loss of the connection, start over."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with connected(self.path, limit=self._limit) as connection:
                    await self._sync(connection)
                    pause = FIRST_PAUSE
                    while True:
                        await self._handle_events(connection)
            except (ConnectionError, OpenFlowError, MalformedMessage) as error:
                if str(error) != self.trouble:
                    _log.warning("the switch is unavailable", reason=str(error))
                self._lost(str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _lost(self, reason: str) -> None:
        was_synced = self._synced.is_set()
        self.trouble = reason
        self.requests.connection = None
        self._synced.clear()
        if was_synced:
            self._on_loss(reason)

    async def _sync(self, connection: OpenFlowConnection) -> None:
        async with self._lock:
            await _watch(connection)  # before the dump, so that no change falls in between
            to_resend = await self._meters.install(connection, self.program)
            held = await _dump(connection, without=to_resend)
            # Each owner requests at least one flow. The exact number is known only once all are encoded.
            is_bulk = len(self.program) - len(held.flows) > _BULK
            if is_bulk:
                with suppress(OpenFlowError):  # `_watch` has reported it if there are no monitors
                    await connection.unwatch_flows()
            steps = self._retirement.postpone(self._ownership.restart(held))
            before = self.counters.changes_sent
            if held.flows:  # packets may be passing: in half of a change of policies, denied ones would pass
                await self._send(connection, steps)
            else:  # the switch works while the rest is encoded, and the order is safe
                self._record(await connection.deliver(steps, message))
            self.counters.syncs += 1
            self.trouble = ""
            self.requests.connection = connection
            self._synced.set()
        _log.info("the switch is in sync", flows=self.flow_count, sent=self.counters.changes_sent - before)
        if is_bulk:
            await _watch(connection)
            await self._audit(connection)

    async def _audit(self, connection: OpenFlowConnection) -> int:
        async with self._lock:
            to_resend = await self._meters.install(connection, self.program)
        before = self._ownership.installed.copy()
        found = await _dump(connection, without=to_resend)
        async with self._lock:
            if connection is not self.requests.connection:
                return 0  # lost, and maybe regained by a sync that has compared everything
            healed = await self._heal(connection, self._ownership.drift(before, found), found)
            await self._send(connection, self._retirement.postpone(self._ownership.retry()))
        return healed

    async def _handle_events(self, connection: OpenFlowConnection) -> None:
        """Wait for events, and repair what other clients have changed."""
        changed: dict[Key, EncodedFlow | None] = {}
        groups_changed = False
        for event in await connection.events():
            match event:
                case FlowUpdate(flow) if is_learned(flow):  # not changed by another client
                    if event.timed_out:
                        self._retirement.rotate(group_of(flow))
                case FlowUpdate(flow):
                    changed[flow.key] = None if event.removed else flow
                case GroupsChanged():
                    groups_changed = True
                case PacketIn():
                    self._on_packet(event)
                case UnclaimedError(error):
                    _log.warning("the switch refused a message", reason=str(error))
        if groups_changed:
            await self._audit(connection)  # flows depend on groups, so compare everything
        elif changed:
            found = SwitchContents({key: flow for key, flow in changed.items() if flow is not None})
            async with self._lock:
                failures_before = len(self._ownership.failures)
                await self._heal(connection, changed.keys(), found)
            if len(self._ownership.failures) > failures_before:
                # More than flows is gone: a change of the bridge's fail mode deletes groups without an event.
                await self._audit(connection)

    async def _heal(
        self, connection: OpenFlowConnection, identities: Collection[EntryIdentity], found: SwitchContents
    ) -> int:
        steps = self._ownership.restore(identities, found)
        if not steps:
            return 0
        with _lost_if_cancelled(connection):
            result = await connection.deliver(steps, message)
        self._record(result)
        self.counters.drift_healed += len(result.accepted)
        _log.warning("restored flows and groups that another client had changed", restored=len(result.accepted))
        return len(result.accepted)

    async def _send_later(self, decide: Callable[[], Sequence[SwitchStep]]) -> None:
        """For `GroupRetirement`. While the switch is away there is nothing to do: a sync will follow."""
        async with self._lock:
            if self.requests.connection is not None:
                with suppress(ConnectionLostError):
                    await self._send(self.requests.connection, decide())

    async def _send(self, connection: OpenFlowConnection, steps: Iterable[SwitchStep]) -> None:
        steps = list(steps)
        if not steps:
            return
        result = None
        with _lost_if_cancelled(connection):
            if len(steps) > 1:  # a single message is atomic without a bundle, and quicker
                result = await connection.commit(steps, message)
            # If the switch refuses the bundle as a whole, send each step by itself: most are accepted.
            result = result or await connection.deliver(steps, message)
        self._record(result)

    def _record(self, result: DeliveryResult[SwitchStep]) -> None:
        self.counters.changes_sent += len(result.accepted) + len(result.refused)
        for refusal in self._ownership.record(result):
            _log.error("the switch refused a flow or group", refusal=refusal)


@contextmanager
def _lost_if_cancelled(connection: OpenFlowConnection) -> Iterator[None]:
    """If steps are cancelled half-way, it is unknown what the switch holds: reconnect, and read it again."""
    try:
        yield
    except asyncio.CancelledError:
        connection.stream.lose("a change was cancelled half-way")
        raise


async def _watch(connection: OpenFlowConnection) -> None:
    try:
        await connection.watch_flows()
    except OpenFlowError as error:
        _log.warning("the switch has no flow monitors: only audits find changes by other clients", reason=str(error))


async def _dump(connection: OpenFlowConnection, without: Collection[Key]) -> SwitchContents:
    """What the switch holds. Flows come last: the group of a flow in the dump is in the dump or in an event."""
    held = SwitchContents()
    async for body in connection.dump(group_wire.dump_request):
        held.groups.update((group.identity, group) for group in group_wire.dumped(body))
    async for body in connection.dump(flow_wire.dump_request):
        held.flows.update((flow.key, flow) for flow in flow_wire.dumped(body) if not is_learned(flow))
    for key in without:
        held.flows.pop(key, None)
    return held
