"""Packets to a Service without endpoints: the agent answers them with a TCP reset or an ICMP unreachable.

Meters in the switch limit how many packets the agent gets, so that a flood costs it little. Pods are spread over
several meters by their address, so that a Pod that floods delays the rejects of few others.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.nodes import LocalNode
from windlass.openflow.actions import ToController
from windlass.openflow.conditions import ip, source_bits
from windlass.openflow.flows import Flow, Meter
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.layout import SERVICE_REJECT
from windlass.pipeline.packet_marks import FROM_GATEWAY, FROM_POD
from windlass.pipeline.priorities import DEFAULT, NORMAL
from windlass.pipeline.reserved import HOST_METER, OUTSIDE_METER, POD_METERS, REJECT, REJECT_BURST, REJECTS_PER_SECOND


def flows(node: LocalNode) -> Iterator[Flow]:
    metered = datapath_of(node).meters
    for family in node.families:
        yield SERVICE_REJECT.flow(DEFAULT, ip(family)).then(
            ToController(REJECT, meter=OUTSIDE_METER if metered else 0),
            why="to a Service without endpoints: the agent rejects it, at a limited rate",
        )
        for index, meter in enumerate(POD_METERS if metered else ()):
            yield SERVICE_REJECT.flow(NORMAL, FROM_POD, source_bits(family, index, len(POD_METERS) - 1)).then(
                ToController(REJECT, meter=meter),
                why="from a Pod to a Service without endpoints: the agent rejects it, at a rate limited for this Pod "
                "and others with the same lowest address bits",
            )
    if metered:
        yield SERVICE_REJECT.flow(NORMAL, FROM_GATEWAY).then(
            ToController(REJECT, meter=HOST_METER),
            why="from the host to a Service without endpoints: the agent rejects it, at a limited rate",
        )


def meters(node: LocalNode) -> Iterator[Meter]:
    if datapath_of(node).meters:
        for meter in POD_METERS:
            yield Meter(meter, REJECTS_PER_SECOND, REJECT_BURST, "packets of Pods to reject")
        yield Meter(HOST_METER, REJECTS_PER_SECOND, REJECT_BURST, "packets of the host to reject")
        yield Meter(OUTSIDE_METER, REJECTS_PER_SECOND, REJECT_BURST, "packets from outside to reject")
