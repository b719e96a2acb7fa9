"""Keeps one bridge as a Program says: sync, changes, healing of what others did, and a sync again after a loss.

It decides nothing about flows: what should be there is the Program's, what to send for it is `changes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

import structlog

from windlass.openflow import ofctl
from windlass.openflow.actions import Actions
from windlass.openflow.flows import Flow, Group
from windlass.openflow.wire import ct_flush
from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import groups as group_wire
from windlass.openflow.wire.ct_flush import Flush
from windlass.openflow.wire.errors import OpenFlowError
from windlass.openflow.wire.flows import EncodedFlow, Key
from windlass.openflow.wire.groups import EncodedGroup, GroupTooLargeError
from windlass.openflow.wire.messages import MalformedMessage
from windlass.openflow.wire.monitors import Event as FlowEvent
from windlass.openflow.wire.monitors import FlowUpdate
from windlass.openflow.wire.packets import PacketIn
from windlass.openflow.wire.ports import PortStatus
from windlass.program import NOTHING, AnyPart, Owner, Program
from windlass.switch.changes import (
    DeleteFlow,
    DeleteGroup,
    Holding,
    Identity,
    ModifyGroup,
    Step,
    diff,
    differing,
    identity_of,
    message,
)
from windlass.switch.connection import (
    Complaint,
    Connection,
    ConnectionLostError,
    GroupsChanged,
    Outcome,
    connected,
)
from windlass.switch.learned import forget_idle, group_of, is_learned
from windlass.switch.meters import HeldMeters
from windlass.switch.packet_counts import PacketCounts
from windlass.switch.packet_limits import PACKETS_PER_SECOND, PacketLimit

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts to connect; the socket is local, trying is cheap

# With a monitor the switch tells of every single message of ours, which makes it a third slower. Where the flows of so
# many owners are missing it is off for the while, and the bridge is looked at once more afterwards.
_BULK = 1000

# Seconds that a group stays when nothing leads to it any more. The datapath sends packets by former flows for a moment
# longer, half a second at most; what it then meets instead of the group would swallow a connection's first packet.
GROUP_STAYS = 5.0

TURN_PAUSE = 1.0  # seconds in which groups are gathered, to be turned together

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Problem:
    """A flow or group that is asked for and not there."""

    owner: Owner
    what: Flow | Group
    reason: str

    def __str__(self) -> str:
        text = ofctl.flow_text(self.what) if isinstance(self.what, Flow) else ofctl.group_text(self.what)
        return f"{self.owner}: not in the switch, the rest is: {text}: {self.reason}"


@dataclass(slots=True)
class Counters:
    """For the metrics; they only grow."""

    syncs: int = 0
    changes_sent: int = 0  # messages that add, change or delete a flow or a group
    drift_healed: int = 0  # flows and groups that somebody else had changed


class InstalledProgram:
    """A Program in a switch. `keep` must be running for anything to happen."""

    def __init__(
        self,
        path: str,
        program: Program,
        on_event: Callable[[PacketIn | PortStatus], None] = lambda _: None,
        on_loss: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`path` is the bridge's management socket. The Program replaces whatever the bridge holds."""
        self.path = path
        self.counters = Counters()
        self.trouble = "not connected yet"  # why there is no connection; empty while there is one
        self._program = dict(program)
        self._on_event = on_event
        self._on_loss = on_loss
        self._askers: dict[Identity, tuple[Owner, ...]] = {}  # who asks for it; the last of them has it his way
        self._asked: dict[Owner, tuple[Identity, ...]] = {}  # what he asks for: to encode it again would take as long
        self._installed = Holding()  # what the switch accepted from us, or said it had
        self._problems: dict[Identity, Problem] = {}
        self._connection: Connection | None = None  # one that has been synced
        self._synced = asyncio.Event()
        self._lock = asyncio.Lock()  # of all of the above while a change is under way
        self._later: set[asyncio.Task[None]] = set()  # each sees to something about groups, in a while
        self._to_turn: set[int] = set()  # groups of which a client was forgotten
        self._meters = HeldMeters()
        self._limit = PacketLimit(PACKETS_PER_SECOND)

    @property
    def program(self) -> Program:
        return self._program

    @property
    def flow_count(self) -> int:
        """Of those that the switch holds. To ask the Program itself would work them all out."""
        return len(self._installed.flows)

    @property
    def problems(self) -> Sequence[Problem]:
        return tuple(self._problems.values())

    async def synced(self) -> None:
        """Returns when the switch holds the Program, but for what `problems` names."""
        await self._synced.wait()

    async def settled(self) -> None:
        """Returns when the groups to which nothing leads any more have gone, too."""
        await asyncio.gather(*self._later)

    async def apply(self, parts: Program) -> None:
        """These owners ask for these parts from now on; for nothing with NOTHING. Returns when the switch has them.

        The work grows with these parts, not with the Program. All of them become visible to packets at once. While
        the switch is away this waits for it.
        """
        async with self._lock:
            steps = self._adopt(parts)
            connection = self._connection
            if connection is not None:
                try:
                    if any(part.meters for part in parts.values()):
                        await self._meters.hold(connection, self._program)
                    await self._carry_out(connection, steps)
                except ConnectionLostError as error:
                    if connection is self._connection:  # `keep` has not heard of it yet
                        self._lost(str(error))
        await self._synced.wait()

    async def audit(self) -> int:
        """Compares all that the switch holds with what it should; sets right what differs and says how much it was.

        Changes go on meanwhile.
        """
        if self._connection is None:
            return 0  # the coming sync looks at everything anyway
        try:
            return await self._audit(self._connection)
        except ConnectionLostError:
            return 0  # likewise

    async def forget_idle(self) -> int:
        """Ends flows that the switch learned for longer than it can time them, and says how many they were."""
        if self._connection is None:
            return 0
        try:
            return await forget_idle(self._connection)
        except ConnectionLostError:
            return 0

    async def packets_suppressed(self) -> int:
        """How many packets to the agent were dropped since it began: by meters of the switch or by the agent."""
        if self._connection is not None:
            with suppress(ConnectionLostError, OpenFlowError):
                await self._meters.count(self._connection)
        return self._meters.dropped + self._limit.refused

    async def count(self, counts: PacketCounts) -> None:
        """Brings the counts up to date; while the switch is away they stay as they are."""
        if self._connection is not None:
            with suppress(ConnectionLostError, OpenFlowError):
                await counts.update(self._connection)

    async def forget_connections(self, stale: Iterable[Flush]) -> str:
        """Has the switch forget tracked connections; why it refused, if so. ConnectionLostError while it is away."""
        if self._connection is None:
            raise ConnectionLostError(self.trouble)
        outcome = await self._connection.deliver(stale, ct_flush.flush)
        return str(outcome.refused[0].error) if outcome.refused else ""

    async def packet_out(self, packet: bytes, in_port: int, does: Actions) -> None:
        """Have the switch treat the packet as one that came in by `in_port`. While it is away, packets are lost."""
        if self._connection is not None:
            with suppress(ConnectionLostError):
                await self._connection.packet_out(packet, in_port, does)

    async def keep(self) -> NoReturn:
        """Connects, syncs and heals; when the connection is lost, from the beginning."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with connected(self.path, limit=self._limit) as connection:
                    await self._sync(connection)
                    pause = FIRST_PAUSE
                    await self._tend(connection)
            except (ConnectionError, OpenFlowError, MalformedMessage) as error:
                if str(error) != self.trouble:
                    _log.warning("the switch is away", reason=str(error))
                self._lost(str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _lost(self, reason: str) -> None:
        had_it = self._synced.is_set()
        self.trouble = reason
        self._connection = None
        self._synced.clear()
        if had_it:
            self._on_loss(reason)

    # ---- the whole

    async def _sync(self, connection: Connection) -> None:
        async with self._lock:
            await _watch(connection)  # before it is read, so that nothing slips in between
            again = await self._meters.hold(connection, self._program)
            held = await _read(connection, without=again)
            # Each owner asks for a flow at least. How many it is exactly is not known before they are worked out.
            bulk = len(self._program) - len(held.flows) > _BULK
            if bulk:
                with suppress(OpenFlowError):  # as `_watch` has said, if there are no monitors
                    await connection.unwatch_flows()
            self._installed = held
            self._problems.clear()
            self._askers.clear()
            self._asked.clear()
            # Worked out and encoded as the switch takes them in: both work at the same time.
            steps = diff(held, self._encoded(self._program))
            leaving: list[DeleteGroup] = []
            outcome = await connection.deliver(_but_leaving_groups(steps, leaving), message)
            self._record(outcome)
            self._let_go(leaving)
            self.counters.syncs += 1
            self.trouble = ""
            self._connection = connection
            self._synced.set()
        _log.info("the switch is in sync", flows=len(self._installed.flows), sent=len(outcome.accepted))
        if bulk:
            await _watch(connection)
            await self._audit(connection)

    async def _audit(self, connection: Connection) -> int:
        async with self._lock:
            again = await self._meters.hold(connection, self._program)
        before = self._installed.copy()
        found = await _read(connection, without=again)
        async with self._lock:
            if connection is not self._connection:
                return 0  # lost, and maybe regained by a sync that has looked at everything
            ours = self._installed
            # What we have changed ourselves since then is not as it was found, nor as it was before.
            drift = {identity for identity in differing(before, found) if ours.get(identity) is before.get(identity)}
            healed = await self._heal(connection, drift, found)
            refused = {problem.owner for problem in self._problems.values()} & self._program.keys()
            # The reason why something was refused may be gone.
            await self._carry_out(connection, self._adopt({owner: self._program[owner] for owner in refused}))
        return healed

    # ---- what others do to our bridge

    async def _tend(self, connection: Connection) -> NoReturn:
        while True:
            changed: dict[Key, EncodedFlow | None] = {}
            groups_changed = False
            for event in await connection.events():
                match event:
                    case FlowUpdate(_, EncodedFlow() as flow) if is_learned(flow):  # the switch's own doing
                        if event.timed_out:
                            self._turn(group_of(flow))
                    case FlowUpdate(FlowEvent.REMOVED, EncodedFlow() as flow):
                        changed[flow.key] = None
                    case FlowUpdate(_, EncodedFlow() as flow):
                        changed[flow.key] = flow
                    case GroupsChanged():
                        groups_changed = True
                    case PacketIn() | PortStatus():
                        self._on_event(event)
                    case Complaint(error):
                        _log.warning("the switch refused a message", reason=str(error))
            if groups_changed:
                await self._audit(connection)  # flows depend on them, so look at everything
            elif changed:
                found = Holding({key: flow for key, flow in changed.items() if flow is not None})
                async with self._lock:
                    refused_before = len(self._problems)
                    await self._heal(connection, changed.keys(), found)
                if len(self._problems) > refused_before:
                    # More is gone than flows. Groups go without a word when somebody changes the bridge's fail mode.
                    await self._audit(connection)

    async def _heal(self, connection: Connection, identities: Collection[Identity], found: Holding) -> int:
        """Puts back what we had under these identities, where something else was found."""
        ours, theirs = self._installed.only(identities), found.only(identities)
        steps = list(diff(theirs, ours.contents))
        if not steps:
            return 0
        self._installed.put(identities, theirs)  # until the steps are taken
        with _whole(connection):
            outcome = await connection.deliver(steps, message)
        self._record(outcome)
        self.counters.drift_healed += len(outcome.accepted)
        _log.warning("somebody else changed our bridge; set right", healed=len(outcome.accepted))
        return len(outcome.accepted)

    # ---- what we do to it

    def _adopt(self, parts: Program) -> list[Step]:
        """Makes these parts the Program's, and says what is to be done in the switch for that."""
        touched = {identity for owner in parts for identity in self._release(owner)}
        if self._problems:
            self._problems = {
                identity: problem for identity, problem in self._problems.items() if problem.owner not in parts
            }
        asking = {owner: part for owner, part in parts.items() if part != NOTHING}
        self._program.update(asking)
        wanted = {identity_of(one): one for one in self._encoded(asking)}
        wanted.update(self._left(touched - wanted.keys()))
        return list(diff(self._installed.only(touched | wanted.keys()), wanted.values()))

    def _release(self, owner: Owner) -> Iterator[Identity]:
        """What this owner asked for."""
        self._program.pop(owner, None)
        for identity in self._asked.pop(owner, ()):
            others = tuple([other for other in self._askers.pop(identity, ()) if other != owner])
            if others:
                self._askers[identity] = others
            yield identity

    def _left(self, released: Collection[Identity]) -> Iterator[tuple[Identity, EncodedFlow | EncodedGroup]]:
        """Of what was released, what others ask for still: a new Pod may have got the port of one that is gone."""
        for owner in {self._askers[identity][-1] for identity in released if identity in self._askers}:
            for one in self._encoded_part(owner, self._program[owner]):
                identity = identity_of(one)
                if identity in released and self._askers[identity][-1] == owner:
                    yield identity, one

    def _encoded(self, parts: Program) -> Iterator[EncodedFlow | EncodedGroup]:
        """What these owners ask for from now on, owner by owner."""
        for owner, part in parts.items():
            alone = (owner,)
            asked: list[Identity] = []
            for one in self._encoded_part(owner, part):
                identity = identity_of(one)
                askers = self._askers.setdefault(identity, alone)
                if askers is not alone:
                    self._askers[identity] = (*askers, owner)
                asked.append(identity)
                yield one
            self._asked[owner] = tuple(asked)

    def _encoded_part(self, owner: Owner, part: AnyPart) -> Iterator[EncodedFlow | EncodedGroup]:
        """The groups first: only its own flows lead to them."""
        for group in part.groups:
            try:
                yield group_wire.encode(group)
            except GroupTooLargeError as error:
                self._problems[group.identity] = Problem(owner, group, str(error))
                # Better the buckets it had than none, and no flow that leads nowhere.
                if (held := self._installed.groups.get(group.identity)) is not None:
                    yield held
        yield from map(flow_wire.encode, part.flows)

    def _let_go(self, groups: Sequence[DeleteGroup]) -> None:
        if groups:
            self._do_later(self._delete_later(groups), "groups that leave")

    def _turn(self, group: int) -> None:
        if not self._to_turn:
            self._do_later(self._turn_later(), "groups that turn")
        self._to_turn.add(group)

    def _do_later(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _delete_later(self, groups: Sequence[DeleteGroup]) -> None:
        await asyncio.sleep(GROUP_STAYS)
        async with self._lock:
            if self._connection is None:
                return  # the coming sync finds them
            unwanted = [step for step in groups if step.identity not in self._askers]
            with suppress(ConnectionLostError):
                await self._send(
                    self._connection, [step for step in unwanted if step.identity in self._installed.groups]
                )

    async def _turn_later(self) -> None:
        await asyncio.sleep(TURN_PAUSE)
        async with self._lock:
            identities, self._to_turn = self._to_turn, set()
            if self._connection is None:
                return
            held = [group for one in identities if (group := self._installed.groups.get(one)) is not None]
            with suppress(ConnectionLostError):
                await self._send(self._connection, [ModifyGroup(group_wire.turned(group)) for group in held])

    async def _carry_out(self, connection: Connection, steps: Sequence[Step]) -> None:
        leaving: list[DeleteGroup] = []
        await self._send(connection, list(_but_leaving_groups(steps, leaving)))
        self._let_go(leaving)

    async def _send(self, connection: Connection, steps: Sequence[Step]) -> None:
        if not steps:
            return
        outcome = None
        with _whole(connection):
            if len(steps) > 1:  # one alone is as good as a bundle, and quicker
                outcome = await connection.commit(steps, message)
            # Where the switch refuses the change as a whole, each step has to stand for itself, and most get in.
            outcome = outcome or await connection.deliver(steps, message)
        self._record(outcome)

    def _record(self, outcome: Outcome[Step]) -> None:
        self.counters.changes_sent += len(outcome.accepted) + len(outcome.refused)
        for step in outcome.accepted:
            step.take(self._installed)
        if outcome.refused:
            contents = {
                identity: (owner, what) for owner, part in self._program.items() for identity, what in _contents(part)
            }
            for refused in outcome.refused:
                self._note(refused.what, str(refused.error), contents)

    def _note(self, step: Step, reason: str, contents: Mapping[Identity, tuple[Owner, Flow | Group]]) -> None:
        if isinstance(step, DeleteFlow | DeleteGroup) or step.identity not in contents:
            _log.error("the switch refused to be rid of what nobody asks for", reason=reason)
            return
        problem = Problem(*contents[step.identity], reason)
        self._problems[step.identity] = problem
        _log.error("the switch refused a part of the Program", problem=str(problem))


def _but_leaving_groups(steps: Iterable[Step], leaving: list[DeleteGroup]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, DeleteGroup):
            leaving.append(step)
        else:
            yield step


@contextmanager
def _whole(connection: Connection) -> Iterator[None]:
    """Steps that are given up half-way leave a switch of which we do not know what it holds: it is to be read again."""
    try:
        yield
    except asyncio.CancelledError:
        connection.lose("a change was given up half-way")
        raise


def _contents(part: AnyPart) -> Iterator[tuple[Identity, Flow | Group]]:
    for flow in part.flows:
        yield flow_wire.encode(flow).key, flow
    for group in part.groups:
        yield group.identity, group


async def _watch(connection: Connection) -> None:
    try:
        await connection.watch_flows()
    except OpenFlowError as error:
        _log.warning("what others do to the bridge is found by audits only", reason=str(error))


async def _read(connection: Connection, without: Collection[Key]) -> Holding:
    """What the switch holds. Flows last: a flow that is there then has its group in the dump or in an event."""
    held = Holding()
    async for body in connection.dump(group_wire.dump_request):
        held.groups.update((group.identity, group) for group in group_wire.dumped(body))
    async for body in connection.dump(flow_wire.dump_request):
        held.flows.update((flow.key, flow) for flow in flow_wire.dumped(body) if not is_learned(flow))
    for key in without:
        held.flows.pop(key, None)
    return held
