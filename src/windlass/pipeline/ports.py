"""Classification by port, and output: the two ends of the pipeline (design note 004)."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family
from windlass.model.nodes import LocalNode
from windlass.openflow.actions import BACK, Output
from windlass.openflow.conditions import ARP, MULTICAST_MAC, TAGGED, destination, icmp, ip, protocol
from windlass.openflow.fields import ETH_DST, ICMP, ICMPV6, IN_PORT, LOCAL_PORT, SCTP, TCP, UDP, mac
from windlass.openflow.flows import Flow
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import (
    CLASSIFIER,
    CONNTRACK_STAGE,
    L2_FORWARDING_OUT,
    NEIGHBOUR_STAGE,
    NODE_PORT_FILTER,
    UPLINK,
)
from windlass.pipeline.packet_marks import FROM_BRIDGE, FROM_GATEWAY, FROM_UPLINK, HAIRPIN, OUT_PORT
from windlass.pipeline.priorities import HIGH, LOW, NORMAL, TOP
from windlass.pipeline.responders import SOLICITATION


def flows(node: LocalNode) -> Iterator[Flow]:
    yield from bridge(node)
    yield from uplink(node)
    yield from gateway(node)
    for family in node.families:
        yield from to_node(node, family)
    yield L2_FORWARDING_OUT.flow(HIGH, HAIRPIN).then(BACK, why="from a Pod to itself: send it back to the Pod")
    yield L2_FORWARDING_OUT.flow(HIGH, IN_PORT(node.ports.gateway), OUT_PORT.is_(node.ports.gateway)).then(
        BACK, why="from the host to an endpoint that the host reaches: send it back to the host"
    )


def bridge(node: LocalNode) -> Iterator[Flow]:
    """The host's own traffic passes independently of the rest of the pipeline."""
    yield CLASSIFIER.flow(NORMAL, IN_PORT(LOCAL_PORT)).then(
        Output(node.ports.uplink), why="from the host to the network, tunnelled packets included: send it to the wire"
    )
    for family in node.families:
        yield CLASSIFIER.flow(TOP, IN_PORT(LOCAL_PORT), destination(node.pod_cidrs[family])).then(
            FROM_BRIDGE.set(),
            goto(CONNTRACK_STAGE),
            why="from the host's bridge interface to a local Pod: look up its connection",
        )


def uplink(node: LocalNode) -> Iterator[Flow]:
    # The NIC is promiscuous: it also delivers frames for other machines.
    for addressed, kind in ((ETH_DST(mac(node.uplink_mac)), "this Node's MAC"), (MULTICAST_MAC, "a multicast MAC")):
        yield CLASSIFIER.flow(NORMAL, IN_PORT(node.ports.uplink), addressed).then(
            FROM_UPLINK.set(),
            goto(UPLINK),
            why=f"from the wire to {kind}: check whether it is for the host, a Pod or a Service",
        )
    yield UPLINK.flow(TOP + 2, TAGGED).then(
        Output(LOCAL_PORT),
        why="from the wire with a VLAN tag, so for a VLAN interface of the host: deliver to the host",
    )


def to_node(node: LocalNode, family: Family) -> Iterator[Flow]:
    """TCP, UDP, SCTP and ICMP from the wire to the Node IP, except what other flows look up because of port or type."""
    serves, tracks_others = node.serves_node_ports(node.addresses[family].ip), datapath_of(node).others
    numbers = (TCP, UDP, SCTP, ICMP if family is Family.IPV4 else ICMPV6)
    for transport in [protocol(family, number) for number in numbers] if tracks_others else [()] if serves else []:
        start = UPLINK.flow(LOW, destination(node.addresses[family].ip), transport)
        if serves:
            yield start.then(goto(NODE_PORT_FILTER), why="to the Node IP: check whether the port is a NodePort")
        else:
            yield start.then(Output(LOCAL_PORT), why="to the Node IP, which serves no NodePorts: deliver to the host")


def gateway(node: LocalNode) -> Iterator[Flow]:
    """What the host sends towards Pods."""
    received = IN_PORT(node.ports.gateway)
    why = "ARP or neighbour solicitation of the host for the address of a Pod or peer: answer it"
    yield CLASSIFIER.flow(NORMAL, received, ARP).then(FROM_GATEWAY.set(), goto(NEIGHBOUR_STAGE), why=why)
    if Family.IPV6 in node.families:
        yield CLASSIFIER.flow(NORMAL, received, icmp(Family.IPV6, SOLICITATION)).then(
            FROM_GATEWAY.set(), goto(NEIGHBOUR_STAGE), why=why
        )
    for family in node.families:
        yield CLASSIFIER.flow(LOW, received, ip(family)).then(
            FROM_GATEWAY.set(), goto(CONNTRACK_STAGE), why="from the host to Pods or Services: look up its connection"
        )
