"""The Program of this Node in its switch: computed for the owners that changed, sent, and checked.

What the Program says is decided in `program`; how it gets into the switch and stays there in `switch.programs`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NoReturn

from windlass.agent.areas import Area, Report
from windlass.agent.datapath_flows import Forget
from windlass.agent.denials import DenialLog
from windlass.agent.rejections import Rejections
from windlass.model.nodes import NodeState
from windlass.openflow.wire.ct_flush import Flush
from windlass.openflow.wire.packets import PacketIn
from windlass.pipeline.datapaths import checks, datapath_of
from windlass.pipeline.reserved import DENIAL, DENIAL_METER
from windlass.program import AnyPart, Owner, OwnerKind, Program, part
from windlass.program import parts as program_parts
from windlass.switch.message_streams import ConnectionLostError
from windlass.switch.programs import Counters, InstalledProgram
from windlass.switch.requests import SwitchRequests
from windlass.switch.streams import SwitchUnreachableError

PATIENCE = 10.0  # seconds for the switch to accept flows; after that the pass is tried again
_STEP = 100  # parts to compute before other tasks run: a millisecond, or a few of them for Pods
_TOGETHER = 200  # up to this many owners change in one bundle
_SLICE = 20  # owners per bundle if there are more; after each, other tasks run for as long as it took
# Flows of these look each other up: in half of a change a Pod would have policies whose verdicts are missing.
_OF_POLICIES = {OwnerKind.POLICY_SUBJECT, OwnerKind.POLICY_PORTS, OwnerKind.POLICY_PEER}
_IN_ONE_BUNDLE = {OwnerKind.POD, *_OF_POLICIES}
_CHECK_PAUSE = 1.0  # seconds during which changed owners are collected, to be checked together
_CHECKED_TOGETHER = 5  # parts: about a millisecond, which a change may have to wait for
_CHECK_SHARE = 0.03  # the largest share of the time for checks, so that changes rarely wait for one

_NOT_FLUSHED = (
    "UDP clients that keep their port may still be sent to endpoints that are gone (Open vSwitch 3.1 can flush them)"
)


@dataclass(slots=True, eq=False)
class ProgrammedSwitch:
    """The state that this Node should have, and the owners whose flows in the switch are not up to date with it.

    The part of an owner is computed from the newest state when it is sent, and only one caller sends at a time. So
    callers may run side by side: the last flows that are sent for an owner are those of the newest state.
    """

    _socket: str
    _report: Report
    _on_loss: Callable[[str], None]
    _forget_datapath_flows: Forget | None = None
    state: NodeState | None = None  # None until the first pass
    rejections: Rejections = field(default_factory=Rejections)
    denials: DenialLog = field(default_factory=DenialLog)
    _installed: InstalledProgram | None = None
    owed: set[Owner] = field(default_factory=set)  # owners whose flows in the switch may differ from the state
    _in_flight: frozenset[Owner] = frozenset()  # owners whose flows are being sent
    policies_sent: asyncio.Event = field(default_factory=asyncio.Event)  # flows of policies or Pods are in the switch
    # Datapath flows and marks of connections may be those of policies that changed while no agent was running.
    _may_have_former_policies: bool = True
    _had_policies: bool = False  # when flows of Pods were last sent
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _unchecked: set[Owner] = field(default_factory=set)
    _impossible: dict[str, None] = field(default_factory=dict)  # sentences about what the datapath cannot do
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def counters(self) -> Counters:
        return self._installed.counters if self._installed else Counters()

    @property
    def program(self) -> Program:
        return self._installed.program if self._installed else {}

    @property
    def flow_count(self) -> int:
        return self._installed.flow_count if self._installed else 0

    @property
    def is_started(self) -> bool:
        return self._installed is not None

    @property
    def trouble(self) -> str:
        """Why the switch is unavailable; empty while it is there."""
        return self._installed.trouble if self._installed else ""

    def update(self, state: NodeState, changed: Iterable[Owner]) -> None:
        """The Node should have this state. It differs from the state before in these owners; `bring` sends them."""
        self.state = state
        self.owed.update(changed)

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Make the switch hold the Program of the state, whatever it held before."""
        if self.state is None:
            raise SwitchUnreachableError("there is no state to program the switch for yet")
        self.owed.clear()
        parts: dict[Owner, AnyPart] = {}
        needed = program_parts(self.state)
        while step := dict(islice(needed, _STEP)):
            parts |= step
            await asyncio.sleep(0)
        self._check_later(parts)
        self._installed = InstalledProgram(self._socket, parts, on_packet=self._handle, on_loss=self._on_loss)
        tasks.create_task(self._installed.keep(), name="switch")
        await self.bring(())

    async def bring(self, owners: Collection[Owner]) -> None:
        """Returns when the switch has the flows of these owners. SwitchUnreachableError after `PATIENCE`.

        Flows that could not be sent stay due.
        """
        installed = self._installed
        if installed is None:
            raise SwitchUnreachableError("the switch has not been set up yet")
        if installed.trouble:
            await _patiently(installed, installed.synced())
        ordered = list(owners)
        if len(ordered) <= _TOGETHER:
            await self._send(installed, ordered)
        else:
            for index in range(0, len(ordered), _SLICE):
                began = time.perf_counter()
                await self._send(installed, ordered[index : index + _SLICE])
                await asyncio.sleep(time.perf_counter() - began)
        if self._may_have_former_policies:
            await self._forget_former_policies()
        self._report(Area.SWITCH, map(str, installed.problems))

    async def _send(self, installed: InstalledProgram, owners: Iterable[Owner]) -> None:
        async with self._sending:
            taken = {owner for owner in owners if owner in self.owed}  # the others were sent by another caller
            state = self.state  # a newer one may replace it while its flows are sent
            if not taken or state is None:
                return
            if any(owner.kind in _IN_ONE_BUNDLE for owner in taken):
                taken |= {owner for owner in self.owed if owner.kind in _IN_ONE_BUNDLE}
            self.owed.difference_update(taken)
            self._in_flight = frozenset(taken)
            try:
                parts = {owner: part(state, owner) for owner in taken}
                await _patiently(installed, installed.apply(parts))
                if self._forget_datapath_flows and _concern_policies(taken, _has_policies(state) or self._had_policies):
                    await self._forget_datapath_flows()
            except BaseException:
                self.owed.update(taken)
                raise
            finally:
                self._in_flight = frozenset()
            if any(owner.kind in _IN_ONE_BUNDLE for owner in taken):
                self._had_policies = _has_policies(state)
                self.policies_sent.set()
        self._check_later(parts)

    async def _forget_former_policies(self) -> None:
        if self._forget_datapath_flows:
            try:
                await self._forget_datapath_flows()
            except SwitchUnreachableError:
                is_enforcing = self.state is not None and _has_policies(self.state)
                if is_enforcing:  # else Pods need not wait
                    raise
        self._may_have_former_policies = False
        self.policies_sent.set()

    def refused(self, owner: Owner) -> list[str]:
        """A sentence for each flow of this owner that the switch has refused."""
        return [str(one) for one in self._installed.problems if one.owner == owner] if self._installed else []

    def owes(self, owner: Owner) -> bool:
        """Whether the switch may lack flows of this owner. `bring` waits for them, also if another task sends them."""
        return owner in self.owed or owner in self._in_flight

    @property
    def owes_policies(self) -> bool:
        """Whether the switch may lack flows of the state's policies. If so, `policies_sent` is set again later."""
        return any(owner.kind in _IN_ONE_BUNDLE for owner in chain(self.owed, self._in_flight))

    # --- requests besides the Program -----------------------------------------------------------------------------

    async def audit(self) -> None:
        """Compare all that the switch holds, and delete learned flows that it cannot expire in time by itself."""
        if self._installed:
            await self._installed.audit()
            await self._installed.requests.forget_idle()

    async def count_suppressed(self) -> None:
        """Bring `rejections` and `denials` up to date with what the switch has counted."""
        if self._installed:
            suppressed = await self._installed.packets_suppressed()
            self.denials.suppressed = suppressed.pop(DENIAL_METER, 0)
            self.rejections.suppressed = suppressed.total()

    @property
    def requests(self) -> SwitchRequests:
        return self._installed.requests if self._installed else SwitchRequests()

    async def flush(self, stale: Sequence[Flush]) -> bool:
        """Flush conntrack entries; False if the switch is unavailable."""
        if self._installed is None:
            return False
        try:
            refusal = await self._installed.requests.forget_connections(stale)
        except ConnectionLostError:
            return False
        self._report(Area.CONNECTIONS, [f"{refusal}; {_NOT_FLUSHED}"] if refusal else [])
        return True

    async def check(self) -> NoReturn:
        """Report flows that the datapath accepts but cannot carry out: a mistake of the pipeline.

        Flows are checked after they were sent, so that no change waits for it.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(_CHECK_PAUSE)
            if self.state is None:
                continue
            state, unchecked, self._unchecked = self.state, list(self._unchecked), set()
            # Together with the Node's own part: the length of a packet's path depends on all flows that it can meet.
            own = part(state, Owner(OwnerKind.NODE, state.node.name))
            for index in range(0, len(unchecked), _CHECKED_TOGETHER):
                began = time.perf_counter()
                parts = [own, *(part(state, owner) for owner in unchecked[index : index + _CHECKED_TOGETHER])]
                flows = [flow for owned in parts for flow in owned.flows]
                groups = [group for owned in parts for group in owned.groups]
                for found in checks(datapath_of(state.node), flows, groups):
                    self._impossible |= dict.fromkeys(found)
                    await asyncio.sleep(0)  # changes go first
                await asyncio.sleep((time.perf_counter() - began) / _CHECK_SHARE)
            self._report(Area.DATAPATH, self._impossible)

    def _check_later(self, checked: Iterable[Owner]) -> None:
        self._unchecked.update(checked)
        self._changed.set()

    def _handle(self, packet: PacketIn) -> None:
        if packet.userdata == DENIAL:
            self.denials.note(packet.packet)
        elif self._installed:
            self.rejections.answer(packet, self._installed.requests)


def _has_policies(state: NodeState) -> bool:
    return bool(state.policies.pods)


def _concern_policies(changed: Iterable[Owner], are_there_any: bool) -> bool:
    """Also true of a Pod alone: it may get policies that other Pods already have, or lose the last ones."""
    kinds = {owner.kind for owner in changed}
    return bool(kinds & _OF_POLICIES) or (are_there_any and OwnerKind.POD in kinds)


async def _patiently(installed: InstalledProgram, work: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await work
    except TimeoutError:
        raise SwitchUnreachableError(installed.trouble or "the switch does not accept the flows") from None
