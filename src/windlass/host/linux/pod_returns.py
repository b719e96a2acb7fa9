"""nftables rules for Pods that leave as the Node: what the host has for them goes back to the switch. Pure.

The switch translates a Pod's packet to the Node IP before the host routes it. So what the host itself has to say about
it (an ICMP error, a reset) is addressed to the host's own address, and so are the replies to what the host sent by a
NIC that is not a port of the switch and translated to that NIC's address. Only the switch knows which Pod they are for.
These rules write NODE_STAND_IN in place of the Node IP. That address is routed to the switch, which puts the Node IP
back and then treats the packet as one from the wire. Nothing but this address changes, so the packet that an ICMP error
quotes is still the one that the switch translated.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.host.linux.nft_rules import (
    RETURN,
    Chain,
    Expression,
    Rule,
    ct,
    is_,
    is_not,
    meta,
    payload,
    raw,
)
from windlass.host.plans import ServiceAccess
from windlass.model.families import Family, IPAddress, family_of
from windlass.openflow.fields import TCP, UDP
from windlass.pipeline.layout import NODE_SNAT_PORTS, NODE_STAND_IN

# The bit in the mark of a connection that came from the switch with the Node IP as its source.
MARK = 0x20000000

_IP = {Family.IPV4: "ip", Family.IPV6: "ip6"}
_BEFORE_TRACKING, _BEFORE_ROUTING, _AFTER_DNAT, _SNAT = -310, -160, -90, 90
_OURS: Expression = {"range": list(NODE_SNAT_PORTS)}
_WITH_PORTS: Expression = {"set": [TCP, UDP]}  # SCTP may keep the client's own port
_MARKED = is_({"&": [ct("mark"), MARK]}, MARK)

# ICMP: the protocol number, the types of errors, and where the packet that they quote has its protocol and its source
# port, in bits. A quoted packet with IPv4 options or IPv6 extension headers is not recognised by its port.
_ICMP = {Family.IPV4: "icmp", Family.IPV6: "ipv6-icmp"}
_ERRORS: dict[Family, tuple[str, list[int]]] = {
    Family.IPV4: ("icmp", [3, 11, 12]),
    Family.IPV6: ("icmpv6", [1, 2, 3, 4]),
}
_QUOTED_PROTOCOL = {Family.IPV4: (8 + 9) * 8, Family.IPV6: (8 + 6) * 8}
_QUOTED_PORT = {Family.IPV4: (8 + 20) * 8, Family.IPV6: (8 + 40) * 8}


def chains(access: ServiceAccess) -> tuple[Chain, ...]:
    addresses = sorted(access.node_ips, key=str)
    return (
        Chain("pods-guard", tuple(map(_guard, addresses)), "filter", "prerouting", _BEFORE_TRACKING),
        Chain("pods-begin", tuple(_begin(access, addresses)), "filter", "prerouting", _BEFORE_ROUTING),
        Chain("pods-leave", tuple(_leave(access)), "nat", "postrouting", _SNAT),
        Chain("pods-answered", tuple(map(_answered, addresses)), "filter", "prerouting", _AFTER_DNAT),
        Chain("pods-refused", tuple(_refused(addresses)), "route", "output", _AFTER_DNAT),
    )


def _guard(node_ip: IPAddress) -> Rule:
    family = family_of(node_ip)
    to_stand_in = is_(payload(_IP[family], "daddr"), str(NODE_STAND_IN[family]))
    return Rule("only this host itself may address the switch by this address", (to_stand_in, {"drop": None}))


def _begin(access: ServiceAccess, node_ips: list[IPAddress]) -> Iterator[Rule]:
    """Replies of Services come with the Node IP as well, but not from these ports: they keep it on every way."""
    mark: Expression = {"mangle": {"key": ct("mark"), "value": {"|": [ct("mark"), MARK]}}}
    for node_ip in node_ips:
        as_node = is_(payload(_IP[family_of(node_ip)], "saddr"), str(node_ip))
        new: Expression = {"match": {"op": "in", "left": ct("state"), "right": "new"}}
        when = (
            is_(meta("iifname"), access.gateway),
            as_node,
            new,
        )
        ours = (is_(meta("l4proto"), _WITH_PORTS), is_(payload("th", "sport"), _OURS))
        yield Rule("a Pod or a client of a Service begins a connection as the Node", (*when, *ours, mark))
        yield Rule("the same without ports", (*when, is_not(meta("l4proto"), _WITH_PORTS), mark))


def _leave(access: ServiceAccess) -> Iterator[Rule]:
    for interface in sorted((access.bridge, access.gateway)):
        yield Rule("the Node IP is the right source here", (is_(meta("oifname"), interface), RETURN))
    yield Rule("a Pod by another NIC: with the address of that NIC", (_MARKED, {"masquerade": None}))


def _answered(node_ip: IPAddress) -> Rule:
    to_node = is_(payload(_IP[family_of(node_ip)], "daddr"), str(node_ip))
    return Rule(
        "by another NIC to a Pod: back to the switch",
        (is_(ct("direction"), "reply"), _MARKED, to_node, _to_switch(node_ip)),
    )


def _refused(node_ips: list[IPAddress]) -> Iterator[Rule]:
    for node_ip in node_ips:
        family = family_of(node_ip)
        to_node = is_(payload(_IP[family], "daddr"), str(node_ip))
        protocol, types = _ERRORS[family]
        error = (is_(meta("l4proto"), _ICMP[family]), is_(payload(protocol, "type"), {"set": types}), to_node)
        quoted = raw("th", _QUOTED_PROTOCOL[family], 8)
        ours = (is_(quoted, _WITH_PORTS), is_(raw("th", _QUOTED_PORT[family], 16), _OURS))
        yield Rule("an ICMP error about a Pod's packet: to the switch", (*error, *ours, _to_switch(node_ip)))
        # The switch returns those that are about the host's own packets.
        yield Rule(
            "an ICMP error about a packet without ports: perhaps a Pod's",
            (*error, is_not(quoted, _WITH_PORTS), _to_switch(node_ip)),
        )
        reset = is_({"&": [payload("tcp", "flags"), "rst"]}, "rst")
        not_ours = is_not({"fib": {"result": "type", "flags": ["saddr"]}}, "local")
        yield Rule(
            "a reset by a firewall of this host, in the name of another: to the switch",
            (to_node, is_(payload("tcp", "dport"), _OURS), reset, not_ours, _to_switch(node_ip)),
        )


def _to_switch(node_ip: IPAddress) -> Expression:
    family = family_of(node_ip)
    return {"mangle": {"key": payload(_IP[family], "daddr"), "value": str(NODE_STAND_IN[family])}}
