"""The host's network while Open vSwitch is away: the NIC holds the Node IPs until it is back.

Userspace datapath only. Without ovs-vswitchd its bridge interface is gone, without ovsdb-server it forwards nothing:
the host would not answer. The kernel datapath goes on by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

import structlog

from windlass.agent.areas import Area
from windlass.host.protocol import Host, HostError, Uplink

PATIENCE = 3.0  # seconds: a restart of the switch takes less
_log = structlog.get_logger(__name__)


class Fallback:
    def __init__(self, host: Host, bridge: str, report: Callable[[Area, Iterable[str]], object]) -> None:
        self._host = host
        self._bridge = bridge
        self._report = report

    async def keep(
        self,
        is_away: Callable[[], str],
        adopted: Callable[[], Uplink | None],
        exclusively: Callable[[], AbstractAsyncContextManager[None]],
    ) -> NoReturn:
        """`is_away`: the reason, or nothing. `adopted`: the uplink, once there is one. The next pass takes it again.

        Within `exclusively()` no other task changes the host's addresses.
        """
        while True:
            await asyncio.sleep(PATIENCE)
            before = is_away()
            await asyncio.sleep(PATIENCE if before else 0)
            async with exclusively():
                uplink = adopted()
                if before and is_away() and uplink is not None:
                    await self._give_back(uplink, is_away())

    async def _give_back(self, uplink: Uplink, reason: str) -> None:
        ips = [address.ip for address in uplink.addresses]
        try:
            if await self._host.uplink.needs_wire(uplink.name, self._bridge, ips):
                return
            await self._host.uplink.release(uplink.name, self._bridge)
        except HostError as error:
            self._report(Area.UPLINK, [str(error)])
            return
        _log.warning("the NIC has the Node's addresses until the switch is back", uplink=uplink.name)
        self._report(Area.UPLINK, [f"{reason}; {uplink.name} has the Node's addresses until Open vSwitch answers"])
