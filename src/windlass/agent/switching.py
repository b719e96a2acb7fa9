"""The Program of this Node in its switch: worked out for what changed, brought there, and answered for.

What the Program says is `program`'s, how it gets into the switch and stays there is `switch.programs`'.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

from windlass.agent.answers import Answers, Rejects
from windlass.agent.areas import Area
from windlass.model.nodes import NodeState
from windlass.openflow.wire.ct_flush import Flush
from windlass.openflow.wire.packets import PacketIn
from windlass.openflow.wire.ports import PortStatus
from windlass.pipeline.datapaths import datapath_of, violations
from windlass.program import AnyPart, Owner, OwnerKind, Program, changed_owners, owners, part
from windlass.switch.message_streams import ConnectionLostError
from windlass.switch.packet_counts import PacketCounts
from windlass.switch.programs import Counters, InstalledProgram
from windlass.switch.streams import SwitchUnreachableError

PATIENCE = 10.0  # seconds for the switch to take the Program before it is given up, to be tried again
_STEP = 20  # parts to work out before somebody else may have a turn: about a millisecond
_CHECK_PAUSE = 1.0  # seconds in which what has changed is gathered, to be checked together
_CHECKED_TOGETHER = 5  # parts: about a millisecond, which a change may have to wait for
_CHECK_SHARE = 0.03  # of the time, at most, is for checks: what is in a hurry shall seldom meet one

_UNFORGOTTEN = (
    "UDP clients that go on from the same port may go on to endpoints that are gone (Open vSwitch 3.1 can forget them)"
)


class Switch:
    """For one change at a time: the caller sees to that."""

    def __init__(
        self, socket: str, report: Callable[[Area, Iterable[str]], object], on_loss: Callable[[str], None]
    ) -> None:
        self.state: NodeState | None = None  # what the Program was worked out for; None: there is none yet
        self._socket = socket
        self._report = report
        self._on_loss = on_loss
        self._installed: InstalledProgram | None = None
        self._behind: set[Owner] = set()  # whose parts may not be in the switch as the state asks for them
        self._unchecked: set[Owner] = set()
        self._impossible: dict[str, None] = {}  # what the datapath cannot do, in sentences
        self._changed = asyncio.Event()
        self._answers = Answers()

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
    def rejects(self) -> Rejects:
        return self._answers.rejects

    @property
    def is_connected(self) -> bool:
        return self._installed is not None and not self._installed.trouble

    @property
    def trouble(self) -> str:
        """Why the switch is away; empty while it is there."""
        return self._installed.trouble if self._installed else ""

    async def hold(self, state: NodeState, tasks: asyncio.TaskGroup) -> None:
        """Returns when the switch holds this state, whatever it held before."""
        before, self.state = self.state, state
        if self._installed is None or before is None:
            program = await self._parts(owners(state))
            self._installed = InstalledProgram(self._socket, program, on_event=self._told, on_loss=self._on_loss)
            tasks.create_task(self._installed.keep(), name="switch")
        else:
            self._behind.update(changed_owners(before, state))
        await self._catch_up(self._installed)

    async def change(self, state: NodeState, changed: Iterable[Owner]) -> None:
        """The same where nothing but these owners has changed: the work is theirs alone."""
        if self._installed is None:
            raise SwitchUnreachableError("the switch has not been set up yet")
        self.state = state
        self._behind.update(changed)
        await self._catch_up(self._installed)

    async def audit(self) -> None:
        """Compares all that the switch holds; and ends what it learned by itself, where it cannot do so in time."""
        if self._installed:
            await self._installed.audit()
            await self._installed.requests.forget_idle()

    async def count_suppressed(self) -> None:
        """Brings `rejects` up to date with what the switch has counted."""
        if self._installed:
            self._answers.rejects.suppressed = await self._installed.packets_suppressed()

    async def count(self, counts: PacketCounts) -> None:
        if self._installed:
            await self._installed.requests.count(counts)

    async def forget(self, stale: Sequence[Flush]) -> bool:
        """Has the switch forget connections; False if it is away."""
        if self._installed is None:
            return False
        try:
            refusal = await self._installed.requests.forget_connections(stale)
        except ConnectionLostError:
            return False
        self._report(Area.CONNECTIONS, [f"{refusal}; {_UNFORGOTTEN}"] if refusal else [])
        return True

    async def check(self) -> NoReturn:
        """The datapath may accept what it cannot do: that is a mistake of the pipeline, and must not pass unseen.

        No packet waits for this, so no change does either.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(_CHECK_PAUSE)
            if self.state is None:
                continue
            state, unchecked, self._unchecked = self.state, list(self._unchecked), set()
            # With the Node's own: how long a packet's way is, all flows that it can meet decide together.
            own = part(state, Owner(OwnerKind.NODE, state.node.name))
            for index in range(0, len(unchecked), _CHECKED_TOGETHER):
                began = time.perf_counter()
                parts = [own, *(part(state, owner) for owner in unchecked[index : index + _CHECKED_TOGETHER])]
                flows = [flow for owned in parts for flow in owned.flows]
                groups = [group for owned in parts for group in owned.groups]
                self._impossible |= dict.fromkeys(violations(datapath_of(state.node), flows, groups))
                await asyncio.sleep((time.perf_counter() - began) / _CHECK_SHARE)
            self._report(Area.DATAPATH, self._impossible)

    async def _catch_up(self, installed: InstalledProgram) -> None:
        parts = await self._parts(self._behind)
        async with self._patience(installed):
            await installed.apply(parts)
        self._behind.clear()
        self._report(Area.SWITCH, map(str, installed.problems))

    async def _parts(self, wanted: Iterable[Owner]) -> Program:
        parts: dict[Owner, AnyPart] = {}
        if self.state is not None:
            for owner in wanted:
                parts[owner] = part(self.state, owner)
                if not len(parts) % _STEP:
                    await asyncio.sleep(0)
        self._unchecked.update(parts)
        self._changed.set()
        return parts

    def _told(self, event: PacketIn | PortStatus) -> None:
        if isinstance(event, PacketIn) and self._installed:
            self._answers.give(event, self._installed.requests)

    @asynccontextmanager
    async def _patience(self, installed: InstalledProgram) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(PATIENCE):
                yield
        except TimeoutError:
            raise SwitchUnreachableError(installed.trouble or "the switch does not take the flows") from None
