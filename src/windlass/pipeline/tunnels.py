"""The tunnel between Nodes: what is accepted from it, and that nothing but the Nodes themselves reaches its port.

A tunnelled packet carries no proof of its origin. It is accepted if its outer source is the address of a peer and its
inner source belongs to that peer; a machine that can send with the outer source of a peer is not told from the peer.
Pods cannot: what they send outside leaves as their Node, so nothing of theirs may leave for the tunnel's port.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family
from windlass.model.nodes import LocalNode, Peer, TrafficMode
from windlass.openflow.actions import Output
from windlass.openflow.fields import (
    IN_PORT,
    LOCAL_PORT,
    TAGGED,
    UDP,
    destination,
    destination_port,
    source,
    tunnel_source,
)
from windlass.openflow.flows import Flow
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import (
    CLASSIFIER,
    FROM_TUNNEL,
    L3_FORWARDING,
    MISS,
    NORMAL,
    TOP,
    UN_SNAT,
    UPLINK,
)


def flows(node: LocalNode) -> Iterator[Flow]:
    if node.tunnel_port is None:
        return
    yield CLASSIFIER.flow(TOP, IN_PORT(node.ports.tunnel), TAGGED).drop(
        why="no peer sends VLAN tags through the tunnel"
    )
    for family in node.families:
        yield from closed_port(node, family, node.tunnel_port)


def closed_port(node: LocalNode, family: Family, port: int) -> Iterator[Flow]:
    """Whatever reaches L3Forwarding is no peer's: those packets go from the wire to the host at once.

    Unless they come in fragments. A peer never sends any, but another Node's Pod might: the switch there may see no
    port of them.
    """
    to_tunnel = destination_port(family, UDP, port)
    yield UPLINK.flow(TOP, destination(node.addresses[family].ip), to_tunnel).then(
        Output(LOCAL_PORT), why="a tunnelled packet to unpack, whatever Services and translated Pods use"
    )
    for address in (*node.own_addresses(family), node.gateway(family)):
        yield L3_FORWARDING.flow(TOP, destination(address), to_tunnel).drop(
            why="to the tunnel's port of this Node, which is for peers only"
        )
    yield L3_FORWARDING.flow(MISS + 1, to_tunnel).drop(
        why="would leave as this Node for the tunnel's port of another, which takes it for a tunnelled packet"
    )


def peer_flows(node: LocalNode, peer: Peer) -> Iterator[Flow]:
    if node.tunnel_port is None:
        return
    for family in node.families:
        if family not in peer.pod_cidrs:
            continue
        # Its Pods and its gateway, and a process of its host that sends from the Node IP.
        inner_sources = (peer.pod_cidrs[family], *((peer.addresses[family],) if family in peer.addresses else ()))
        to_pods = destination(node.pod_cidrs[family])
        for outer in (one for one in Family if one in node.addresses and one in peer.addresses):
            from_peer = (IN_PORT(node.ports.tunnel), tunnel_source(peer.addresses[outer]))
            for inner in inner_sources:
                yield CLASSIFIER.flow(NORMAL, from_peer, source(inner), to_pods).then(
                    FROM_TUNNEL.set(), goto(UN_SNAT), why=f"from a Pod or the host of {peer.name}, unpacked"
                )
        if node.mode is TrafficMode.ENCAP:
            yield UPLINK.flow(TOP, source(peer.pod_cidrs[family]), to_pods).drop(
                why=f"as a Pod of {peer.name}, but not through the tunnel"
            )
