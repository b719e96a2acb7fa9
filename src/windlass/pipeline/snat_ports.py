"""Which ports of the Node IP translated connections get, and where their replies are looked up.

Where the host reserves ports for SNAT there are more of them (docs/decisions/0005-snat-ports.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from windlass.model.families import Family, IPAddress, family_of
from windlass.model.nodes import LocalNode
from windlass.openflow.conditions import destination, destination_port, protocol
from windlass.openflow.matches import Condition
from windlass.pipeline.declarations import PortRange
from windlass.pipeline.packet_marks import FROM_TUNNEL, FROM_UPLINK
from windlass.pipeline.registers import Mark
from windlass.pipeline.reserved import RESERVED_SERVICE_SNAT_PORTS, RESERVED_SNAT_PORTS, SERVICE_SNAT_PORTS, SNAT_PORTS

SnatRange = tuple[int, int]  # first and last


@dataclass(frozen=True, slots=True)
class SnatPorts:
    pods: SnatRange  # for connections of Pods to the outside
    services: SnatRange  # for connections of clients of Services to endpoints outside
    pod_replies: tuple[PortRange, ...]  # where replies to them are looked up
    service_replies: tuple[PortRange, ...]


# By default, Linux does not choose these ports for the host's own connections.
UNRESERVED = SnatPorts(
    pods=SNAT_PORTS, services=SERVICE_SNAT_PORTS, pod_replies=(SNAT_PORTS,), service_replies=(SERVICE_SNAT_PORTS,)
)
# For a host that reserves HOST_RESERVED. Ports of Pods here do not overlap ports of Services above, and the reverse, so
# that connections that were translated before the reservation keep working.
RESERVED = SnatPorts(
    pods=(RESERVED_SNAT_PORTS.first, SNAT_PORTS.last),
    services=RESERVED_SERVICE_SNAT_PORTS,
    pod_replies=(RESERVED_SNAT_PORTS, SNAT_PORTS),
    service_replies=(RESERVED_SERVICE_SNAT_PORTS, SERVICE_SNAT_PORTS),
)
HOST_RESERVED: tuple[SnatRange, ...] = (
    (RESERVED_SNAT_PORTS.first, SERVICE_SNAT_PORTS.last),
    (RESERVED_SERVICE_SNAT_PORTS.first, RESERVED_SERVICE_SNAT_PORTS.last),
)


FREE_OF_HOST_PORTS = ", from a port that the host itself does not use to that destination"  # added to `why`


def snat_ports(node: LocalNode) -> SnatPorts:
    return RESERVED if node.ports_reserved else UNRESERVED


def origins_of_replies(node: LocalNode) -> tuple[Mark, ...]:
    """Where replies to the Node IP come from: endpoints outside, and Pods of peers behind the tunnel."""
    return (FROM_UPLINK,) if node.tunnel_port is None else (FROM_UPLINK, FROM_TUNNEL)


def used_ports(node: LocalNode) -> tuple[SnatRange, ...]:
    """The ports at which replies are looked up, including replies to connections from before a reservation."""
    return HOST_RESERVED if node.ports_reserved else ((UNRESERVED.pods[0], UNRESERVED.services[1]),)


def free_of_host_ports(node: LocalNode, family: Family, ports: SnatRange) -> Iterator[tuple[int, Condition, SnatRange]]:
    """Translated connections must not use the port of a connection that the host opened before it reserved `ports`.

    Yields for each destination of such connections: what to add to the priority of the general flow, the condition for
    packets to that destination, and the part of `ports` that they may use.
    """
    taken: dict[tuple[int, IPAddress | None, int], set[int]] = {}
    for held in node.host_connections:
        if ports[0] <= held.port <= ports[1] and (held.remote is None or family_of(held.remote) is family):
            taken.setdefault((held.protocol, held.remote, held.remote_port), set()).add(held.port)
    for (number, remote, remote_port), to_there in taken.items():
        if remote is None:
            yield 1, protocol(family, number), largest_gap(ports, to_there)
        else:
            packets = (*destination(remote), *destination_port(family, number, remote_port))
            yield 2, packets, largest_gap(ports, to_there | taken.get((number, None, 0), set()))


def largest_gap(ports: SnatRange, taken: Collection[int]) -> SnatRange:
    """The longest part of `ports` without a taken port; all of `ports` if every port is taken."""
    ends = [ports[0] - 1, *sorted(taken), ports[1] + 1]
    first, last = max(((a + 1, b - 1) for a, b in pairwise(ends)), key=lambda gap: gap[1] - gap[0])
    return (first, last) if first <= last else ports
