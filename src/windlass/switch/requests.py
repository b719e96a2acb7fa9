"""Requests to the switch that do not concern the Program: conntrack entries, learned flows, counters, packets."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from windlass.openflow.actions import Actions
from windlass.openflow.wire import ct_flush
from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire.ct_flush import Flush
from windlass.openflow.wire.errors import OpenFlowError
from windlass.openflow.wire.flows import Key
from windlass.switch import learned
from windlass.switch.connection import OpenFlowConnection
from windlass.switch.message_streams import ConnectionLostError
from windlass.switch.packet_counts import PacketCounts


class SwitchRequests:
    def __init__(self) -> None:
        self.connection: OpenFlowConnection | None = None  # in sync; None while the switch is away

    async def forget_idle(self) -> int:
        """Delete learned flows that have been idle for too long. Returns their number."""
        if self.connection is not None:
            with suppress(ConnectionLostError):
                return await learned.forget_idle(self.connection)
        return 0

    async def forget_connections(self, stale: Iterable[Flush]) -> str:
        """Flush conntrack entries. Returns the reason if the switch refused. ConnectionLostError while it is away."""
        if self.connection is None:
            raise ConnectionLostError("the switch is unavailable")
        result = await self.connection.deliver(stale, ct_flush.flush)
        return str(result.refused[0].error) if result.refused else ""

    async def count(self, counts: PacketCounts) -> None:
        """Update the counts; while the switch is away they stay as they are."""
        if self.connection is not None:
            with suppress(ConnectionLostError, OpenFlowError):
                await counts.update(self.connection)

    async def packets_by_flow(self, table: int) -> dict[Key, int]:
        """How many packets have matched each flow of a table. Empty while the switch is away."""
        found: dict[Key, int] = {}
        if self.connection is not None:
            with suppress(ConnectionLostError):
                async for body in self.connection.dump(partial(flow_wire.dump_request, table=table)):
                    found.update((flow.key, packets) for flow, packets in flow_wire.counted(body))
        return found

    async def packet_out(self, packet: bytes, in_port: int, actions: Actions) -> None:
        """Have the switch apply these actions to the packet, as if it had come in by `in_port`.

        While the switch is away, packets are dropped.
        """
        if self.connection is not None:
            with suppress(ConnectionLostError):
                await self.connection.packet_out(packet, in_port, actions)
