"""Local Pods: what each may send (spoof guard), and how packets reach it."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Network

from windlass.model.families import Family, IPAddress, family_of
from windlass.model.nodes import AttachedPod, LocalNode
from windlass.openflow.fields import (
    ARP,
    ARP_OP,
    ARP_SHA,
    ARP_SPA,
    ARP_TPA,
    ETH_SRC,
    IN_PORT,
    ND_SLL,
    ND_TARGET,
    TAGGED,
    destination,
    icmp,
    mac,
    source,
)
from windlass.openflow.flows import Flow
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import (
    ARP_RESPONDER,
    CLASSIFIER,
    FROM_POD,
    HIGH,
    LOW,
    NORMAL,
    SPOOF_GUARD,
    STAND_INS,
    TOP,
    UN_SNAT,
    VIRTUAL_ADDRESSES,
)
from windlass.pipeline.responders import ARP_REQUEST, SOLICITATION
from windlass.pipeline.routing import to_pod

LINK_LOCAL = IPv6Network("fe80::/10")

# Router solicitation and advertisement, neighbour solicitation and advertisement, redirect.
NEIGHBOUR_DISCOVERY = (133, 134, SOLICITATION, 136, 137)


def flows(node: LocalNode) -> Iterator[Flow]:
    """What holds for all Pods."""
    yield SPOOF_GUARD.flow(TOP + 1, TAGGED).drop(
        why="a Pod sends a VLAN tag: the other flows would match the packet behind it and pass it on with its tag"
    )
    for family in node.families:
        for reserved in (*VIRTUAL_ADDRESSES[family], STAND_INS[family]):
            yield SPOOF_GUARD.flow(LOW + 1, destination(reserved)).drop(
                why="a Pod addresses what only the host uses on its way to Services"
            )
    if Family.IPV6 in node.families:
        for kind in NEIGHBOUR_DISCOVERY:
            yield SPOOF_GUARD.flow(NORMAL, icmp(Family.IPV6, kind)).drop(
                why="a Pod may ask for neighbours as itself, never tell: nobody here needs to learn from it"
            )


def pod_flows(node: LocalNode, pod: AttachedPod) -> Iterator[Flow]:
    yield CLASSIFIER.flow(LOW, IN_PORT(pod.ofport)).then(FROM_POD.set(), goto(SPOOF_GUARD), why=f"from Pod {pod.key}")
    for address in pod.addresses:
        if family_of(address) in node.families:
            yield from speaks_as_itself(pod, address)
            yield from to_pod(pod, address)


def speaks_as_itself(pod: AttachedPod, address: IPAddress) -> Iterator[Flow]:
    """MAC and address must be the Pod's own; everything else misses the table and is dropped."""
    sender = (IN_PORT(pod.ofport), ETH_SRC(mac(pod.mac)))
    yield SPOOF_GUARD.flow(LOW, sender, source(address)).then(
        goto(UN_SNAT), why=f"Pod {pod.key} sends from its own address"
    )
    if isinstance(address, IPv4Address):
        asks = (ARP, ARP_OP(ARP_REQUEST), ARP_SHA(mac(pod.mac)), ARP_SPA(int(address)))
        yield SPOOF_GUARD.flow(NORMAL, sender, asks).then(
            goto(ARP_RESPONDER), why=f"Pod {pod.key} asks for a neighbour"
        )
        yield SPOOF_GUARD.flow(HIGH, sender, asks, ARP_TPA(int(address))).drop(
            why=f"Pod {pod.key} announces its own address: an answer would look like a second owner"
        )
    else:
        asks_neighbour = (icmp(Family.IPV6, SOLICITATION), ND_SLL(mac(pod.mac)))
        # Linux re-checks a known neighbour from its link-local address.
        for origin in (source(address), source(LINK_LOCAL)):
            yield SPOOF_GUARD.flow(HIGH, sender, *asks_neighbour, origin).then(
                goto(ARP_RESPONDER), why=f"Pod {pod.key} asks for a neighbour"
            )
        yield SPOOF_GUARD.flow(TOP, sender, icmp(Family.IPV6, SOLICITATION), ND_TARGET(int(address))).drop(
            why=f"Pod {pod.key} asks for its own address: an answer would look like a second owner"
        )
