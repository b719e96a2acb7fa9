"""Flows that the switch adds by itself, in a table of their own: one for each client with session affinity.

The Program does not contain them, so they are not compared with it. Most expire by their own idle timeout; those whose
timeout is longer than a flow can have are deleted here.

Until a client has an entry, a hash of its address alone selects its endpoint in the group. So all its first connections
get the same endpoint, however many come at once, and whatever the datapath still has cached. When an entry expires, its
group is rotated, so that the same address may select a different endpoint the next time.
"""

from __future__ import annotations

from windlass.openflow.wire import flows as flow_wire
from windlass.openflow.wire import matches
from windlass.openflow.wire.flows import EncodedFlow
from windlass.pipeline.affinity import seconds_of
from windlass.pipeline.layout import SESSION_AFFINITY
from windlass.pipeline.packet_marks import STICKY_GROUP
from windlass.switch.changes import DeleteFlow, message
from windlass.switch.connection import OpenFlowConnection


def is_learned(flow: EncodedFlow) -> bool:
    return flow.table == SESSION_AFFINITY.number


def group_of(flow: EncodedFlow) -> int:
    """The group that selected the endpoint of this entry."""
    sticky_group = STICKY_GROUP.bits.field
    return next((term.value for term in matches.decode(flow.match) if term.field is sticky_group), 0)


async def forget_idle(connection: OpenFlowConnection) -> int:
    """Delete those that have been idle for too long. Returns their number."""
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
