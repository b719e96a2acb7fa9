"""Counts the packets that match certain flows, across restarts of the switch and flows that are added again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from windlass.openflow.flows import Flow
from windlass.openflow.wire import flows as flow_wire
from windlass.switch.connection import OpenFlowConnection


class PacketCounts:
    def __init__(self, flows: Mapping[str, Flow]) -> None:
        self.totals = dict.fromkeys(flows, 0)  # by the name of the flow; they only grow
        self._flows = {name: flow_wire.encode(flow) for name, flow in flows.items()}
        self._last = dict.fromkeys(flows, 0)  # the last values from the switch

    async def update(self, connection: OpenFlowConnection) -> None:
        """Requests these flows only: the work does not grow with the switch's tables."""
        for name, flow in self._flows.items():
            now = 0
            request = partial(flow_wire.dump_request, table=flow.table, cookie=flow.cookie)
            async for body in connection.dump(request):
                now += sum(packets for found, packets in flow_wire.counted(body) if found.key == flow.key)
            # The switch counts from 0 again after the flow was added again.
            self.totals[name] += now - self._last[name] if now >= self._last[name] else now
            self._last[name] = now
