"""Requests of a full pass: any number of them before the pass begins lead to one. And the errors that need one."""

from __future__ import annotations

import asyncio

from windlass.agent.status import AgentStatus
from windlass.cluster.nodes import NotUsable
from windlass.host.protocol import HostError
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError

FAILURES = (HostError, SwitchRefusedError, SwitchUnreachableError, NotUsable)  # after these a pass is tried again

RETRY_FIRST, RETRY_LONGEST = 0.2, 10.0  # seconds between passes that fail


class PassRequests:
    def __init__(self, status: AgentStatus) -> None:
        self._status = status
        self._requested = asyncio.Event()

    @property
    def is_pending(self) -> bool:
        return self._requested.is_set()

    def request(self) -> None:
        self._status.falls_behind()
        self._requested.set()

    def request_later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.request)

    def look_again(self) -> None:
        """Request a pass after a problem that may be gone by then."""
        self.request_later(RETRY_LONGEST)

    async def taken(self) -> None:
        """Returns when a pass is requested. Requests from now on are for the next one."""
        await self._requested.wait()
        self._requested.clear()
