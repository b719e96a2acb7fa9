"""Connections that changes of Services have outdated: the switch is told to forget them, at once and once more.

Which they are is decided in `pipeline.stale_connections`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NoReturn

from windlass.agent.serving import Serving
from windlass.agent.switching import Switch
from windlass.model.nodes import LocalNode
from windlass.model.services import Service
from windlass.openflow.wire.ct_flush import Flush
from windlass.pipeline.stale_connections import stale

AT_ONCE = 32  # messages that a change waits for; the switch looks through all its connections for each
TOGETHER = 8  # messages before the switch may do other things
PAUSE = 1.0  # seconds after a change in which the switch may still handle packets as before it

Outdated = tuple[str, Service | None]  # a Service by its key, as it was


class Forgetting:
    def __init__(self, serving: Serving, switch: Switch) -> None:
        self._serving = serving
        self._switch = switch
        self._once_more: list[Outdated] = []
        self._woken = asyncio.Event()

    async def at_once(self, node: LocalNode) -> None:
        """What the Services have outdated, now that they are in the switch; where it is very much, only some of it."""
        outdated = self._serving.take_outdated()
        if outdated:
            await self._switch.forget(self._stale(outdated.items(), node)[:AT_ONCE])
            self._put(outdated)

    async def once_more(self) -> NoReturn:
        """For a moment the switch may have gone on as before, and tracked what it had just forgotten.

        What is outdated is decided anew: the endpoint may be back.
        """
        while True:
            await self._woken.wait()
            self._woken.clear()
            await asyncio.sleep(PAUSE)
            state, outdated, self._once_more = self._switch.state, self._once_more, []
            stale = self._stale(outdated, state.node) if state else []
            for index in range(0, len(stale), TOGETHER):
                if not await self._switch.forget(stale[index : index + TOGETHER]):
                    self._put(dict(outdated))  # it is away, and with the kernel's datapath it forgets nothing by that
                    break

    def _put(self, outdated: Mapping[str, Service | None]) -> None:
        self._once_more += outdated.items()
        self._woken.set()

    def _stale(self, outdated: Iterable[Outdated], node: LocalNode) -> list[Flush]:
        services = self._serving.services
        found = (one for key, before in outdated for one in stale(before, services.get(key), node))
        return list(dict.fromkeys(found))
