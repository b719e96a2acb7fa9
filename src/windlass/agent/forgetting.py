"""Connections that changes of Services have outdated: their conntrack entries are flushed, at once and a second time.

Which connections these are is decided in `pipeline.stale_connections`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from windlass.agent.serving import Serving
from windlass.agent.switching import ProgrammedSwitch
from windlass.model.nodes import LocalNode
from windlass.model.services import ServedService
from windlass.openflow.wire.ct_flush import Flush
from windlass.pipeline.stale_connections import stale
from windlass.program import Owner, OwnerKind

AT_ONCE = 32  # messages that a change waits for; the switch searches all its connections for each
TOGETHER = 8  # messages before the switch may do other work
PAUSE = 1.0  # seconds after a change in which the switch may still handle packets by its former flows

Outdated = tuple[str, ServedService | None]  # a Service by its key, as it was


@dataclass(slots=True, eq=False)
class Forgetting:
    _serving: Serving
    _switch: ProgrammedSwitch
    _once_more: list[Outdated] = field(default_factory=list)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def at_once(self) -> None:
        """Flush what changes of Services have outdated whose flows are in the switch. If it is very much, a part."""
        owed, state = self._switch.owed, self._switch.state
        outdated = self._serving.take_outdated(lambda key: Owner(OwnerKind.SERVICE, key) not in owed)
        if outdated and state:
            await self._switch.flush(self._stale(outdated.items(), state.node)[:AT_ONCE])
            self._put(outdated)

    async def once_more(self) -> NoReturn:
        """The switch may have used its former flows for a moment, and tracked again what had just been flushed.

        Which connections are outdated is decided again: the endpoint may be back.
        """
        while True:
            await self._woken.wait()
            self._woken.clear()
            await asyncio.sleep(PAUSE)
            state, outdated, self._once_more = self._switch.state, self._once_more, []
            stale = self._stale(outdated, state.node) if state else []
            for index in range(0, len(stale), TOGETHER):
                if not await self._switch.flush(stale[index : index + TOGETHER]):
                    self._put(dict(outdated))  # the switch is away; the kernel datapath keeps its connections meanwhile
                    break

    def _put(self, outdated: Mapping[str, ServedService | None]) -> None:
        self._once_more += outdated.items()
        self._woken.set()

    def _stale(self, outdated: Iterable[Outdated], node: LocalNode) -> list[Flush]:
        services = self._serving.services
        found = (one for key, before in outdated for one in stale(before, services.get(key), node))
        return list(dict.fromkeys(found))
