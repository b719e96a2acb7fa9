"""Connection tracking: look up a packet's connection, act on its state, commit new connections.

Source translation is elsewhere: of Pods in `snat`, of clients of Services in `service_snat`.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family
from windlass.model.nodes import LocalNode, Peer
from windlass.openflow.actions import Ct, Nat
from windlass.openflow.conditions import icmp, ip, protocol, source, source_port
from windlass.openflow.fields import IP_FRAG, IPV6_FRAGMENT, TCP, TCP_DST, TCP_FLAGS, Term
from windlass.openflow.flows import Flow
from windlass.pipeline.datapaths import datapath_of
from windlass.pipeline.declarations import goto, onward
from windlass.pipeline.layout import CONNTRACK, CONNTRACK_COMMIT, CONNTRACK_STATE, L2_FORWARDING_OUT, ROUTE_STAGE
from windlass.pipeline.priorities import DEFAULT, NORMAL, TOP
from windlass.pipeline.tracking import CT_SERVICE, INVALID, NEW, POD_ZONE

ECHO_REQUEST = {Family.IPV4: 8, Family.IPV6: 128}
ECHO_REPLY = {Family.IPV4: 0, Family.IPV6: 129}
ANY_FRAGMENT = IP_FRAG(1, 1)
SYN = 0x002
EPHEMERAL = 0x8000  # this bit is set in the ports that clients get from Linux and Windows: 32768 or 49152 and more


def flows(node: LocalNode) -> Iterator[Flow]:
    for family in node.families:
        yield from look_up(node, family)
        yield CONNTRACK_COMMIT.flow(NORMAL, ip(family), NEW, CT_SERVICE.unset).then(
            Ct(POD_ZONE, commit=True),
            onward(CONNTRACK_COMMIT),
            why="first packet of a connection: commit the connection",
        )
        if not datapath_of(node).keeps_connections:
            yield from replies_of_unknown_connections(family)
    yield CONNTRACK_STATE.flow(NORMAL, INVALID).drop(
        why="invalid (untranslated, or outside of its connection's window): drop, it would break the connection"
    )
    yield L2_FORWARDING_OUT.flow(TOP, INVALID).drop(
        why="connection tracking could not translate the packet: drop it, it must not leave untranslated"
    )


def replies_of_unknown_connections(family: Family) -> Iterator[Flow]:
    """The userspace datapath loses its connections with ovs-vswitchd. If the server sends first after that, and its
    packet began a connection, policies would judge the server as the client, and not cut the real client.
    """
    yield CONNTRACK_COMMIT.flow(NORMAL + 1, *_like_a_reply(family), NEW, CT_SERVICE.unset).then(
        onward(CONNTRACK_COMMIT),
        why="reply of a TCP connection that is not known any more: send it on, and commit the client's next packet",
    )


def peer_flows(node: LocalNode, peer: Peer) -> Iterator[Flow]:
    """A Node translates clients of NodePorts to its own address, with ports below the usual ones of clients."""
    if datapath_of(node).keeps_connections:
        return
    for family in node.families:
        gateway = [peer.gateway(family)] if family in peer.pod_cidrs else []
        own = [peer.addresses[family]] if family in peer.addresses else []
        for address in (*gateway, *own):
            of_host = (*source(address), *_like_a_reply(family))
            yield CONNTRACK_COMMIT.flow(NORMAL + 2, *of_host, NEW, CT_SERVICE.unset).then(
                Ct(POD_ZONE, commit=True),
                onward(CONNTRACK_COMMIT),
                why=f"from the host of {peer.name}, whose clients may have low ports: commit the connection",
            )


def _like_a_reply(family: Family) -> tuple[Term, ...]:
    """A TCP packet from a port of a server to a port of a client, which does not begin the connection."""
    return (*source_port(family, TCP, 0, EPHEMERAL), TCP_DST(EPHEMERAL, EPHEMERAL), TCP_FLAGS(0, SYN))


def look_up(node: LocalNode, family: Family) -> Iterator[Flow]:
    datapath = datapath_of(node)
    known = Ct(POD_ZONE, table=CONNTRACK.onward, nat=Nat())
    if datapath.others:
        yield CONNTRACK.flow(DEFAULT, ip(family)).then(known, why=f"{family}: look up the connection and translate")
        return
    echoes = (icmp(family, ECHO_REQUEST[family]), icmp(family, ECHO_REPLY[family]))
    for tracked in (
        *(protocol(family, number) for number in datapath.transports),
        *((icmp(family),) if datapath.icmp_errors else echoes),
        *((protocol(family, IPV6_FRAGMENT),) if family is Family.IPV6 else ()),
    ):
        yield CONNTRACK.flow(NORMAL, tracked).then(
            known, why=f"{family}, of a protocol that this datapath tracks: look up the connection and translate"
        )
    yield CONNTRACK.flow(DEFAULT, ip(family)).then(
        goto(ROUTE_STAGE), why=f"{family}, of a protocol that this datapath cannot track: route it untracked"
    )
