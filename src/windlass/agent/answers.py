"""Answers to packets that nobody serves: the switch hands them over, and gets the answer back to send; not too many."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from windlass.openflow.actions import Output
from windlass.openflow.fields import LOCAL_PORT
from windlass.openflow.wire.packets import PacketIn
from windlass.pipeline.services import REJECT
from windlass.switch.programs import InstalledProgram
from windlass.switch.rejections import rejection

PER_SECOND = 500  # more than clients that mean well need, and little work


@dataclass(slots=True)
class Rejects:
    """For the metrics; they only grow."""

    sent: int = 0
    suppressed: int = 0  # by the rate limit


class Answers:
    def __init__(self) -> None:
        self.rejects = Rejects()
        self._limit = RateLimit(PER_SECOND)
        self._under_way: set[asyncio.Task[None]] = set()

    def give(self, packet: PacketIn, switch: InstalledProgram) -> None:
        """If it is a packet to be refused, and as often as is reasonable."""
        if packet.userdata != REJECT or packet.in_port is None:
            return
        if not self._limit.allows():
            self.rejects.suppressed += 1
            return
        answer = rejection(packet.packet)
        if answer is not None:
            self.rejects.sent += 1
            sending = switch.packet_out(answer, LOCAL_PORT, (Output(packet.in_port),))
            task = asyncio.create_task(sending, name="answer")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)


class RateLimit:
    """So many a second, and no more saved up than for one second."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left = per_second
        self._at = time.monotonic()

    def allows(self) -> bool:
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * self._per_second, self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
