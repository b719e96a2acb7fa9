"""Tunnels whose other ends are known before anybody needs them.

The userspace datapath asks for an end's MAC when it has something to send there, and what it has is lost until it is
told. So each end is sent something of no consequence beforehand, and again before the datapath forgets it. The kernel's
datapath keeps what waits for an answer: nothing of this is needed there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import NoReturn

from windlass.model.families import IPAddress
from windlass.openflow.actions import Actions, Output, Set
from windlass.openflow.fields import LOCAL_PORT, mac, tunnel_destination
from windlass.pipeline.layout import VIRTUAL_MAC

# Its type is one for experiments: whoever unpacks it has no flow for it.
GREETING = VIRTUAL_MAC.to_bytes(6) + mac("0a:58:00:00:00:00").to_bytes(6) + b"\x88\xb5" + bytes(46)
# Seconds until it is sent again. At first the end, or the route to it, may not be there yet; then just often enough:
# Open vSwitch forgets after 15 minutes (`tnl/neigh/aging`), and counts them anew whenever something is sent.
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
REFRESH = 300.0
_AT_ONCE = 50  # greetings before somebody else may have a turn

Send = Callable[[bytes, int, Actions], Awaitable[None]]


@dataclass(slots=True)
class _Turn:
    at: float  # by the loop's clock
    times: int = 0  # that it was greeted


class Tunnels:
    """Those of one bridge; `keep` must be running."""

    def __init__(self, send: Send) -> None:
        """`send`: have the switch treat this packet as one that came in by this port."""
        self._send = send
        self._port = 0
        self._turns: dict[IPAddress, _Turn] = {}
        self._life = 0
        self._changed = asyncio.Event()

    async def lead_to(self, ends: Collection[IPAddress], port: int, life: int) -> None:
        """To these ends from now on; returns when those that are new have been greeted for the first time.

        `life` is another number after the switch was away: then it knows none of them.
        """
        if life != self._life or port != self._port:
            self._turns.clear()
        self._life, self._port = life, port
        now = asyncio.get_running_loop().time()
        self._turns = {end: self._turns.get(end) or _Turn(now) for end in ends}
        await self._greet()
        self._changed.set()

    async def keep(self) -> NoReturn:
        while True:
            await self._greet()
            self._changed.clear()
            loop = asyncio.get_running_loop()
            soonest = min((turn.at for turn in self._turns.values()), default=loop.time() + REFRESH)
            try:
                async with asyncio.timeout_at(soonest):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _greet(self) -> None:
        now = asyncio.get_running_loop().time()
        due = [(end, turn) for end, turn in self._turns.items() if turn.at <= now]
        for number, (end, turn) in enumerate(due, 1):
            turn.at = now + (PAUSES[turn.times] if turn.times < len(PAUSES) else REFRESH)
            turn.times += 1
            await self._send(GREETING, LOCAL_PORT, (Set(tunnel_destination(end)), Output(self._port)))
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
