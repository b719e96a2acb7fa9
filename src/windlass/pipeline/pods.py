"""Local Pods: what each may send (spoof guard), and how packets reach it."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Network

from windlass.model.families import Family, IPAddress, family_of
from windlass.model.nodes import AttachedPod, LocalNode
from windlass.openflow.conditions import ARP, TAGGED, destination, icmp, source
from windlass.openflow.fields import ARP_OP, ARP_SHA, ARP_SPA, ARP_TPA, ETH_SRC, IN_PORT, ND_SLL, ND_TARGET, mac
from windlass.openflow.flows import Flow
from windlass.pipeline.declarations import goto, onward
from windlass.pipeline.layout import CLASSIFIER, NEIGHBOUR_STAGE, SPOOF_GUARD, SPOOF_GUARD_STAGE
from windlass.pipeline.packet_marks import FROM_POD
from windlass.pipeline.priorities import HIGH, LOW, NORMAL, TOP
from windlass.pipeline.reserved import STAND_INS, VIRTUAL_ADDRESSES
from windlass.pipeline.responders import ARP_REQUEST, SOLICITATION
from windlass.pipeline.routing import to_pod

LINK_LOCAL = IPv6Network("fe80::/10")

# Router solicitation and advertisement, neighbour solicitation and advertisement, redirect.
NEIGHBOUR_DISCOVERY = (133, 134, SOLICITATION, 136, 137)


def flows(node: LocalNode) -> Iterator[Flow]:
    """Flows that all Pods share."""
    yield SPOOF_GUARD.flow(TOP + 1, TAGGED).drop(
        why="from a Pod with a VLAN tag: drop, the other flows would match the packet behind the tag"
    )
    for family in node.families:
        for reserved in (*VIRTUAL_ADDRESSES[family], STAND_INS[family]):
            yield SPOOF_GUARD.flow(LOW + 1, destination(reserved)).drop(
                why="from a Pod to an address that only the host may use, to reach Services: drop"
            )
    if Family.IPV6 in node.families:
        for kind in NEIGHBOUR_DISCOVERY:
            yield SPOOF_GUARD.flow(NORMAL, icmp(Family.IPV6, kind)).drop(
                why="Neighbour Discovery from a Pod, other than a solicitation as itself: drop"
            )


def pod_flows(node: LocalNode, pod: AttachedPod) -> Iterator[Flow]:
    yield CLASSIFIER.flow(LOW, IN_PORT(pod.ofport)).then(
        FROM_POD.set(), goto(SPOOF_GUARD_STAGE), why=f"from Pod {pod.key}: check its source addresses"
    )
    for address in pod.addresses:
        if family_of(address) in node.families:
            yield from own_addresses(pod, address)
            yield from to_pod(pod, address)


def own_addresses(pod: AttachedPod, address: IPAddress) -> Iterator[Flow]:
    """The Pod may send from its own MAC and IP address; everything else misses the table and is dropped."""
    sender = (IN_PORT(pod.ofport), ETH_SRC(mac(pod.mac)))
    yield SPOOF_GUARD.flow(LOW, sender, source(address)).then(
        onward(SPOOF_GUARD), why=f"Pod {pod.key} sends from its own address: look up the connection"
    )
    why = f"Pod {pod.key} asks for the MAC of a neighbour: answer it"
    duplicate = f"Pod {pod.key} checks its own address for duplicates: drop, an answer would look like a second owner"
    if isinstance(address, IPv4Address):
        asks = (ARP, ARP_OP(ARP_REQUEST), ARP_SHA(mac(pod.mac)), ARP_SPA(int(address)))
        yield SPOOF_GUARD.flow(NORMAL, sender, asks).then(goto(NEIGHBOUR_STAGE), why=why)
        yield SPOOF_GUARD.flow(HIGH, sender, asks, ARP_TPA(int(address))).drop(why=duplicate)
    else:
        asks_neighbour = (icmp(Family.IPV6, SOLICITATION), ND_SLL(mac(pod.mac)))
        # Linux re-checks a known neighbour from its link-local address.
        for origin in (source(address), source(LINK_LOCAL)):
            yield SPOOF_GUARD.flow(HIGH, sender, *asks_neighbour, origin).then(goto(NEIGHBOUR_STAGE), why=why)
        yield SPOOF_GUARD.flow(TOP, sender, icmp(Family.IPV6, SOLICITATION), ND_TARGET(int(address))).drop(
            why=duplicate
        )
