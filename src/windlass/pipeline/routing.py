"""L3Forwarding: where the destination is, and therefore by which port and with which MAC address the packet leaves.

The switch does not decrement the TTL. Packets cannot loop: OpenFlow sends a packet out of its ingress port only if a
flow says so, and the host decrements the TTL of packets that it forwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Network

from windlass.model.families import Family, IPAddress, IPNetwork, family_of
from windlass.model.nodes import AttachedPod, LocalNode, Peer, TrafficMode
from windlass.model.services import ServedService
from windlass.openflow.actions import Action, Set
from windlass.openflow.conditions import destination, source, tunnel_destination
from windlass.openflow.fields import ETH_DST, ETH_SRC, IN_PORT, mac
from windlass.openflow.flows import Flow
from windlass.pipeline.declarations import goto, onward
from windlass.pipeline.layout import CONNTRACK_STAGE, L3_FORWARDING, UPLINK
from windlass.pipeline.packet_marks import FROM_GATEWAY, FROM_POD, HAIRPIN, OUT_PORT, SNAT
from windlass.pipeline.priorities import HIGH, LOW, NORMAL, TOP
from windlass.pipeline.reserved import VIRTUAL_ADDRESSES, VIRTUAL_MAC
from windlass.pipeline.tracking import CT_MASQUERADE, CT_SERVICE, CT_TO_NODE, REPLY

MULTICAST: dict[Family, IPNetwork] = {Family.IPV4: IPv4Network("224.0.0.0/4"), Family.IPV6: IPv6Network("ff00::/8")}
BROADCAST = IPv4Address("255.255.255.255")


def flows(node: LocalNode) -> Iterator[Flow]:
    for family in node.families:
        yield from to_host(node, family)
        yield from forged_sources(node, family)
        yield from unreachable(node, family)
        if node.mode is not TrafficMode.ENCAP:
            yield from from_the_wire(node, family)


def to_host(node: LocalNode, family: Family) -> Iterator[Flow]:
    yield L3_FORWARDING.flow(NORMAL, destination(node.gateway(family))).then(
        *out_of_gateway(node), why="to the gateway address of this Node: send it to the host"
    )
    for address in node.own_addresses(family):
        yield L3_FORWARDING.flow(NORMAL, destination(address)).then(
            *out_of_gateway(node),
            why="to an address of this Node, from a Pod or through a Service: send it to the host untranslated",
        )


def unreachable(node: LocalNode, family: Family) -> Iterator[Flow]:
    yield L3_FORWARDING.flow(LOW, destination(node.pod_cidrs[family])).drop(
        why="to an address of this Node's PodCIDR that no Pod has: drop"
    )
    for cidr in node.service_cidrs:
        if family_of(cidr) is family:
            yield untranslated(cidr)
    yield L3_FORWARDING.flow(HIGH, destination(MULTICAST[family])).drop(why="multicast: drop, not supported for Pods")
    if family is Family.IPV4:
        yield L3_FORWARDING.flow(HIGH, destination(BROADCAST)).drop(why="broadcast: drop, not supported for Pods")


def untranslated(cluster_ips: IPNetwork | IPAddress) -> Flow:
    """The host has routes to the switch for the same addresses. It would return the packet, and policies would take it
    for one of the Node. Nor is it committed: the client's next packet may find the Service.
    """
    return L3_FORWARDING.flow(LOW + 1, destination(cluster_ips)).drop(
        why="to a ClusterIP that no Service has yet, or that is the endpoint of another Service: drop"
    )


def service_flows(node: LocalNode, service: ServedService) -> Iterator[Flow]:
    for address in service.cluster_ips:
        if family_of(address) in node.families and not any(address in cidr for cidr in node.service_cidrs):
            yield untranslated(address)


def from_the_wire(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Design note 003: requests from remote Pods and hosts, and replies, go directly to the Pod."""
    yield UPLINK.flow(NORMAL, destination(node.pod_cidrs[family])).then(
        goto(CONNTRACK_STAGE), why="from the wire to a local Pod, without a tunnel: look up its connection"
    )


def forged_sources(node: LocalNode, family: Family) -> Iterator[Flow]:
    """Sources that cannot come from the wire. The host itself refuses its own addresses as a source."""
    to_pods = destination(node.pod_cidrs[family])
    yield UPLINK.flow(TOP + 1, source(node.pod_cidrs[family])).drop(
        why="from the wire with a source in this Node's own PodCIDR: drop, it is forged"
    )
    yield UPLINK.flow(TOP, source(node.addresses[family].ip), to_pods).drop(
        why="from the wire to a Pod with this Node's own address as source: drop, it is forged"
    )
    for network in VIRTUAL_ADDRESSES[family]:
        for reserved in (source(network), destination(network)):
            yield UPLINK.flow(TOP + 1, reserved).drop(
                why="from the wire with an address that only the host may use, to reach Services: drop"
            )


def to_pod(pod: AttachedPod, address: IPAddress) -> Iterator[Flow]:
    yield L3_FORWARDING.flow(NORMAL, destination(address)).then(
        Set(ETH_SRC(VIRTUAL_MAC)),
        Set(ETH_DST(mac(pod.mac))),
        OUT_PORT.load(pod.ofport),
        onward(L3_FORWARDING),
        why=f"to Pod {pod.key}: send it to its port",
    )
    yield L3_FORWARDING.flow(HIGH, IN_PORT(pod.ofport), destination(address)).then(
        Set(ETH_SRC(VIRTUAL_MAC)),
        Set(ETH_DST(mac(pod.mac))),
        HAIRPIN.set(),
        onward(L3_FORWARDING),
        why=f"from Pod {pod.key} to itself through a Service, or the reply: send it back to the Pod",
    )


def peer_flows(node: LocalNode, peer: Peer) -> Iterator[Flow]:
    for family in node.families:
        if family not in peer.pod_cidrs:
            continue
        to_its_pods = destination(peer.pod_cidrs[family])
        if is_direct(node, peer, family):
            there, path = out_of_gateway(node), ", without a tunnel: the host routes it"
        elif (end := tunnel_end(node, peer)) is None:
            yield L3_FORWARDING.flow(NORMAL, to_its_pods).drop(
                why=f"to a Pod of {peer.name}, but the two Nodes have no common address family: drop"
            )
            continue
        else:
            there, path = into_tunnel(node, end), ": send it through the tunnel"
            if family in peer.addresses:
                to_peer = (*destination(peer.addresses[family]), REPLY, CT_SERVICE.unset)
                yield L3_FORWARDING.flow(HIGH, FROM_POD, to_peer).then(
                    *there, why=f"reply of a Pod to the host of {peer.name}{path}, like the request"
                )
        yield L3_FORWARDING.flow(NORMAL, to_its_pods).then(*there, why=f"to a Pod of {peer.name}{path}")
        by_policy_local = (*CT_SERVICE, *CT_TO_NODE, CT_MASQUERADE.unset)
        itself = (*FROM_GATEWAY, *source(node.gateway(family)))
        yield L3_FORWARDING.flow(HIGH, itself, by_policy_local, to_its_pods).then(
            SNAT.set(),
            *there,
            why=f"from this Node to its own NodePort, policy Local, to a Pod of {peer.name}: send it with the Node IP "
            "as source",
        )


def is_direct(node: LocalNode, peer: Peer, family: Family) -> bool:
    """Whether traffic to this peer's Pods goes without a tunnel."""
    match node.mode:
        case TrafficMode.ENCAP:
            return False
        case TrafficMode.NO_ENCAP:
            return True
        case TrafficMode.HYBRID:
            return family in peer.addresses and peer.addresses[family] in node.addresses[family].network


def tunnel_end(node: LocalNode, peer: Peer) -> IPAddress | None:
    """The peer's tunnel address. One tunnel carries both families of Pod traffic, over IPv4 if both Nodes have it."""
    common = (family for family in Family if family in node.addresses and family in peer.addresses)
    return next((peer.addresses[family] for family in common), None)


def tunnel_ends(node: LocalNode, peers: Iterable[Peer]) -> set[IPAddress]:
    """The peer addresses of this Node's tunnels."""
    tunnelled = (
        peer for peer in peers if any(not is_direct(node, peer, f) for f in node.families if f in peer.pod_cidrs)
    )
    return {end for peer in tunnelled if (end := tunnel_end(node, peer)) is not None}


def into_tunnel(node: LocalNode, end: IPAddress) -> tuple[Action, ...]:
    return (
        Set(ETH_DST(VIRTUAL_MAC)),
        Set(tunnel_destination(end)),
        OUT_PORT.load(node.ports.tunnel),
        onward(L3_FORWARDING),
    )


def out_of_gateway(node: LocalNode) -> tuple[Action, ...]:
    return (
        Set(ETH_SRC(VIRTUAL_MAC)),
        Set(ETH_DST(mac(node.gateway_mac))),
        OUT_PORT.load(node.ports.gateway),
        onward(L3_FORWARDING),
    )
