"""ARP and Neighbour Discovery: the switch answers every request with the one virtual MAC address.

So Pods and the host's gateway interface have one neighbour only, no request is flooded, and `routing` alone sets the
MAC addresses of a packet.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.model.families import Family
from windlass.model.nodes import LocalNode
from windlass.openflow.actions import BACK, Action, Move, Set, move
from windlass.openflow.conditions import ARP, icmp
from windlass.openflow.fields import (
    ARP_OP,
    ARP_SHA,
    ARP_SPA,
    ARP_THA,
    ARP_TPA,
    ETH_DST,
    ETH_SRC,
    ICMPV6_TYPE,
    IPV6_DST,
    IPV6_SRC,
    ND_OPTIONS_TYPE,
    ND_RESERVED,
    ND_TARGET,
    ND_TLL,
)
from windlass.openflow.flows import Flow
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import ARP_RESPONDER, ND_ADVERTISER
from windlass.pipeline.packet_marks import ARP_QUERY, FROM_GATEWAY, ND_FLAGS, ND_OPTION
from windlass.pipeline.priorities import HIGH, NORMAL
from windlass.pipeline.reserved import VIRTUAL_MAC

ARP_REQUEST, ARP_REPLY = 1, 2
SOLICITATION, ADVERTISEMENT = 135, 136
TARGET_LINK_LAYER_ADDRESS = 2
SOLICITED_OVERRIDE = 0x60000000


def flows(node: LocalNode) -> Iterator[Flow]:
    if Family.IPV4 in node.families:
        yield from arp(node)
    if Family.IPV6 in node.families:
        yield from neighbour_discovery(node)


def arp(node: LocalNode) -> Iterator[Flow]:
    yield ARP_RESPONDER.flow(HIGH, ARP, ARP_TPA(int(node.gateway(Family.IPV4))), FROM_GATEWAY).drop(
        why="ARP of the gateway for its own address: drop, an answer would look like a second owner"
    )
    yield ARP_RESPONDER.flow(HIGH, ARP, ARP_SPA(0)).drop(
        why="ARP probe for a duplicate address: drop, an answer would claim the address"
    )
    yield ARP_RESPONDER.flow(NORMAL, ARP, ARP_OP(ARP_REQUEST)).then(
        *_from_the_virtual_mac(),
        Set(ARP_OP(ARP_REPLY)),
        move(ARP_SHA, ARP_THA),
        Set(ARP_SHA(VIRTUAL_MAC)),
        Move(ARP_TPA.whole, ARP_QUERY.bits),
        move(ARP_SPA, ARP_TPA),
        Move(ARP_QUERY.bits, ARP_SPA.whole),
        BACK,
        why="ARP request: answer with the virtual MAC",
    )


def neighbour_discovery(node: LocalNode) -> Iterator[Flow]:
    solicitation = icmp(Family.IPV6, SOLICITATION)
    yield ARP_RESPONDER.flow(HIGH, solicitation, ND_TARGET(int(node.gateway(Family.IPV6))), FROM_GATEWAY).drop(
        why="neighbour solicitation of the gateway for its own address: drop, an answer would look like a second owner"
    )
    yield ARP_RESPONDER.flow(HIGH, solicitation, IPV6_SRC(0)).drop(
        why="duplicate address detection: drop, an answer would claim the address"
    )
    yield ARP_RESPONDER.flow(NORMAL, solicitation).then(
        *_from_the_virtual_mac(),
        move(IPV6_SRC, IPV6_DST),
        move(ND_TARGET, IPV6_SRC),
        # Through registers: a kernel that does not know these two fields allows a move into them, but no set.
        ND_OPTION.load(TARGET_LINK_LAYER_ADDRESS),
        Move(ND_OPTION.bits, ND_OPTIONS_TYPE.whole),
        ND_FLAGS.load(SOLICITED_OVERRIDE),
        Move(ND_FLAGS.bits, ND_RESERVED.whole),
        Set(ICMPV6_TYPE(ADVERTISEMENT)),
        goto(ND_ADVERTISER),
        why="neighbour solicitation: turn it into an advertisement",
    )
    # Open vSwitch lets a flow write the target's MAC only if the flow matches an advertisement: hence the second table.
    yield ND_ADVERTISER.flow(NORMAL, icmp(Family.IPV6, ADVERTISEMENT)).then(
        Set(ND_TLL(VIRTUAL_MAC)), BACK, why="neighbour advertisement: write the virtual MAC and send it back"
    )


def _from_the_virtual_mac() -> tuple[Action, ...]:
    return move(ETH_SRC, ETH_DST), Set(ETH_SRC(VIRTUAL_MAC))
