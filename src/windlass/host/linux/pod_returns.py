"""nftables rules that send the host's packets for Pods back to the switch. Pure.

The switch translates a Pod's packet to the Node IP before the host routes it. ICMP errors and resets that the host
sends about such a packet are therefore addressed to the host itself, and so are the replies to packets that left by a
NIC that is not a port of the switch. Only the switch knows which Pod they are for. These rules replace the Node IP in
them by NODE_STAND_IN, an address that is routed to the switch; the switch puts the Node IP back and handles the packet
as one from the wire. Nothing else changes, so that an ICMP error still quotes the packet that the switch translated.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.host import port_ranges
from windlass.host.linux import nft_rules as nft
from windlass.host.linux.nft_rules import Chain, Expression, Rule, ct, is_, is_not, meta, payload
from windlass.host.plans import ServiceAccess
from windlass.host.port_ranges import port_set
from windlass.model.families import Family, IPAddress, family_of
from windlass.openflow.fields import SCTP, TCP, UDP
from windlass.pipeline.reserved import NODE_STAND_IN

# The bit in the conntrack mark of connections that came from the switch with the Node IP as their source.
MARK = 0x20000000

_WITH_PORTS: Expression = {"set": [TCP, UDP]}  # SCTP may keep the port of the client
# The first chunk of an SCTP packet: a connection begins with INIT. The kernel takes some later chunks of a connection
# for new ones if it has not seen the first, as in replies of Services.
_IS_INIT = is_(nft.raw("th", 96, 8), 1)
_MARKED = nft.is_set(ct("mark"), MARK)

# ICMP: the protocol, the types of errors, and the offsets (in bits) of the protocol and the source port of the packet
# that an error quotes. The port of a quoted packet with IPv4 options or IPv6 extension headers is not recognised.
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
        Chain("pods-guard", tuple(map(_guard, addresses)), "filter", "prerouting", nft.BEFORE_CONNTRACK),
        Chain("pods-begin", tuple(_begin(access, addresses)), "filter", "prerouting", nft.BEFORE_ROUTING),
        Chain("pods-leave", tuple(_leave(access)), "nat", "postrouting", nft.SNAT),
        Chain("pods-answered", tuple(map(_answered, addresses)), "filter", "prerouting", nft.AFTER_DNAT),
        Chain("pods-refused", tuple(_refused(access, addresses)), "route", "output", nft.AFTER_DNAT),
    )


def _guard(node_ip: IPAddress) -> Rule:
    to_stand_in = nft.is_to(NODE_STAND_IN[family_of(node_ip)])
    return Rule("drop: only this host may send to the switch by this address", (to_stand_in, nft.DROP))


def _begin(access: ServiceAccess, node_ips: list[IPAddress]) -> Iterator[Rule]:
    """Replies of Services have the Node IP as their source, too, but not one of these source ports. They keep the
    Node IP on every NIC.
    """
    mark = nft.set_bit(ct("mark"), MARK)
    for node_ip in node_ips:
        from_node_ip = is_(payload(nft.IP[family_of(node_ip)], "saddr"), str(node_ip))
        when = (nft.comes_in(access.gateway), from_node_ip, nft.NEW)
        ours = (is_(meta("l4proto"), _WITH_PORTS), is_(payload("th", "sport"), _snat_ports(access)))
        # From this text `service_listings` reads which ports the rules have.
        by = port_ranges.text(port_set(access.snat_ports))
        yield Rule(
            f"new connection of a Pod or a Service client, with the Node IP and by {by}: mark", (*when, *ours, mark)
        )
        yield Rule("the same for SCTP, whatever its port", (*when, is_(meta("l4proto"), SCTP), _IS_INIT, mark))
        without_ports = is_not(meta("l4proto"), {"set": [TCP, UDP, SCTP]})
        yield Rule("the same for protocols without ports", (*when, without_ports, mark))


def _leave(access: ServiceAccess) -> Iterator[Rule]:
    for interface in sorted((access.bridge, access.gateway)):
        yield Rule("leaves by the switch: keep the Node IP", (nft.goes_out(interface), nft.RETURN))
    yield Rule("a Pod's connection leaves by another NIC: use the address of that NIC", (_MARKED, {"masquerade": None}))


def _answered(node_ip: IPAddress) -> Rule:
    return Rule(
        "reply to a Pod from another NIC: send to the switch",
        (nft.REPLY, _MARKED, nft.is_to(node_ip), _to_switch(node_ip)),
    )


def _refused(access: ServiceAccess, node_ips: list[IPAddress]) -> Iterator[Rule]:
    for node_ip in node_ips:
        family = family_of(node_ip)
        to_node = nft.is_to(node_ip)
        protocol, types = _ERRORS[family]
        error = (is_(meta("l4proto"), _ICMP[family]), is_(payload(protocol, "type"), {"set": types}), to_node)
        quoted = nft.raw("th", _QUOTED_PROTOCOL[family], 8)
        ours = (is_(quoted, _WITH_PORTS), is_(nft.raw("th", _QUOTED_PORT[family], 16), _snat_ports(access)))
        yield Rule("ICMP error about a Pod's packet: send to the switch", (*error, *ours, _to_switch(node_ip)))
        # The switch returns those that are about packets of the host itself.
        yield Rule(
            "ICMP error about a packet without ports, perhaps of a Pod: send to the switch",
            (*error, is_not(quoted, _WITH_PORTS), _to_switch(node_ip)),
        )
        reset = nft.is_set(payload("tcp", "flags"), "rst")
        not_ours = is_not({"fib": {"result": "type", "flags": ["saddr"]}}, "local")
        yield Rule(
            "TCP reset that a firewall of this host sends to a Pod: send to the switch",
            (to_node, is_(payload("tcp", "dport"), _snat_ports(access)), reset, not_ours, _to_switch(node_ip)),
        )


def _snat_ports(access: ServiceAccess) -> Expression:
    return {"set": [{"range": list(ports)} for ports in access.snat_ports]}


def _to_switch(node_ip: IPAddress) -> Expression:
    family = family_of(node_ip)
    return nft.change(payload(nft.IP[family], "daddr"), str(NODE_STAND_IN[family]))
