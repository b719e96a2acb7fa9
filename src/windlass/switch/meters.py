"""Installs the meters of a Program, and counts the packets that they dropped.

Meters are few and rarely change. A bundle cannot contain them, so they are sent before the flows that use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import structlog

from windlass.openflow.actions import ToController
from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import meters as wire
from windlass.openflow.wire.errors import OpenFlowError
from windlass.openflow.wire.flows import Key
from windlass.program import Program
from windlass.switch.connection import OpenFlowConnection

_log = structlog.get_logger(__name__)


class InstalledMeters:
    def __init__(self) -> None:
        self.dropped: Counter[int] = Counter()  # packets since the agent started, by meter
        self._counted: dict[int, int] = {}  # by meter: the last value from the switch
        self._refusal = ""  # why the switch has no meters, or not all of them

    async def install(self, connection: OpenFlowConnection, program: Program) -> frozenset[Key]:
        """Make the switch hold the meters of the Program and no others. Returns the keys of flows to send again.

        If a meter had to be added, these are all flows that use a meter: a flow keeps the datapath's number of its
        meter from the time when the flow was added. A switch that refuses meters works without: see `PacketLimit`.
        """
        try:
            added = await self._update(connection, program)
            await self.count(connection)
        except OpenFlowError as error:
            self._refused(str(error))
            return frozenset()
        return frozenset(_keys_of_metered(program)) if added else frozenset()

    async def _update(self, connection: OpenFlowConnection, program: Program) -> bool:
        """Returns whether a meter was added."""
        held = {
            meter.identity: meter async for body in connection.dump(wire.dump_request) for meter in wire.dumped(body)
        }
        wanted = {meter.identity: wire.encode(meter) for part in program.values() for meter in part.meters}
        surplus = [meter for number, meter in held.items() if number not in wanted]
        changed = [meter for number, meter in wanted.items() if held.get(number, meter) != meter]
        missing = [meter for number, meter in wanted.items() if number not in held]
        await connection.deliver(surplus, wire.delete)
        modified = await connection.deliver(changed, wire.modify)
        added = await connection.deliver(missing, wire.add)
        refused = [*modified.refused, *added.refused]
        self._refused(str(refused[0].error) if refused else "")
        return bool(added.accepted)

    def _refused(self, reason: str) -> None:
        if reason and reason != self._refusal:
            _log.warning("the switch refused meters: only the agent itself limits rejects", reason=reason)
        self._refusal = reason

    async def count(self, connection: OpenFlowConnection) -> None:
        """Update `dropped`. Packets that were dropped before the first call are not counted."""
        counted: dict[int, int] = {}
        async for body in connection.dump(wire.statistics_request):
            counted.update(wire.packets_dropped(body))
        for meter, now in counted.items():
            before = self._counted.get(meter, now)
            self.dropped[meter] += now - before if now >= before else now  # less than before: the meter was added again
        self._counted = counted


def _keys_of_metered(program: Program) -> Iterator[Key]:
    for part in program.values():
        if part.meters:
            for flow in part.flows:
                if any(isinstance(action, ToController) and action.meter for action in flow.actions):
                    yield flow_wire.encode(flow).key
