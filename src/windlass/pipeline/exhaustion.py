"""New connections that need SNAT but find no free port: dropped and counted, pool by pool.

In the userspace datapath, connection tracking reports the first packet of such a connection as new and does not
translate it. Without these flows it would leave with the address of the Pod or client. The kernel datapath drops the
packet itself and counts it as `insert_failed` in /proc/net/stat/nf_conntrack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from windlass.model.nodes import LocalNode
from windlass.openflow.fields import CT_ZONE
from windlass.openflow.flows import Flow
from windlass.openflow.matches import Condition
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.layout import L2_FORWARDING_OUT
from windlass.pipeline.packet_marks import FROM_UPLINK, MASQUERADE, SNAT, SNAT_VIRTUAL
from windlass.pipeline.priorities import TOP
from windlass.pipeline.reserved import GATEWAY_SNAT_PORTS, VIRTUAL_SNAT_PORTS
from windlass.pipeline.snat_ports import SnatRange, snat_ports
from windlass.pipeline.tracking import NOT_TRANSLATED, SNAT_ZONE


class Pool(NamedTuple):
    """Source ports of one address. Each destination (address, port, protocol) can use all of them."""

    name: str
    ports: Callable[[LocalNode], SnatRange]
    clients: str  # whose connections use them, in words
    condition: tuple[Condition, ...]
    priority: int = TOP

    def size(self, node: LocalNode) -> int:
        first, last = self.ports(node)
        return last - first + 1

    def flow(self) -> Flow:
        return L2_FORWARDING_OUT.flow(self.priority, *self.condition, NOT_TRANSLATED).drop(
            why=f"{self.clients}: all SNAT ports to this destination are in use: drop"
        )


POOLS = (
    Pool("pods", lambda node: snat_ports(node).pods, "Pods to the outside as the Node", (SNAT,)),
    Pool(
        "services",
        lambda node: snat_ports(node).services,
        "clients of Services to endpoints outside as the Node",
        (SNAT, CT_ZONE(SNAT_ZONE)),
        TOP + 1,
    ),
    Pool(
        "host-endpoints",
        lambda _: VIRTUAL_SNAT_PORTS,
        "clients of Services to endpoints on this host",
        (SNAT.unset, SNAT_VIRTUAL),
    ),
    Pool(
        "gateway",
        lambda _: GATEWAY_SNAT_PORTS,
        "clients of Services from outside as the gateway",
        (SNAT.unset, SNAT_VIRTUAL.unset, MASQUERADE, FROM_UPLINK),
    ),
)


def flows(node: LocalNode) -> Iterator[Flow]:
    if datapath_of(node).passes_untranslated:
        yield from (pool.flow() for pool in POOLS)
