"""Makes a switch hold the meters that a Program asks for, and counts what they dropped.

Meters are few and hardly ever change. They cannot be part of a bundle, so they come before the flows that name them.
"""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from windlass.openflow.actions import ToController
from windlass.openflow.flows import Flow, Meter
from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import meters as wire
from windlass.openflow.wire.errors import OpenFlowError
from windlass.openflow.wire.flows import Key
from windlass.program import Program
from windlass.switch.connection import Connection

_log = structlog.get_logger(__name__)


class HeldMeters:
    def __init__(self) -> None:
        self.dropped = 0  # packets, by all meters, while this agent ran
        self._counted: dict[int, int] = {}  # by meter: what the switch said last
        self._refusal = ""  # why the switch has none, or not all

    async def hold(self, connection: Connection, program: Program) -> frozenset[Key]:
        """The switch then holds the meters of the Program and no others. The keys of flows that must be sent again.

        Those are all that name a meter, if one had to be added: a flow keeps the number that the datapath gave to its
        meter when the flow came. A switch that refuses meters works without them: see `packet_limits`.
        """
        try:
            added = await self._update(connection, program)
            await self.count(connection)
        except OpenFlowError as error:
            self._refused(str(error))
            return frozenset()
        return frozenset(_keys_of_metered(program)) if added else frozenset()

    async def _update(self, connection: Connection, program: Program) -> bool:
        """Whether a meter was added."""
        held = {one.identity: one async for body in connection.dump(wire.dump_request) for one in wire.dumped(body)}
        wanted = {meter.identity: wire.encode(meter) for meter in _meters(program)}
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
            _log.warning("the switch refused meters: the agent alone limits rejects", reason=reason)
        self._refusal = reason

    async def count(self, connection: Connection) -> None:
        """Brings `dropped` up to date. What was dropped before this agent first looked does not count."""
        counted: dict[int, int] = {}
        async for body in connection.dump(wire.statistics_request):
            counted.update(wire.packets_dropped(body))
        for meter, now in counted.items():
            before = self._counted.get(meter, now)
            self.dropped += now - before if now >= before else now  # less than before: the meter was added anew
        self._counted = counted


def _meters(program: Program) -> Iterator[Meter]:
    for part in program.values():
        yield from part.meters


def _keys_of_metered(program: Program) -> Iterator[Key]:
    for part in program.values():
        if part.meters:
            yield from (flow_wire.encode(flow).key for flow in part.flows if _is_metered(flow))


def _is_metered(flow: Flow) -> bool:
    return any(isinstance(action, ToController) and action.meter for action in flow.actions)
