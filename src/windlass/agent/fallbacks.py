"""The host's network while Open vSwitch is unavailable: the NIC holds the Node IPs until it is back.

Userspace datapath only. Without ovs-vswitchd its bridge interface is gone, without ovsdb-server it forwards nothing:
the host would not answer. The kernel datapath keeps forwarding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NoReturn

import structlog

from windlass.agent.areas import Area, Report
from windlass.host.protocol import Host, HostError, Uplink
from windlass.switch.streams import SwitchUnreachableError, open_stream

PATIENCE = 3.0  # seconds: a restart of the switch takes less
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Fallback:
    _host: Host
    _bridge: str
    _report: Report

    async def keep(
        self,
        is_away: Callable[[], Awaitable[str]],
        adopted: Callable[[], Uplink | None],
        exclusively: Callable[[], AbstractAsyncContextManager[None]],
    ) -> NoReturn:
        """Give the uplink its addresses back while Open vSwitch is unavailable; the next pass takes them again.

        `is_away` returns the reason, or an empty text. `adopted` returns the uplink once a pass was made; before that,
        the record says whether an earlier agent took it.

        Within `exclusively()` no other task changes the host's addresses.
        """
        while True:
            await asyncio.sleep(PATIENCE)
            if not await is_away():
                continue
            await asyncio.sleep(PATIENCE)
            async with exclusively():
                if reason := await is_away():
                    await self._give_back(adopted(), reason)

    async def _give_back(self, adopted: Uplink | None, reason: str) -> None:
        try:
            uplink = adopted or await self._recorded()
            if uplink is None:
                return
            ips = [address.ip for address in uplink.addresses]
            if await self._host.uplink.needs_wire(uplink.name, self._bridge, ips):
                return
            await self._host.uplink.release(uplink.name, self._bridge)
        except HostError as error:
            self._report(Area.UPLINK, [str(error)])
            return
        _log.warning("the NIC has the Node's addresses until the switch is back", uplink=uplink.name)
        self._report(Area.UPLINK, [f"{reason}; {uplink.name} has the Node's addresses until Open vSwitch answers"])

    async def _recorded(self) -> Uplink | None:
        """None after a reboot: then the host itself configures its NIC, perhaps later than an agent starts."""
        name = await self._host.uplink.recorded(since_boot=True)
        return await self._host.uplink.find(self._bridge, (), name) if name else None


async def unanswered(socket: str) -> str:
    """Why the switch does not answer at this socket; empty if it does."""
    try:
        _, writer = await open_stream(socket)
    except SwitchUnreachableError as error:
        return str(error)
    writer.close()
    return ""
