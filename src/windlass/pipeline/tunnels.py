"""The tunnel between Nodes: which packets are accepted from it; only Nodes can reach its port.

A tunnelled packet carries no proof of its origin. It is accepted if its outer source is the address of a peer and its
inner source belongs to that peer; a machine that can send with the outer source of a peer looks like the peer.
Packets of Pods to the tunnel's port are dropped, because they would leave with the address of their Node.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family
from windlass.model.nodes import LocalNode, Peer
from windlass.openflow.actions import Output
from windlass.openflow.conditions import TAGGED, destination, destination_port, source, tunnel_source
from windlass.openflow.fields import IN_PORT, LOCAL_PORT, UDP
from windlass.openflow.flows import Flow
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import CLASSIFIER, CONNTRACK_STAGE, CONNTRACK_STATE, L3_FORWARDING, UPLINK
from windlass.pipeline.packet_marks import FROM_TUNNEL
from windlass.pipeline.priorities import DEFAULT, HIGH, NORMAL, TOP
from windlass.pipeline.routing import is_direct, out_of_gateway
from windlass.pipeline.tracking import NEW, REPLY


def flows(node: LocalNode) -> Iterator[Flow]:
    if node.tunnel_port is None:
        return
    yield CLASSIFIER.flow(TOP, IN_PORT(node.ports.tunnel), TAGGED).drop(
        why="from the tunnel with a VLAN tag, which no peer sends: drop"
    )
    for family in node.families:
        yield from closed_port(node, family, node.tunnel_port)
        yield from replies_to_the_node(node, family)


def closed_port(node: LocalNode, family: Family, port: int) -> Iterator[Flow]:
    """Tunnelled packets of peers go from the wire directly to the host. Packets to the port that reach L3Forwarding
    come from somewhere else, and are dropped.

    Fragments also reach L3Forwarding. A peer never sends any, but a Pod of another Node may, because the switch there
    cannot match their port.
    """
    to_tunnel = destination_port(family, UDP, port)
    yield UPLINK.flow(TOP, destination(node.addresses[family].ip), to_tunnel).then(
        Output(LOCAL_PORT), why="tunnelled packet to this Node: deliver to the host, which unpacks it"
    )
    for address in (*node.own_addresses(family), node.gateway(family)):
        yield L3_FORWARDING.flow(TOP, destination(address), to_tunnel).drop(
            why="to the tunnel port of this Node, but not from a peer Node: drop"
        )
    yield L3_FORWARDING.flow(DEFAULT + 1, to_tunnel).drop(
        why="to the tunnel port of a machine outside: drop, as from the Node IP it would look like a tunnelled packet"
    )


def replies_to_the_node(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Pods of peers may reply to connections of this host that have the Node IP as source; other packets to that
    address are dropped. Replies that UnSNAT has translated already have another destination.
    """
    to_node = (*FROM_TUNNEL, *destination(node.addresses[family].ip))
    yield CONNTRACK_STATE.flow(TOP + 1, to_node, NEW).drop(
        why="from the tunnel to the Node IP, but not a reply to a connection of this host: drop"
    )
    yield L3_FORWARDING.flow(HIGH, to_node, REPLY).then(
        *out_of_gateway(node), why="from the tunnel, reply to a connection of this host: send it to the host"
    )
    yield L3_FORWARDING.flow(NORMAL + 1, to_node).drop(
        why="from the tunnel to the Node IP, of no known connection: drop"
    )


def peer_flows(node: LocalNode, peer: Peer) -> Iterator[Flow]:
    if node.tunnel_port is None:
        return
    for family in node.families:
        if family not in peer.pod_cidrs:
            continue
        # The peer's Pods, its gateway, and processes of its host that send from the Node IP.
        inner_sources = (peer.pod_cidrs[family], *((peer.addresses[family],) if family in peer.addresses else ()))
        to_pods = destination(node.pod_cidrs[family])
        for outer in (one for one in Family if one in node.addresses and one in peer.addresses):
            from_peer = (IN_PORT(node.ports.tunnel), tunnel_source(peer.addresses[outer]))
            for inner in inner_sources:
                yield CLASSIFIER.flow(NORMAL, from_peer, source(inner), to_pods).then(
                    FROM_TUNNEL.set(),
                    goto(CONNTRACK_STAGE),
                    why=f"from the tunnel, of a Pod or the host of {peer.name}: look up its connection",
                )
            yield CLASSIFIER.flow(
                NORMAL, from_peer, source(peer.pod_cidrs[family]), destination(node.addresses[family].ip)
            ).then(
                FROM_TUNNEL.set(),
                goto(CONNTRACK_STAGE),
                why=f"from the tunnel, of a Pod of {peer.name} to the Node IP: look up whether it is a reply",
            )
        if not is_direct(node, peer, family):
            yield UPLINK.flow(TOP + 1, source(peer.pod_cidrs[family])).drop(
                why=f"from the wire with the source of a Pod of {peer.name}, which sends through the tunnel: drop"
            )
