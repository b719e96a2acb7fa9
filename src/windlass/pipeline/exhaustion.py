"""Connections that need another source and find no free port: dropped and counted, pool by pool.

In the userspace datapath connection tracking reports the first packet of such a connection as new and leaves it as it
is. Without these flows it would leave with the Pod's or the client's own address. The kernel's datapath drops the
packet by itself, and counts it as `insert_failed` in /proc/net/stat/nf_conntrack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from windlass.model.nodes import LocalNode
from windlass.openflow.fields import CT_ZONE
from windlass.openflow.flows import Flow
from windlass.openflow.matches import Condition
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.layout import (
    FROM_UPLINK,
    GATEWAY_SNAT_PORTS,
    L2_FORWARDING_OUT,
    MASQUERADE,
    NOT_TRANSLATED,
    SERVICE_SNAT_PORTS,
    SNAT,
    SNAT_PORTS,
    SNAT_VIRTUAL,
    SNAT_ZONE,
    TOP,
    VIRTUAL_SNAT_PORTS,
)


class Pool(NamedTuple):
    """Ports of one address. Each destination (address, port, protocol) has all of them to itself."""

    name: str
    ports: tuple[int, int]
    clients: str  # whose connections they serve, in words
    condition: tuple[Condition, ...]
    priority: int = TOP

    @property
    def size(self) -> int:
        return self.ports[1] - self.ports[0] + 1

    def flow(self) -> Flow:
        return L2_FORWARDING_OUT.flow(self.priority, *self.condition, NOT_TRANSLATED).drop(
            why=f"{self.clients}: none of the {self.size} ports is free for this destination"
        )


POOLS = (
    Pool("pods", SNAT_PORTS, "Pods to the outside as the Node", (SNAT,)),
    Pool(
        "services",
        SERVICE_SNAT_PORTS,
        "clients of Services to endpoints outside as the Node",
        (SNAT, CT_ZONE(SNAT_ZONE)),
        TOP + 1,
    ),
    Pool(
        "host-endpoints",
        VIRTUAL_SNAT_PORTS,
        "clients of Services to endpoints on this host",
        (SNAT.unset, SNAT_VIRTUAL),
    ),
    Pool(
        "gateway",
        GATEWAY_SNAT_PORTS,
        "clients of Services from outside as the gateway",
        (SNAT.unset, SNAT_VIRTUAL.unset, MASQUERADE, FROM_UPLINK),
    ),
)


def flows(node: LocalNode) -> Iterator[Flow]:
    if datapath_of(node).passes_untranslated:
        yield from (pool.flow() for pool in POOLS)
