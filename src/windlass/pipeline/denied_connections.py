"""What policies say about open connections, and how their marks are corrected.

The next packet of a client marks its connection if policies deny it, and removes the mark if they allow it again
(`policies`). A UDP client may send nothing while it gets replies. So after a change the agent marks such connections
itself: it has the switch track an empty packet of the client, which is sent to no port. A TCP client acknowledges what
it gets, so it marks its connection. But it gets nothing while it is cut, so the agent removes the mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from ipaddress import ip_address
from itertools import chain

from windlass.model.nodes import NodeState
from windlass.model.policies import Direction
from windlass.model.port_sets import PortSet, contains
from windlass.openflow.actions import Actions, Ct, Nat, Set
from windlass.openflow.conntrack_dumps import TrackedConnection, tcp_connections, udp_connections
from windlass.openflow.fields import CT_MARK
from windlass.pipeline.policy_lookups import permitted_ports
from windlass.pipeline.tracking import CT_DENIED, POD_ZONE

JudgedConnection = tuple[TrackedConnection, bool]  # and whether policies deny it


def to_review(dump: str) -> Iterator[TrackedConnection]:
    """The connections whose marks may be wrong because their clients send nothing."""
    return chain(udp_connections(dump), tcp_connections(dump, _DENIED))


def judge(state: NodeState, connections: Iterable[TrackedConnection]) -> Iterator[JudgedConnection]:
    policed = {str(a): pod.key for pod in state.pods.values() if pod.key in state.policies.pods for a in pod.addresses}
    own = {str(a) for f in state.node.families for a in (*state.node.own_addresses(f), state.node.gateway(f))}

    @cache
    def permitted(direction: Direction, pod: str, peer: str) -> PortSet:
        return permitted_ports(state.policies, direction, pod, ip_address(peer))

    def denies(direction: Direction, pod: str | None, peer: str, one: TrackedConnection) -> bool:
        return pod is not None and not contains(permitted(direction, pod, peer), one.protocol, one.server_port)

    for one in connections:
        client, server = policed.get(one.client), policed.get(one.server)
        yield (
            one,
            denies(Direction.EGRESS, client, one.server, one)
            or (one.client not in own and denies(Direction.INGRESS, server, one.client, one)),
        )


def is_marked(one: TrackedConnection) -> bool:
    return bool(one.mark & _DENIED)


def marking(one: TrackedConnection, *, denied: bool) -> Actions:
    """For an empty packet of the client: it sets or removes the mark of its connection, and goes nowhere.

    If the entry has expired meanwhile, the packet creates it as it was, with its translation and its other marks:
    an entry without the translation would send the client's next packets nowhere.
    """
    mark = one.mark | _DENIED if denied else one.mark & ~_DENIED
    return (Ct(POD_ZONE, commit=True, nat=_translation(one), sets=(Set(CT_MARK(mark)),)),)


_DENIED = CT_DENIED.bits.mask


def _translation(one: TrackedConnection) -> Nat | None:
    """A zone has one translation of a connection: that of a Service, or the source of a Pod that leaves as its Node."""
    if (one.server, one.server_port) != (one.to, one.to_port):
        return Nat(to=ip_address(one.server), ports=(one.server_port, one.server_port))
    if (one.seen_as, one.seen_port) != (one.client, one.client_port):
        return Nat(ip_address(one.seen_as), ports=(one.seen_port, one.seen_port))
    return None
