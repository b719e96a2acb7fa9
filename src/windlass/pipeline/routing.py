"""L3Forwarding: where an address is, and so by which port and with which MAC the packet leaves.

No TTL is decremented here: nothing can circle, for OpenFlow never sends a packet back out of the port it came in by
unless told to, and the host decrements what it forwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Network

from windlass.model.families import Family, IPAddress, IPNetwork
from windlass.model.nodes import AttachedPod, LocalNode, Peer, TrafficMode
from windlass.openflow.actions import Action, Set
from windlass.openflow.fields import (
    ETH_DST,
    ETH_SRC,
    IN_PORT,
    destination,
    ip,
    mac,
    source,
    tunnel_destination,
)
from windlass.openflow.flows import Flow
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import (
    CONNTRACK_COMMIT,
    CT_MASQUERADE,
    CT_SERVICE,
    CT_TO_NODE,
    FROM_GATEWAY,
    FROM_POD,
    HAIRPIN,
    HIGH,
    L3_FORWARDING,
    LOW,
    MISS,
    NORMAL,
    OUT_PORT,
    SNAT,
    TOP,
    UN_SNAT,
    UPLINK,
    VIRTUAL_ADDRESSES,
    VIRTUAL_MAC,
)

MULTICAST: dict[Family, IPNetwork] = {Family.IPV4: IPv4Network("224.0.0.0/4"), Family.IPV6: IPv6Network("ff00::/8")}
BROADCAST = IPv4Address("255.255.255.255")


def flows(node: LocalNode) -> Iterator[Flow]:
    for family in node.families:
        yield from to_host(node, family)
        yield from forged_by_the_wire(node, family)
        yield from to_nobody(node, family)
        yield from pod_to_external(node, family)
        if node.mode is not TrafficMode.ENCAP:
            yield from from_the_wire(node, family)


def to_host(node: LocalNode, family: Family) -> Iterator[Flow]:
    yield L3_FORWARDING.flow(NORMAL, destination(node.gateway(family))).then(
        *out_of_gateway(node), why="to the host's end of the Pod network"
    )
    for address in node.own_addresses(family):
        yield L3_FORWARDING.flow(NORMAL, destination(address)).then(
            *out_of_gateway(node),
            why="to its own Node, from a Pod or by a Service: who asks is seen, the host answers by the gateway",
        )


def to_nobody(node: LocalNode, family: Family) -> Iterator[Flow]:
    yield L3_FORWARDING.flow(LOW, destination(node.pod_cidrs[family])).drop(why="no Pod has this address of ours")
    yield L3_FORWARDING.flow(HIGH, destination(MULTICAST[family])).drop(why="no multicast leaves a Pod")
    if family is Family.IPV4:
        yield L3_FORWARDING.flow(HIGH, destination(BROADCAST)).drop(why="no broadcast leaves a Pod")


def pod_to_external(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Design note 004, "SNAT configuration"; the translation itself is in `connections`."""
    yield L3_FORWARDING.flow(MISS, ip(family), FROM_POD).then(
        SNAT.set(),
        *out_of_gateway(node),
        why="no Pod and no Node has this address: it is outside, and the host knows the way",
    )


def from_the_wire(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Design note 003: requests from remote Pods and hosts, and replies, straight to the Pod."""
    yield UPLINK.flow(NORMAL, destination(node.pod_cidrs[family])).then(
        goto(UN_SNAT), why="for a local Pod, as it is: the underlay routes PodCIDRs"
    )


def forged_by_the_wire(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Sources that are on this side of the wire. The host itself refuses its own addresses as a source."""
    to_pods = destination(node.pod_cidrs[family])
    yield UPLINK.flow(TOP + 1, source(node.pod_cidrs[family])).drop(
        why="from the wire with a source that is a Pod's or the gateway's of this Node: forged"
    )
    yield UPLINK.flow(TOP, source(node.addresses[family].ip), to_pods).drop(
        why="from the wire to a Pod, with this Node's address as the source: forged"
    )
    for network in VIRTUAL_ADDRESSES[family]:
        for reserved in (source(network), destination(network)):
            yield UPLINK.flow(TOP + 1, reserved).drop(
                why="from the wire, with an address that only the host uses on its way to Services"
            )


def to_pod(pod: AttachedPod, address: IPAddress) -> Iterator[Flow]:
    yield L3_FORWARDING.flow(NORMAL, destination(address)).then(
        Set(ETH_SRC(VIRTUAL_MAC)),
        Set(ETH_DST(mac(pod.mac))),
        OUT_PORT.load(pod.ofport),
        goto(CONNTRACK_COMMIT),
        why=f"to Pod {pod.key}",
    )
    yield L3_FORWARDING.flow(HIGH, IN_PORT(pod.ofport), destination(address)).then(
        Set(ETH_SRC(VIRTUAL_MAC)),
        Set(ETH_DST(mac(pod.mac))),
        HAIRPIN.set(),
        goto(CONNTRACK_COMMIT),
        why=f"Pod {pod.key} to itself, by a Service, and its answer",
    )


def peer_flows(node: LocalNode, peer: Peer) -> Iterator[Flow]:
    for family in node.families:
        if family not in peer.pod_cidrs:
            continue
        to_its_pods = L3_FORWARDING.flow(NORMAL, destination(peer.pod_cidrs[family]))
        if is_direct(node, peer, family):
            yield to_its_pods.then(
                *out_of_gateway(node), why=f"to a Pod of {peer.name}, as it is: the host knows the way"
            )
            # The endpoint answers to the Node IP by the underlay. Through a tunnel no answer to a Node IP is accepted.
            by_policy_local = (*CT_SERVICE, *CT_TO_NODE, CT_MASQUERADE.unset)
            itself = (*FROM_GATEWAY, *source(node.gateway(family)))
            yield L3_FORWARDING.flow(HIGH, itself, by_policy_local, destination(peer.pod_cidrs[family])).then(
                SNAT.set(),
                *out_of_gateway(node),
                why=f"the Node itself by its own NodePort, policy Local, to a Pod of {peer.name}: it sees the Node IP",
            )
        elif (end := tunnel_end(node, peer)) is None:
            yield to_its_pods.drop(why=f"to a Pod of {peer.name}: the two Nodes have no address family in common")
        else:
            yield to_its_pods.then(
                Set(ETH_DST(VIRTUAL_MAC)),
                Set(tunnel_destination(end)),
                OUT_PORT.load(node.ports.tunnel),
                goto(CONNTRACK_COMMIT),
                why=f"to a Pod of {peer.name}, through the tunnel",
            )


def is_direct(node: LocalNode, peer: Peer, family: Family) -> bool:
    """Does traffic to this peer's Pods go without a tunnel?"""
    match node.mode:
        case TrafficMode.ENCAP:
            return False
        case TrafficMode.NO_ENCAP:
            return True
        case TrafficMode.HYBRID:
            return family in peer.addresses and peer.addresses[family] in node.addresses[family].network


def tunnel_end(node: LocalNode, peer: Peer) -> IPAddress | None:
    """Both families of Pod traffic ride in one tunnel: over IPv4 where both Nodes have it."""
    common = (family for family in Family if family in node.addresses and family in peer.addresses)
    return next((peer.addresses[family] for family in common), None)


def tunnel_ends(node: LocalNode, peers: Iterable[Peer]) -> set[IPAddress]:
    """Where tunnels of this Node lead to."""
    tunnelled = (
        peer for peer in peers if any(not is_direct(node, peer, f) for f in node.families if f in peer.pod_cidrs)
    )
    return {end for peer in tunnelled if (end := tunnel_end(node, peer)) is not None}


def out_of_gateway(node: LocalNode) -> tuple[Action, ...]:
    return (
        Set(ETH_SRC(VIRTUAL_MAC)),
        Set(ETH_DST(mac(node.gateway_mac))),
        OUT_PORT.load(node.ports.gateway),
        goto(CONNTRACK_COMMIT),
    )
