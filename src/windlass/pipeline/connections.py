"""Connection tracking: look-up, state, commit, and the translation of Pods to their Node's address."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family
from windlass.model.nodes import LocalNode
from windlass.openflow.actions import BACK, Ct, Nat, Output, Set
from windlass.openflow.fields import (
    ETH_DST,
    ICMP,
    ICMPV6,
    IN_PORT,
    IP_FRAG,
    IPV6_FRAGMENT,
    LOCAL_PORT,
    SCTP,
    TCP,
    UDP,
    destination,
    destination_port,
    icmp,
    ip,
    mac,
    protocol,
)
from windlass.openflow.flows import Flow
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import (
    CLASSIFIER,
    CONNTRACK,
    CONNTRACK_COMMIT,
    CONNTRACK_STATE,
    CT_SERVICE,
    CT_SNAT,
    FROM_UPLINK,
    HIGH,
    INVALID,
    L2_FORWARDING_OUT,
    L3_FORWARDING,
    LOW,
    MISS,
    NEW,
    NODE_STAND_IN,
    NORMAL,
    POD_ZONE,
    SNAT,
    SNAT_PORT_MASK,
    SNAT_PORTS,
    TOP,
    UN_SNAT,
    UNTRACKED,
    UPLINK,
)

ECHO_REQUEST = {Family.IPV4: 8, Family.IPV6: 128}
ECHO_REPLY = {Family.IPV4: 0, Family.IPV6: 129}
ANY_FRAGMENT = IP_FRAG(1, 1)


def flows(node: LocalNode) -> Iterator[Flow]:
    for family in node.families:
        yield from look_up(node, family)
        yield from answers_to_pods(node, family)
        if datapath_of(node).routes_answers:
            yield from returned_by_host(node, family)
        yield from commit(node, family)
    yield from state()


def look_up(node: LocalNode, family: Family) -> Iterator[Flow]:
    datapath = datapath_of(node)
    known = Ct(POD_ZONE, table=CONNTRACK_STATE.number, nat=Nat())
    if datapath.others:
        yield CONNTRACK.flow(MISS, ip(family)).then(known, why="look its connection up and translate it")
        return
    echoes = (icmp(family, ECHO_REQUEST[family]), icmp(family, ECHO_REPLY[family]))
    for tracked in (
        *(protocol(family, number) for number in datapath.transports),
        *((icmp(family),) if datapath.icmp_errors else echoes),
        *((protocol(family, IPV6_FRAGMENT),) if family is Family.IPV6 else ()),
    ):
        yield CONNTRACK.flow(NORMAL, tracked).then(known, why="look its connection up and translate it")
    yield CONNTRACK.flow(MISS, ip(family)).then(
        goto(L3_FORWARDING), why="a protocol that this datapath cannot track continues untracked"
    )


def answers_to_pods(node: LocalNode, family: Family) -> Iterator[Flow]:
    """From the wire to the Node's address: only what can be an answer to a translated Pod is looked up.

    The host's own traffic never enters connection tracking, but for the few packets that look like such an answer.
    """
    to_node = destination(node.addresses[family].ip)
    datapath = datapath_of(node)
    for number in datapath.transports:
        yield UPLINK.flow(NORMAL, to_node, destination_port(family, number, *SNAT_PORT_MASK)).then(
            goto(UN_SNAT), why="to a port that Pods use as their Node: an answer to one of them?"
        )
    yield UPLINK.flow(NORMAL, to_node, icmp(family, ECHO_REPLY[family])).then(
        goto(UN_SNAT), why="echo reply from the wire: look up whether a Pod left as the Node to ask for it"
    )
    yield UPLINK.flow(NORMAL, to_node, ANY_FRAGMENT).then(
        goto(UN_SNAT), why="a fragment has no port to tell: connection tracking reassembles it"
    )
    if datapath.others:
        yield UPLINK.flow(LOW - 1, to_node).then(
            goto(UN_SNAT),
            why="a protocol without ports, to the Node: look up whether it is a reply to a Pod",
        )
        if not node.serves_node_ports(node.addresses[family].ip):
            for number in host_protocols(family):
                yield UPLINK.flow(LOW, to_node, protocol(family, number)).then(
                    Output(LOCAL_PORT), why="to another port of the Node: deliver to the host"
                )
    yield CONNTRACK_STATE.flow(HIGH, FROM_UPLINK, to_node, INVALID).then(
        Output(LOCAL_PORT), why="of no connection of a Pod: it was for the host after all"
    )
    yield L3_FORWARDING.flow(HIGH, FROM_UPLINK, to_node, CT_SERVICE.unset).then(
        Output(LOCAL_PORT), why="not translated to a Pod's address: it was for the host after all"
    )


def host_protocols(family: Family) -> tuple[int, ...]:
    """From the wire to the Node these need no look-up, unless their port or type asks for it."""
    return TCP, UDP, SCTP, ICMP if family is Family.IPV4 else ICMPV6


def returned_by_host(node: LocalNode, family: Family) -> Iterator[Flow]:
    """The host routes what Pods send as their Node. What it says about it, and replies by its other NICs, come here."""
    gateway, node_ip = IN_PORT(node.ports.gateway), node.addresses[family].ip
    yield CLASSIFIER.flow(HIGH, gateway, destination(NODE_STAND_IN[family])).then(
        Set(ETH_DST(mac(node.uplink_mac))),
        Set(destination(node_ip)[1]),
        FROM_UPLINK.set(),
        goto(UPLINK),
        why="the host returns an ICMP error or a reply for a Pod that left as the Node: as if it came from the wire",
    )
    yield CONNTRACK_STATE.flow(TOP + 1, gateway, FROM_UPLINK, destination(node_ip), INVALID).then(
        Set(ETH_DST(mac(node.gateway_mac))),
        BACK,
        why="about no connection of a Pod: back to the host, which sent it here in doubt",
    )


def state() -> Iterator[Flow]:
    yield CONNTRACK_STATE.flow(NORMAL, INVALID).drop(
        why="untranslated or out of its connection's window: passing it on would break that connection"
    )
    yield L2_FORWARDING_OUT.flow(TOP, INVALID).drop(
        why="connection tracking could not translate it: it must not leave untranslated"
    )
    yield CONNTRACK_STATE.flow(MISS).then(goto(L3_FORWARDING), why="new or known: on to where it belongs")


def commit(node: LocalNode, family: Family) -> Iterator[Flow]:
    yield CONNTRACK_COMMIT.flow(HIGH, ip(family), SNAT, NEW, CT_SERVICE.unset).then(
        Ct(
            POD_ZONE,
            table=L2_FORWARDING_OUT.number,
            commit=True,
            nat=Nat(source=node.addresses[family].ip, ports=SNAT_PORTS),
            sets=(CT_SNAT.set(),),
        ),
        why="a Pod's first packet to the outside: from now on this connection leaves as the Node",
    )
    yield CONNTRACK_COMMIT.flow(HIGH, ip(family), SNAT, UNTRACKED).drop(
        why="from a Pod to the outside in a protocol that this datapath cannot track: it must not leave untranslated"
    )
    yield CONNTRACK_COMMIT.flow(NORMAL, ip(family), NEW, CT_SERVICE.unset).then(
        Ct(POD_ZONE, commit=True),
        goto(L2_FORWARDING_OUT),
        why="the first packet of a connection: remember it",
    )
    yield CONNTRACK_COMMIT.flow(MISS, ip(family)).then(goto(L2_FORWARDING_OUT), why="known, or not tracked")
