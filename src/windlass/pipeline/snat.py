"""Pods connect to the outside with the Node IP as source (design note 004, "SNAT configuration"), and get the replies.

L3Forwarding decides that a packet goes outside, ConntrackCommit translates the connection, and Uplink looks up packets
that may be replies. The host routes packets that leave. Packets that the host itself returns (ICMP errors, replies
received on its other NICs) are handled as if they came from the wire. `sctp` has SCTP without tracked ports,
`exhaustion` has connections for which no port is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from windlass.model.families import Family
from windlass.model.nodes import LocalNode
from windlass.openflow.actions import BACK, Ct, Nat, Output, Set
from windlass.openflow.conditions import destination, destination_port, icmp, ip
from windlass.openflow.fields import ETH_DST, IN_PORT, LOCAL_PORT, mac
from windlass.openflow.flows import Flow
from windlass.pipeline.connections import ANY_FRAGMENT, ECHO_REPLY
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import (
    CLASSIFIER,
    CONNTRACK_COMMIT,
    CONNTRACK_STAGE,
    CONNTRACK_STATE,
    L3_FORWARDING,
    UPLINK,
)
from windlass.pipeline.packet_marks import FROM_POD, FROM_UPLINK, SNAT
from windlass.pipeline.priorities import DEFAULT, HIGH, NORMAL, TOP
from windlass.pipeline.reserved import NODE_STAND_IN
from windlass.pipeline.routing import out_of_gateway
from windlass.pipeline.snat_ports import FREE_OF_HOST_PORTS, free_of_host_ports, snat_ports
from windlass.pipeline.tracking import CT_SERVICE, CT_SNAT, INVALID, NEW, POD_ZONE, UNTRACKED


def flows(node: LocalNode) -> Iterator[Flow]:
    for family in node.families:
        yield L3_FORWARDING.flow(DEFAULT, ip(family), FROM_POD).then(
            SNAT.set(),
            *out_of_gateway(node),
            why="from a Pod to the outside: translate the source to the Node IP, the host routes it",
        )
        yield from commit(node, family)
        yield from replies(node, family)
        yield from returned_by_host(node, family)


def commit(node: LocalNode, family: Family) -> Iterator[Flow]:
    all_ports = snat_ports(node).pods
    for above, packets, ports in ((0, ip(family), all_ports), *free_of_host_ports(node, family, all_ports)):
        yield CONNTRACK_COMMIT.flow(HIGH + above, packets, SNAT, NEW, CT_SERVICE.unset).then(
            Ct(
                POD_ZONE,
                table=CONNTRACK_COMMIT.onward,
                commit=True,
                nat=Nat(source=node.addresses[family].ip, ports=ports),
                sets=(CT_SNAT.set(),),
            ),
            why="first packet of a Pod's connection to the outside: commit the connection, with the Node IP as source"
            + (FREE_OF_HOST_PORTS if above else ""),
        )
    yield CONNTRACK_COMMIT.flow(HIGH, ip(family), SNAT, UNTRACKED).drop(
        why="from a Pod to the outside, of a protocol that this datapath cannot translate: drop"
    )


def replies(node: LocalNode, family: Family) -> Iterator[Flow]:
    """From the wire to the Node IP: only packets that may be replies to Pods are looked up.

    The host's own traffic bypasses connection tracking, except for the few packets that look like such a reply.
    """
    to_node = destination(node.addresses[family].ip)
    datapath = datapath_of(node)
    for number, ports in product(datapath.transports, snat_ports(node).pod_replies):
        yield UPLINK.flow(NORMAL, to_node, destination_port(family, number, *ports.mask)).then(
            goto(CONNTRACK_STAGE), why="to an SNAT port of Pods at the Node IP: look up whether it is a reply to a Pod"
        )
    yield UPLINK.flow(NORMAL, to_node, icmp(family, ECHO_REPLY[family])).then(
        goto(CONNTRACK_STAGE), why="echo reply to the Node IP: look up whether it is a reply to a Pod"
    )
    yield UPLINK.flow(NORMAL, to_node, ANY_FRAGMENT).then(
        goto(CONNTRACK_STAGE),
        why="fragment to the Node IP, without a port to match: connection tracking reassembles it",
    )
    if datapath.others:
        yield UPLINK.flow(DEFAULT, to_node).then(
            goto(CONNTRACK_STAGE), why="protocol without ports, to the Node IP: look up whether it is a reply to a Pod"
        )
    yield CONNTRACK_STATE.flow(HIGH, FROM_UPLINK, to_node, INVALID).then(
        Output(LOCAL_PORT), why="from the wire to the Node IP, of no Pod's connection: deliver to the host"
    )
    yield L3_FORWARDING.flow(HIGH, FROM_UPLINK, to_node, CT_SERVICE.unset).then(
        Output(LOCAL_PORT), why="from the wire to the Node IP, not translated to a Pod: deliver to the host"
    )


def returned_by_host(node: LocalNode, family: Family) -> Iterator[Flow]:
    gateway, node_ip = IN_PORT(node.ports.gateway), node.addresses[family].ip
    yield CLASSIFIER.flow(HIGH, gateway, destination(NODE_STAND_IN[family])).then(
        Set(ETH_DST(mac(node.uplink_mac))),
        Set(destination(node_ip)[1]),
        FROM_UPLINK.set(),
        goto(UPLINK),
        why="ICMP error or reset of the host to a Pod with a translated source: handle it as if from the wire",
    )
    yield CONNTRACK_STATE.flow(TOP + 1, gateway, FROM_UPLINK, destination(node_ip), INVALID).then(
        Set(ETH_DST(mac(node.gateway_mac))),
        BACK,
        why="returned by the host, but of no Pod's connection: send it back to the host",
    )
