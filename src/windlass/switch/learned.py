"""Flows that the switch writes by itself, in a table of their own.

Nobody asked for them, so they are not compared with what was asked for. Most end by a timeout of their own; those that
may be idle for longer than a flow can say are ended here.

While a client is not remembered, its address alone chooses among a group: so its connections all begin alike, however
many come at once, and whatever the datapath still does by former flows. Each time somebody has been forgotten the group
is turned: what the same address chooses the next time is another matter.
"""

from __future__ import annotations

from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import matches
from windlass.openflow.wire.flows import EncodedFlow
from windlass.pipeline.affinity import seconds_of
from windlass.pipeline.layout import SESSION_AFFINITY, STICKY_GROUP
from windlass.switch.changes import DeleteFlow, message
from windlass.switch.connection import Connection


def is_learned(flow: EncodedFlow) -> bool:
    return flow.table == SESSION_AFFINITY.number


def group_of(flow: EncodedFlow) -> int:
    """The one that chose what the flow remembers."""
    sticky_group = STICKY_GROUP.bits.field
    return next((term.value for term in matches.decode(flow.match) if term.field is sticky_group), 0)


async def forget_idle(connection: Connection) -> int:
    """Ends those that were idle for too long, and says how many they were."""
    idle: list[DeleteFlow] = []
    async for body in connection.dump(lambda xid: flow_wire.dump_request(xid, SESSION_AFFINITY.number)):
        idle += (
            DeleteFlow(found.flow)
            for found in flow_wire.learned(body)
            if not found.idle_timeout and found.idle >= seconds_of(found.flow.cookie)
        )
    if idle:
        await connection.deliver(idle, message)
    return len(idle)
