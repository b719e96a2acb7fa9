"""Rejections of packets to Services without endpoints: the switch passes such packets to the agent, which answers."""

from __future__ import annotations

import asyncio

from windlass.openflow.actions import Output
from windlass.openflow.fields import LOCAL_PORT
from windlass.openflow.wire.packets import PacketIn
from windlass.pipeline.reserved import REJECT
from windlass.switch.rejections import rejection
from windlass.switch.requests import SwitchRequests


class Rejections:
    def __init__(self) -> None:
        self.sent = 0
        self.suppressed = 0  # by meters of the switch or the agent's own limit; as of the last scrape
        self._under_way: set[asyncio.Task[None]] = set()

    def answer(self, packet: PacketIn, switch: SwitchRequests) -> None:
        """Answer a packet that must be rejected. Meters of the switch and `PacketLimit` limit the rate."""
        if packet.userdata != REJECT or packet.in_port is None:
            return
        reply = rejection(packet.packet)
        if reply is not None:
            self.sent += 1
            sending = switch.packet_out(reply, LOCAL_PORT, (Output(packet.in_port),))
            task = asyncio.create_task(sending, name="rejection")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
