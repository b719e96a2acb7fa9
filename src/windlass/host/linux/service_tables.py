"""The desired nftables table of Services, and the commands that create it. Pure.

NodePorts and external ports are elements of sets: adding or removing one changes one element. Everything else changes
with the Node only, and the whole table is replaced then. The comment of each rule contains a digest of the rule, by
which `service_listings` recognises a table that is up to date, whatever form a listing gives to its expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from windlass.host.linux import nft_rules as nft
from windlass.host.linux import pod_returns
from windlass.host.linux.nft_rules import IP, RETURN, Chain, Expression, Rule, ct, is_, is_not, meta, payload, prefix
from windlass.host.linux.nftables import Command
from windlass.host.plans import ExternalPort, NodePort, ServiceAccess, ServicePortItem
from windlass.model.families import Family, IPNetwork, family_of
from windlass.pipeline.reserved import NODE_PORT_ADDRESS, STAND_INS, VIRTUAL_ADDRESSES, VIRTUAL_CLIENT

NAME = "windlass"
# The bit in the mark of packets to an external port, until they leave by the gateway. The marks of kube-proxy (0x4000,
# 0x8000), Tailscale (0xff0000) and most other programs use lower bits.
MARK = 0x40000000
_UNMARKED = 0xFFFFFFFF ^ MARK

_FAMILY, _TABLE = "inet", {"family": "inet", "table": NAME}


def replaced(access: ServiceAccess, ports: Iterable[ServicePortItem]) -> list[Command]:
    """Replace whatever table exists, in one transaction."""
    table = {"family": _FAMILY, "name": NAME}
    return [
        *deleted(),
        {"add": {"table": table}},
        *({"add": {"set": {**_TABLE, "name": s.name, "type": s.type, "flags": s.flags}}} for s in SETS),
        *({"add": {"chain": {**_TABLE, "name": chain.name, **chain.hook}}} for chain in chains(access)),
        *_rule_commands(access),
        *_network_commands(access.networks),
        *changed(removed=(), added=ports),
    ]


def deleted() -> list[Command]:
    """Delete the table. It is added first, because deleting a table that does not exist is an error."""
    table = {"family": _FAMILY, "name": NAME}
    return [{"add": {"table": table}}, {"delete": {"table": table}}]


def changed(removed: Iterable[ServicePortItem], added: Iterable[ServicePortItem]) -> list[Command]:
    """Remove and add elements. It is no error if they are already gone or there."""
    commands: list[Command] = []
    for name, elements in _by_set(removed).items():
        element = {**_TABLE, "name": name, "elem": elements}
        commands += [{"add": {"element": element}}, {"delete": {"element": element}}]
    for name, elements in _by_set(added).items():
        commands.append({"add": {"element": {**_TABLE, "name": name, "elem": elements}}})
    return commands


LIST_TABLES: list[Command] = [{"list": {"tables": {"family": _FAMILY}}}]
LIST: list[Command] = [{"list": {"table": {"family": _FAMILY, "name": NAME}}}]


# The desired table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NftSet:
    name: str
    type: str | tuple[str, ...]
    flags: tuple[str, ...] = ()


SETS = (
    NftSet("node-ports-4", ("inet_proto", "inet_service")),
    NftSet("node-ports-6", ("inet_proto", "inet_service")),
    NftSet("node-addresses-4", "ipv4_addr", flags=("interval",)),
    NftSet("node-addresses-6", "ipv6_addr", flags=("interval",)),
    NftSet("external-ports-4", ("ipv4_addr", "inet_proto", "inet_service")),
    NftSet("external-ports-6", ("ipv6_addr", "inet_proto", "inet_service")),
)


def chains(access: ServiceAccess) -> tuple[Chain, ...]:
    families = sorted({family_of(source) for source in access.sources}, key=str)
    gateway, bridge = nft.comes_in(access.gateway), nft.comes_in(access.bridge)
    to_stand_ins = Rule("check for external ports of this host", (_MARKED, {"jump": {"target": "stand-ins"}}))
    to_node_ports = Rule("check for NodePorts", ({"jump": {"target": "node-ports"}},))
    to_external_ports = Rule("check for external ports", ({"jump": {"target": "external-ports"}},))
    from_switch = Rule("from the switch, which has handled Services", (gateway, RETURN))
    from_wire = Rule("from the wire: the switch has handled Services", (bridge, RETURN))
    asked = (_asks(access, family) for family in families)
    reason = "to the Node IP: the switch decided that it is for the host"  # the same for all packets of a connection
    let_pass = (Rule(reason, (bridge, nft.is_to(ip), RETURN)) for ip in sorted(access.node_ips, key=str))
    return (
        Chain("node-ports", tuple(map(_node_ports, families))),
        Chain("external-ports", tuple(map(_external_ports, families))),
        Chain("stand-ins", tuple(map(_stand_ins, families))),
        Chain("come", (from_switch, *let_pass, to_stand_ins, to_node_ports), "nat", "prerouting", nft.DNAT),
        Chain("start", (to_stand_ins, to_node_ports), "nat", "output", nft.DNAT),
        Chain(
            "come-external",
            (*asked, from_switch, from_wire, to_external_ports),
            "filter",
            "prerouting",
            nft.BEFORE_ROUTING,
        ),
        Chain("start-external", (_answers(), to_external_ports), "route", "output", nft.BEFORE_ROUTING),
        Chain("leave", tuple(_as_gateway(access, family) for family in families), "nat", "postrouting", nft.SNAT),
        Chain("unmark", (_unmark(access),), "filter", "postrouting", nft.BEFORE_ROUTING),
        Chain("guard", (*_guard(gateway), *_forged(bridge, families)), "filter", "prerouting", nft.BEFORE_CONNTRACK),
        Chain(
            FIT, tuple(_fit(access, gateway, family) for family in families), "filter", "prerouting", nft.BEFORE_ROUTING
        ),
        Chain("fit-there", (_fit_there(access),), "filter", "postrouting", nft.BEFORE_ROUTING),
        *pod_returns.chains(access),
    )


def _node_ports(family: Family) -> Rule:
    ip = IP[family]
    # Not for ::1: Linux drops packets with that source before it translates it. Not for link-local addresses: replies
    # to their clients cannot come from another link.
    but: tuple[Expression, ...] = ()
    if family is Family.IPV6:
        but = (is_not(payload(ip, "daddr"), "::1"), is_not(payload(ip, "daddr"), prefix(ip_network("fe80::/10"))))
    return Rule(
        "NodePort at an address of this host: translate to the address behind the gateway",
        (
            is_({"concat": [meta("l4proto"), payload("th", "dport")]}, f"@node-ports-{family.value}"),
            is_(payload(ip, "daddr"), f"@node-addresses-{family.value}"),
            *but,
            nft.is_local("daddr"),
            {"dnat": {"family": ip, "addr": str(NODE_PORT_ADDRESS[family])}},
        ),
    )


def _external_ports(family: Family) -> Rule:
    port: Expression = {"concat": [payload(IP[family], "daddr"), meta("l4proto"), payload("th", "dport")]}
    return Rule(
        "external port of a Service: mark, to route it to the switch",
        (is_(port, f"@external-ports-{family.value}"), nft.set_bit(meta("mark"), MARK)),
    )


def _asks(access: ServiceAccess, family: Family) -> Rule:
    """The switch sends clients from anywhere to endpoints on this host; their replies must return through the switch.

    Not connections to the gateway's own address: they belong to no Service, and the switch cannot return the replies.
    """
    return Rule(
        "new connection from the switch to an endpoint on this host: mark, to return its replies",
        (
            nft.comes_in(access.gateway),
            nft.NEW,
            is_not(payload(IP[family], "daddr"), _source(access, family)),
            nft.is_local("daddr"),
            nft.set_bit(ct("mark"), MARK),
        ),
    )


def _answers() -> Rule:
    return Rule(
        "reply to a client behind the switch: route to the switch",
        (nft.REPLY, nft.is_set(ct("mark"), MARK), nft.set_bit(meta("mark"), MARK)),
    )


def _stand_ins(family: Family) -> Rule:
    """The kernel looks up its local addresses before the mark: a local address must be replaced before routing."""
    ip, reserved = IP[family], STAND_INS[family]
    kept: Expression = {"&": [payload(ip, "daddr"), str(reserved.hostmask)]}
    return Rule(
        "external port at an address of this host: translate to a stand-in behind the gateway",
        (
            is_(meta("nfproto"), {Family.IPV4: "ipv4", Family.IPV6: "ipv6"}[family]),
            nft.is_local("daddr"),
            {"dnat": {"family": ip, "addr": {"|": [kept, str(reserved.network_address)]}}},
        ),
    )


def _as_gateway(access: ServiceAccess, family: Family) -> Rule:
    """SNAT instead of masquerade, which drops all its connections whenever the gateway interface goes down."""
    ip = IP[family]
    source = _source(access, family)
    return Rule(
        "connection of the host to a Service: translate the source to the gateway",
        (
            nft.goes_out(access.gateway),
            is_({"rt": {"key": "nexthop", "family": ip}}, str(VIRTUAL_CLIENT[family])),
            is_not(payload(ip, "saddr"), source),
            nft.is_local("saddr"),
            {"snat": {"family": ip, "addr": source}},
        ),
    )


def _source(access: ServiceAccess, family: Family) -> str:
    return next(str(address) for address in access.sources if family_of(address) is family)


def _unmark(access: ServiceAccess) -> Rule:
    """The mark survives the kernel datapath; a packet that returned with it would be routed in circles."""
    cleared = nft.change(meta("mark"), {"&": [meta("mark"), _UNMARKED]})
    return Rule("routed to the gateway: clear the mark", (nft.goes_out(access.gateway), _MARKED, cleared))


def _guard(gateway: Expression) -> Iterator[Rule]:
    """`route_localnet` lets the host reach itself through the gateway; others must not use loopback addresses there."""
    for field in ("daddr", "saddr"):
        loopback = is_(payload("ip", field), prefix(ip_network("127.0.0.0/8")))
        yield Rule("drop: only the host itself uses loopback addresses", (gateway, loopback, nft.DROP))


def _forged(bridge: Expression, families: Iterable[Family]) -> Iterator[Rule]:
    """Packets that only the host itself may send, arriving from a NIC or from the switch."""
    for family in families:
        for network in VIRTUAL_ADDRESSES[family]:
            to_network = is_(payload(IP[family], "daddr"), prefix(network))
            yield Rule("drop: only this host may send to the switch by this address", (to_network, nft.DROP))
    advertisement = is_(payload("icmpv6", "type"), "nd-neighbor-advert")
    yield Rule("accept: duplicate address detection of another machine", (bridge, advertisement, RETURN))
    own = nft.is_local("saddr")
    yield Rule("drop: a packet from the wire with an address of this host as its source", (bridge, own, nft.DROP))


FIT = "fit"
HEADERS = {Family.IPV4: 40, Family.IPV6: 60}  # bytes of a TCP segment without its data


def _fit(access: ServiceAccess, gateway: Expression, family: Family) -> Rule:
    """A connection that starts to a local address takes the MTU of the loopback interface for its path MTU. An endpoint
    in a Pod announces a smaller MSS itself. One on another host does not, and its MTU is larger than the gateway's.
    """
    protocol = {Family.IPV4: "ipv4", Family.IPV6: "ipv6"}[family]
    size = access.mtu - HEADERS[family]
    return Rule(
        "limit the MSS of what the host sends by the gateway",
        (gateway, is_(meta("nfproto"), protocol), _BEGINS, nft.change(_SEGMENT_SIZE, size)),
    )


def _fit_there(access: ServiceAccess) -> Rule:
    return Rule(
        "limit the MSS of what the host receives by the gateway",
        (nft.goes_out(access.gateway), _BEGINS, nft.change(_SEGMENT_SIZE, {"rt": {"key": "mtu"}})),
    )


def _rule_commands(access: ServiceAccess) -> Iterator[Command]:
    for chain in chains(access):
        for rule in chain.rules:
            added = {"chain": chain.name, "expr": rule.expressions, "comment": rule.comment}
            yield {"add": {"rule": {**_TABLE, **added}}}


def _network_commands(networks: Iterable[IPNetwork]) -> Iterator[Command]:
    for network in sorted(networks, key=str):
        name = f"node-addresses-{network.version}"
        yield {"add": {"element": {**_TABLE, "name": name, "elem": [prefix(network)]}}}


def _by_set(ports: Iterable[ServicePortItem]) -> dict[str, list[Expression]]:
    found: dict[str, list[Expression]] = {}
    for item in ports:
        match item:
            case NodePort(family, protocol, port):
                found.setdefault(f"node-ports-{family.value}", []).append({"concat": [int(protocol), port]})
            case ExternalPort(address, protocol, port):
                element: Expression = {"concat": [str(address), int(protocol), port]}
                found.setdefault(f"external-ports-{address.version}", []).append(element)
    return found


_BEGINS = is_({"&": [payload("tcp", "flags"), {"|": ["syn", "rst"]}]}, "syn")
_SEGMENT_SIZE: Expression = {"tcp option": {"name": "maxseg", "field": "size"}}
_MARKED = nft.is_set(meta("mark"), MARK)
