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


# Linux chooses none of these ports for the host by itself.
UNRESERVED = SnatPorts(
    pods=SNAT_PORTS, services=SERVICE_SNAT_PORTS, pod_replies=(SNAT_PORTS,), service_replies=(SERVICE_SNAT_PORTS,)
)
# Where the host reserves HOST_RESERVED. No port of Pods here is a port of Services above, nor the other way round: so
# connections that were translated before the reservation keep their ports and their replies.
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


BESIDE_THE_HOST = ", by a port that the host itself does not use to that destination"  # the `why` of such flows


def snat_ports(node: LocalNode) -> SnatPorts:
    return RESERVED if node.ports_reserved else UNRESERVED


def origins_of_replies(node: LocalNode) -> tuple[Mark, ...]:
    """From where replies to the Node IP come: endpoints outside, and Pods of peers behind the tunnel."""
    return (FROM_UPLINK,) if node.tunnel_port is None else (FROM_UPLINK, FROM_TUNNEL)


def used_ports(node: LocalNode) -> tuple[SnatRange, ...]:
    """Where replies are looked up, with those of connections from before a reservation."""
    return HOST_RESERVED if node.ports_reserved else ((UNRESERVED.pods[0], UNRESERVED.services[1]),)


def beside_the_host(node: LocalNode, family: Family, ports: SnatRange) -> Iterator[tuple[int, Condition, SnatRange]]:
    """The host opened some connections before it reserved `ports`: no translated connection may get the port of one.

    Yields for each of their destinations: how much its flow is above the general one, the packets it is for, and those
    of `ports` that they may get.
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
