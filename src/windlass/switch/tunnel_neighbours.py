"""Has the userspace datapath resolve the MAC addresses of tunnel remotes before the first packet needs them.

That datapath sends an ARP request or a neighbour solicitation when it has a packet for a remote, and drops packets
until the answer arrives. So each remote is sent a harmless packet beforehand, and again before its entry expires. The
kernel's datapath queues packets that wait for an answer, and needs none of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from windlass.model.families import IPAddress
from windlass.openflow.actions import Output, Set
from windlass.openflow.conditions import tunnel_destination
from windlass.openflow.fields import LOCAL_PORT, mac
from windlass.openflow.wire.errors import OpenFlowError
from windlass.pipeline.reserved import VIRTUAL_MAC
from windlass.switch.connection import connected

# Its EtherType is one for experiments: no flow of the receiver accepts it.
FRAME = VIRTUAL_MAC.to_bytes(6) + mac("0a:58:00:00:00:00").to_bytes(6) + b"\x88\xb5" + bytes(46)
# Seconds until it is sent again. At first the remote, or the route to it, may not exist yet. Later it refreshes the
# entry, which expires after 15 minutes without a packet (`tnl/neigh/aging`).
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
REFRESH = 300.0
_BATCH = 50  # packets before other tasks may run


@dataclass(slots=True)
class _Schedule:
    next: float  # by the loop's clock
    sent: int = 0


class TunnelNeighbours:
    """The remotes of one bridge's tunnel port; `keep` must be running."""

    def __init__(self, path: str) -> None:
        """`path` is the bridge's management socket. Packets are sent on a connection of their own: the first ones are
        needed before the agent's connection is in sync.
        """
        self._path = path
        self._port = 0
        self._schedules: dict[IPAddress, _Schedule] = {}
        self._generation = 0
        self._changed = asyncio.Event()

    @property
    def remotes(self) -> Collection[IPAddress]:
        return self._schedules.keys()

    async def resolve(self, remotes: Collection[IPAddress], port: int, generation: int) -> None:
        """Replace the remotes. Returns when each new one has been sent its first packet.

        `generation` differs after the switch was away: then it has no entry for any remote.
        """
        if generation != self._generation or port != self._port:
            self._schedules.clear()
        self._generation, self._port = generation, port
        now = asyncio.get_running_loop().time()
        self._schedules = {remote: self._schedules.get(remote) or _Schedule(now) for remote in remotes}
        await self._send_due()
        self._changed.set()

    async def keep(self) -> NoReturn:
        while True:
            await self._send_due()
            self._changed.clear()
            loop = asyncio.get_running_loop()
            soonest = min((schedule.next for schedule in self._schedules.values()), default=loop.time() + REFRESH)
            try:
                async with asyncio.timeout_at(soonest):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _send_due(self) -> None:
        now = asyncio.get_running_loop().time()
        due = [(remote, schedule) for remote, schedule in self._schedules.items() if schedule.next <= now]
        for _, schedule in due:
            schedule.next = now + (PAUSES[schedule.sent] if schedule.sent < len(PAUSES) else REFRESH)
            schedule.sent += 1
        if not due:
            return
        with suppress(ConnectionError, OpenFlowError):  # once the switch is back, each remote is sent a packet again
            async with connected(self._path) as switch:
                for number, (remote, _) in enumerate(due, 1):
                    await switch.packet_out(FRAME, LOCAL_PORT, (Set(tunnel_destination(remote)), Output(self._port)))
                    if not number % _BATCH:
                        await asyncio.sleep(0)
