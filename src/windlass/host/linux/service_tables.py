"""The nftables table of Services as it shall be, and the commands that make it so. Pure.

NodePorts and external ports are elements of sets, so that one more or less is one element; all else changes only with
the Node, and then the table is replaced as a whole. Each rule carries a digest of itself in its comment: by these a
table is known to be as it shall be, whatever form a listing gives its
expressions (`service_listings`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from windlass.host.linux import pod_returns
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
    prefix,
)
from windlass.host.linux.nftables import Command
from windlass.host.plans import ExternalPort, NodePort, ServiceAccess, ServicePortItem
from windlass.model.families import Family, IPAddress, IPNetwork, family_of
from windlass.pipeline.layout import NODE_PORT_ADDRESS, STAND_INS, VIRTUAL_ADDRESSES, VIRTUAL_CLIENT

NAME = "windlass"
# The bit in the mark of a packet for an external port, on its way to the gateway. Those of kube-proxy (0x4000, 0x8000),
# of Tailscale (0xff0000) and of most others are lower.
MARK = 0x40000000
_UNMARKED = 0xFFFFFFFF ^ MARK

_FAMILY, _TABLE = "inet", {"family": "inet", "table": NAME}
_IP = {Family.IPV4: "ip", Family.IPV6: "ip6"}
# Before those of others at the usual places (raw -300, mangle -150, dstnat -100, srcnat 100).
_BEFORE_TRACKING, _BEFORE_ROUTING, _DNAT, _SNAT = -310, -160, -110, 90


def replaced(access: ServiceAccess, ports: Iterable[ServicePortItem]) -> list[Command]:
    """Whatever is there becomes this, in one transaction."""
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
    """One that is not there can be deleted, too, once it is added."""
    table = {"family": _FAMILY, "name": NAME}
    return [{"add": {"table": table}}, {"delete": {"table": table}}]


def changed(removed: Iterable[ServicePortItem], added: Iterable[ServicePortItem]) -> list[Command]:
    """Elements that go and come; those that are gone or there already do not matter."""
    commands: list[Command] = []
    for name, elements in _by_set(removed).items():
        element = {**_TABLE, "name": name, "elem": elements}
        commands += [{"add": {"element": element}}, {"delete": {"element": element}}]
    for name, elements in _by_set(added).items():
        commands.append({"add": {"element": {**_TABLE, "name": name, "elem": elements}}})
    return commands


LIST_TABLES: list[Command] = [{"list": {"tables": {"family": _FAMILY}}}]
LIST: list[Command] = [{"list": {"table": {"family": _FAMILY, "name": NAME}}}]


# The table as it shall be ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Set:
    name: str
    type: str | tuple[str, ...]
    flags: tuple[str, ...] = ()


SETS = (
    Set("node-ports-4", ("inet_proto", "inet_service")),
    Set("node-ports-6", ("inet_proto", "inet_service")),
    Set("node-addresses-4", "ipv4_addr", flags=("interval",)),
    Set("node-addresses-6", "ipv6_addr", flags=("interval",)),
    Set("external-ports-4", ("ipv4_addr", "inet_proto", "inet_service")),
    Set("external-ports-6", ("ipv6_addr", "inet_proto", "inet_service")),
)


def chains(access: ServiceAccess) -> tuple[Chain, ...]:
    families = sorted({family_of(source) for source in access.sources}, key=str)
    gateway, bridge = is_(meta("iifname"), access.gateway), is_(meta("iifname"), access.bridge)
    to_stand_ins = Rule("is it for an external port here?", (_MARKED, {"jump": {"target": "stand-ins"}}))
    to_node_ports = Rule("is it for a NodePort?", ({"jump": {"target": "node-ports"}},))
    to_external_ports = Rule("is it for an external port?", ({"jump": {"target": "external-ports"}},))
    from_switch = Rule("from the switch, which knows its Services", (gateway, RETURN))
    from_wire = Rule("from the wire, where the switch knows them", (bridge, RETURN))
    asked = (_asks(access, family) for family in families)
    let_pass = (_let_pass(bridge, address) for address in sorted(access.node_ips, key=str))
    return (
        Chain("node-ports", tuple(map(_node_ports, families))),
        Chain("external-ports", tuple(map(_external_ports, families))),
        Chain("stand-ins", tuple(map(_stand_ins, families))),
        Chain("come", (from_switch, *let_pass, to_stand_ins, to_node_ports), "nat", "prerouting", _DNAT),
        Chain("start", (to_stand_ins, to_node_ports), "nat", "output", _DNAT),
        Chain(
            "come-external",
            (*asked, from_switch, from_wire, to_external_ports),
            "filter",
            "prerouting",
            _BEFORE_ROUTING,
        ),
        Chain("start-external", (_answers(), to_external_ports), "route", "output", _BEFORE_ROUTING),
        Chain("leave", tuple(_as_gateway(access, family) for family in families), "nat", "postrouting", _SNAT),
        Chain("unmark", (_unmark(access),), "filter", "postrouting", _BEFORE_ROUTING),
        Chain("guard", (*_guard(gateway), *_forged(bridge, families)), "filter", "prerouting", _BEFORE_TRACKING),
        Chain(
            FIT, tuple(_fit(access, gateway, family) for family in families), "filter", "prerouting", _BEFORE_ROUTING
        ),
        Chain("fit-there", (_fit_there(access),), "filter", "postrouting", _BEFORE_ROUTING),
        *pod_returns.chains(access),
    )


def _node_ports(family: Family) -> Rule:
    ip = _IP[family]
    # Not to ::1: no packet with that source may leave the host, and Linux looks before it translates. Not to link-local
    # addresses: their clients cannot be answered from behind another link.
    but: tuple[Expression, ...] = ()
    if family is Family.IPV6:
        but = (is_not(payload(ip, "daddr"), "::1"), is_not(payload(ip, "daddr"), prefix(ip_network("fe80::/10"))))
    return Rule(
        "a NodePort at an address of this host",
        (
            is_({"concat": [meta("l4proto"), payload("th", "dport")]}, f"@node-ports-{family.value}"),
            is_(payload(ip, "daddr"), f"@node-addresses-{family.value}"),
            *but,
            is_({"fib": {"result": "type", "flags": ["daddr"]}}, "local"),
            {"dnat": {"family": ip, "addr": str(NODE_PORT_ADDRESS[family])}},
        ),
    )


def _external_ports(family: Family) -> Rule:
    port: Expression = {"concat": [payload(_IP[family], "daddr"), meta("l4proto"), payload("th", "dport")]}
    return Rule(
        "an external port of a Service: routed to the switch",
        (
            is_(port, f"@external-ports-{family.value}"),
            {"mangle": {"key": meta("mark"), "value": {"|": [meta("mark"), MARK]}}},
        ),
    )


def _asks(access: ServiceAccess, family: Family) -> Rule:
    """The switch gives the host's endpoints clients from anywhere. Not those of the gateway's own address: they are no
    Service's, and the switch has no way for their answers.
    """
    return Rule(
        "the switch asks the host: its answer goes back there",
        (
            is_(meta("iifname"), access.gateway),
            {"match": {"op": "in", "left": ct("state"), "right": "new"}},
            is_not(payload(_IP[family], "daddr"), _source(access, family)),
            is_({"fib": {"result": "type", "flags": ["daddr"]}}, "local"),
            {"mangle": {"key": ct("mark"), "value": {"|": [ct("mark"), MARK]}}},
        ),
    )


def _answers() -> Rule:
    return Rule(
        "an answer to the switch: routed there, wherever the client is",
        (
            is_(ct("direction"), "reply"),
            is_({"&": [ct("mark"), MARK]}, MARK),
            {"mangle": {"key": meta("mark"), "value": {"|": [meta("mark"), MARK]}}},
        ),
    )


def _stand_ins(family: Family) -> Rule:
    """The host's own addresses are looked at before any mark is: so it must not be one of them that is routed."""
    ip, reserved = _IP[family], STAND_INS[family]
    kept: Expression = {"&": [payload(ip, "daddr"), str(reserved.hostmask)]}
    return Rule(
        "an external port at an address of this host",
        (
            is_(meta("nfproto"), {Family.IPV4: "ipv4", Family.IPV6: "ipv6"}[family]),
            is_({"fib": {"result": "type", "flags": ["daddr"]}}, "local"),
            {"dnat": {"family": ip, "addr": {"|": [kept, str(reserved.network_address)]}}},
        ),
    )


def _let_pass(bridge: Expression, node_ip: IPAddress) -> Rule:
    """A connection must not begin by one way and go on by another."""
    to_node = is_(payload(_IP[family_of(node_ip)], "daddr"), str(node_ip))
    return Rule("to the Node IP, past the switch: the host's own", (bridge, to_node, RETURN))


def _as_gateway(access: ServiceAccess, family: Family) -> Rule:
    """Not by masquerading, which forgets all connections when the gateway is down for a moment."""
    ip = _IP[family]
    source = _source(access, family)
    return Rule(
        "the host's own to a Service: as the gateway",
        (
            is_(meta("oifname"), access.gateway),
            is_({"rt": {"key": "nexthop", "family": ip}}, str(VIRTUAL_CLIENT[family])),
            is_not(payload(ip, "saddr"), source),
            is_({"fib": {"result": "type", "flags": ["saddr"]}}, "local"),
            {"snat": {"family": ip, "addr": source}},
        ),
    )


def _source(access: ServiceAccess, family: Family) -> str:
    return next(str(address) for address in access.sources if family_of(address) is family)


def _unmark(access: ServiceAccess) -> Rule:
    """Else the mark would come back with the packet from the kernel's datapath, and it would be routed in circles."""
    cleared: Expression = {"mangle": {"key": meta("mark"), "value": {"&": [meta("mark"), _UNMARKED]}}}
    return Rule("routed: the mark has served", (is_(meta("oifname"), access.gateway), _MARKED, cleared))


def _guard(gateway: Expression) -> Iterator[Rule]:
    """The host may talk to itself by the gateway (`route_localnet`), but nobody else may pretend to be it."""
    for field in ("daddr", "saddr"):
        loopback = is_(payload("ip", field), prefix(ip_network("127.0.0.0/8")))
        yield Rule("nobody but the host itself has a loopback address", (gateway, loopback, {"drop": None}))


def _forged(bridge: Expression, families: Iterable[Family]) -> Iterator[Rule]:
    """From any NIC, and from the switch: what nobody but the host itself sends."""
    for family in families:
        for network in VIRTUAL_ADDRESSES[family]:
            to_network = is_(payload(_IP[family], "daddr"), prefix(network))
            yield Rule("only this host itself may address the switch by this address", (to_network, {"drop": None}))
    advertisement = is_(payload("icmpv6", "type"), "nd-neighbor-advert")
    yield Rule("another machine may say that it has the same address", (bridge, advertisement, RETURN))
    own = is_({"fib": {"result": "type", "flags": ["saddr"]}}, "local")
    yield Rule("from the wire with an address of this host as the source", (bridge, own, {"drop": None}))


FIT = "fit"
HEADERS = {Family.IPV4: 40, Family.IPV6: 60}  # bytes of a TCP segment without its data


def _fit(access: ServiceAccess, gateway: Expression, family: Family) -> Rule:
    """A connection that began with an address of the host's own takes the loopback's MTU for its way's. An endpoint in
    a Pod says itself that less fits; one on another host does not, and the gateway is narrower by what a tunnel adds.
    """
    protocol = {Family.IPV4: "ipv4", Family.IPV6: "ipv6"}[family]
    size = access.mtu - HEADERS[family]
    return Rule(
        "what the host sends by the gateway must fit there",
        (gateway, is_(meta("nfproto"), protocol), _BEGINS, {"mangle": {"key": _SEGMENT_SIZE, "value": size}}),
    )


def _fit_there(access: ServiceAccess) -> Rule:
    return Rule(
        "and what it is answered",
        (
            is_(meta("oifname"), access.gateway),
            _BEGINS,
            {"mangle": {"key": _SEGMENT_SIZE, "value": {"rt": {"key": "mtu"}}}},
        ),
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
_MARKED = is_({"&": [meta("mark"), MARK]}, MARK)
