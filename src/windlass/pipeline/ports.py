"""Classification by port, and output: the two ends of the pipeline (design note 004)."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family
from windlass.model.nodes import LocalNode
from windlass.openflow.actions import BACK, Output, OutputTo
from windlass.openflow.fields import (
    ARP,
    ETH_DST,
    IN_PORT,
    LOCAL_PORT,
    MULTICAST_MAC,
    TAGGED,
    destination,
    icmp,
    ip,
    mac,
)
from windlass.openflow.flows import Flow
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import (
    ARP_RESPONDER,
    CLASSIFIER,
    FROM_BRIDGE,
    FROM_GATEWAY,
    FROM_UPLINK,
    HAIRPIN,
    HIGH,
    L2_FORWARDING_OUT,
    LOW,
    NORMAL,
    OUT_PORT,
    TOP,
    UN_SNAT,
    UPLINK,
)

NEIGHBOUR_SOLICITATION = 135


def flows(node: LocalNode) -> Iterator[Flow]:
    yield from host(node)
    yield from gateway(node)
    yield from output(node)


def host(node: LocalNode) -> Iterator[Flow]:
    """The host's own traffic: between the bridge interface and the wire, whatever the rest of the pipeline holds."""
    yield CLASSIFIER.flow(NORMAL, IN_PORT(LOCAL_PORT)).then(
        Output(node.ports.uplink),
        why="the host talks to the network; tunnelled packets leave this way too",
    )
    for family in node.families:
        yield CLASSIFIER.flow(TOP, IN_PORT(LOCAL_PORT), destination(node.pod_cidrs[family])).then(
            FROM_BRIDGE.set(),
            goto(UN_SNAT),
            why="the host forwarded it to a local Pod by the bridge interface",
        )
    # The NIC is promiscuous: it also hands over frames that the network sends to other machines.
    for addressed, who in ((ETH_DST(mac(node.uplink_mac)), "this Node"), (MULTICAST_MAC, "many machines")):
        yield CLASSIFIER.flow(NORMAL, IN_PORT(node.ports.uplink), addressed).then(
            FROM_UPLINK.set(), goto(UPLINK), why=f"from the wire, for {who}"
        )
    yield UPLINK.flow(TOP + 2, TAGGED).then(
        Output(LOCAL_PORT), why="with a VLAN tag: for a VLAN interface of the host, not for Pods or Services"
    )
    yield UPLINK.flow(0).then(
        Output(LOCAL_PORT), why="the host's own: ARP, its connections, tunnelled packets to unpack"
    )


def gateway(node: LocalNode) -> Iterator[Flow]:
    """What the host sends towards Pods."""
    gateway = IN_PORT(node.ports.gateway)
    yield CLASSIFIER.flow(NORMAL, gateway, ARP).then(
        FROM_GATEWAY.set(), goto(ARP_RESPONDER), why="the host asks for a Pod's or a peer's MAC"
    )
    if Family.IPV6 in node.families:
        yield CLASSIFIER.flow(NORMAL, gateway, icmp(Family.IPV6, NEIGHBOUR_SOLICITATION)).then(
            FROM_GATEWAY.set(), goto(ARP_RESPONDER), why="the host asks for a Pod's or a peer's MAC"
        )
    for family in node.families:
        yield CLASSIFIER.flow(LOW, gateway, ip(family)).then(
            FROM_GATEWAY.set(), goto(UN_SNAT), why="the host talks to a Pod"
        )


def output(node: LocalNode) -> Iterator[Flow]:
    yield L2_FORWARDING_OUT.flow(HIGH, HAIRPIN).then(BACK, why="a Pod to itself")
    yield L2_FORWARDING_OUT.flow(HIGH, IN_PORT(node.ports.gateway), OUT_PORT.is_(node.ports.gateway)).then(
        BACK, why="from the host by way of a Service: back to the host"
    )
    yield L2_FORWARDING_OUT.flow(NORMAL).then(OutputTo(OUT_PORT.bits), why="the port that L3Forwarding chose")
