"""Open UDP connections whose mark does not say what policies say about them now.

The next packet of a client marks its connection if policies deny it, and removes the mark if they allow it again
(`policies`). A UDP client may send nothing while it gets replies. So after a change the agent marks such connections
itself: it has the switch track an empty datagram of the client, which is delivered to nobody. TCP needs nothing: its
clients acknowledge what they get.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from ipaddress import ip_address

from windlass.model.nodes import NodeState
from windlass.model.policies import Direction
from windlass.model.port_sets import PortSet, contains
from windlass.model.services import Protocol
from windlass.openflow.actions import Actions, Ct
from windlass.openflow.conntrack_dumps import TrackedConnection
from windlass.pipeline.policy_lookups import permitted_ports
from windlass.pipeline.tracking import CT_DENIED, POD_ZONE

Mismatch = tuple[TrackedConnection, bool]  # the connection, and whether policies deny it


def mismatches(state: NodeState, connections: Iterable[TrackedConnection]) -> Iterator[Mismatch | None]:
    """None for each connection whose mark is right, so that a caller can pause between two connections."""
    policed = {str(a): pod.key for pod in state.pods.values() if pod.key in state.policies.pods for a in pod.addresses}
    own = {str(a) for f in state.node.families for a in (*state.node.own_addresses(f), state.node.gateway(f))}

    @cache
    def permitted(direction: Direction, pod: str, peer: str) -> PortSet:
        return permitted_ports(state.policies, direction, pod, ip_address(peer))

    def denies(direction: Direction, pod: str | None, peer: str, port: int) -> bool:
        return pod is not None and not contains(permitted(direction, pod, peer), Protocol.UDP, port)

    for one in connections:
        client, server = policed.get(one.client), policed.get(one.server)
        denied = denies(Direction.EGRESS, client, one.server, one.server_port) or (
            one.client not in own and denies(Direction.INGRESS, server, one.client, one.server_port)
        )
        yield (one, denied) if denied != bool(one.mark & CT_DENIED.bits.mask) else None


def marking(*, denied: bool) -> Actions:
    """For a datagram of the client: it sets or removes the mark of its connection, and goes nowhere."""
    return (Ct(POD_ZONE, commit=True, sets=(CT_DENIED.set() if denied else CT_DENIED.clear(),)),)
