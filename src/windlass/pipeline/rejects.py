"""Packets to a Service that nothing serves: the agent answers them with a reset or an ICMP unreachable.

Meters in the switch limit how many packets the agent gets, so that a flood costs it little. Pods are spread over
several meters by their address: a Pod that floods takes the answers of few others.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family
from windlass.model.nodes import LocalNode
from windlass.openflow.actions import ToController
from windlass.openflow.fields import IPV4_SRC, IPV6_SRC, Term, ip
from windlass.openflow.flows import Flow, Meter
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.layout import (
    FROM_GATEWAY,
    FROM_POD,
    HOST_METER,
    MISS,
    NORMAL,
    OUTSIDE_METER,
    POD_METERS,
    REJECT_BURST,
    REJECTS_PER_SECOND,
    SERVICE_REJECT,
)

REJECT = b"reject"  # the userdata that tells the agent to answer


def flows(node: LocalNode) -> Iterator[Flow]:
    if not datapath_of(node).meters:
        yield SERVICE_REJECT.flow(MISS).then(ToController(REJECT), why="to a Service without endpoints: reject")
        return
    for family in node.families:
        for index, meter in enumerate(POD_METERS):
            clients = ip(family), _lowest_bits(family, index)
            yield SERVICE_REJECT.flow(NORMAL, FROM_POD, *clients).then(
                ToController(REJECT, meter=meter),
                why="a Pod to a Service without endpoints: reject, limited for Pods with these lowest address bits",
            )
    yield SERVICE_REJECT.flow(NORMAL, FROM_GATEWAY).then(
        ToController(REJECT, meter=HOST_METER), why="the host to a Service without endpoints: reject, within a limit"
    )
    yield SERVICE_REJECT.flow(MISS).then(
        ToController(REJECT, meter=OUTSIDE_METER),
        why="from outside to a Service without endpoints: reject, within a limit",
    )


def meters(node: LocalNode) -> Iterator[Meter]:
    if datapath_of(node).meters:
        for meter in POD_METERS:
            yield Meter(meter, REJECTS_PER_SECOND, REJECT_BURST, "packets of Pods to reject")
        yield Meter(HOST_METER, REJECTS_PER_SECOND, REJECT_BURST, "packets of the host to reject")
        yield Meter(OUTSIDE_METER, REJECTS_PER_SECOND, REJECT_BURST, "packets from outside to reject")


def _lowest_bits(family: Family, value: int) -> Term:
    address = IPV4_SRC if family is Family.IPV4 else IPV6_SRC
    return address(value, len(POD_METERS) - 1)
