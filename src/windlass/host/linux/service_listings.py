"""Reads the installed items from a listing of the nftables table of Services. Pure.

A table that another program has changed is recognised as incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network, summarize_address_range

import msgspec
from msgspec import Struct

from windlass.host import port_ranges
from windlass.host.linux import service_tables
from windlass.host.plans import ExternalPort, NodePort, ServiceAccess, ServicePortItem
from windlass.model.families import Family, IPAddress, IPNetwork
from windlass.model.services import Protocol


@dataclass(frozen=True, slots=True)
class InstalledServices:
    access: ServiceAccess | None  # None: missing, or not up to date
    ports: frozenset[ServicePortItem]


NOTHING = InstalledServices(None, frozenset())


def is_listed(tables: bytes) -> bool:
    """The table of Windlass is in the list of tables."""
    return any(entry.table is not None and entry.table.name == service_tables.NAME for entry in _entries(tables))


def read(listing: bytes, gateway: str, bridge: str) -> InstalledServices:
    try:
        return _read(_entries(listing), gateway, bridge)
    except ValueError:  # also of msgspec: the table contains something that Windlass never creates
        return NOTHING


def _read(entries: list[_Entry], gateway: str, bridge: str) -> InstalledServices:
    sets = {entry.set.name: entry.set for entry in entries if entry.set is not None}
    rules = [entry.rule for entry in entries if entry.rule is not None]
    chains = {(e.chain.name, e.chain.type, e.chain.hook, e.chain.prio) for e in entries if e.chain is not None}
    access = ServiceAccess(
        gateway=gateway,
        bridge=bridge,
        sources=frozenset(_read_sources(rules)),
        node_ips=frozenset(_read_node_ips(rules)),
        networks=frozenset(_read_networks(sets)),
        mtu=next(_read_mtus(rules), 0),
        snat_ports=next(_read_snat_ports(rules), ()),
    )
    wanted = service_tables.chains(access)
    complete = (
        {(made.name, made.type) for made in sets.values()} == {(made.name, made.type) for made in service_tables.SETS}
        and chains == {chain.key for chain in wanted}
        and _comments(rules) == {chain.name: [rule.comment for rule in chain.rules] for chain in wanted if chain.rules}
    )
    return InstalledServices(access if complete else None, frozenset(_read_ports(sets)))


class _Prefix(Struct):
    addr: str
    len: int


class _Element(Struct):
    concat: list[str | int] = []
    prefix: _Prefix | None = None
    range: list[str] = []


class _Set(Struct):
    name: str
    type: str | tuple[str, ...]
    elem: list[str | int | _Element] = []


class _ListedChain(Struct):
    name: str
    type: str = ""
    hook: str = ""
    prio: int = 0


class _Payload(Struct):
    field: str = ""  # empty if a rule matches raw bits of the packet


class _Left(Struct):
    payload: _Payload | None = None


class _Match(Struct):
    left: _Left
    right: object


class _Nat(Struct):
    addr: str


class _Mangle(Struct):
    value: object


class _Expression(Struct):
    match: _Match | None = None
    snat: _Nat | None = None
    mangle: _Mangle | None = None


class _ListedRule(Struct):
    chain: str
    expr: list[_Expression]
    comment: str = ""


class _Table(Struct):
    name: str


class _Entry(Struct):
    table: _Table | None = None
    set: _Set | None = None
    chain: _ListedChain | None = None
    rule: _ListedRule | None = None


class _Listing(Struct):
    nftables: list[_Entry]


def _entries(listing: bytes) -> list[_Entry]:
    return msgspec.json.decode(listing, type=_Listing).nftables


def _read_snat_ports(rules: Iterable[_ListedRule]) -> Iterator[tuple[tuple[int, int], ...]]:
    for rule in rules:
        if rule.chain == "pods-begin" and (found := re.search(r"by ([\d,-]+):", rule.comment)):
            yield port_ranges.parse(found[1])


def _comments(rules: Iterable[_ListedRule]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for rule in rules:
        found.setdefault(rule.chain, []).append(rule.comment)
    return found


def _read_sources(rules: Iterable[_ListedRule]) -> Iterator[IPAddress]:
    for rule in rules:
        for expression in rule.expr:
            if expression.snat is not None:
                yield ip_address(expression.snat.addr)


def _read_node_ips(rules: Iterable[_ListedRule]) -> Iterator[IPAddress]:
    for rule in rules:
        if rule.chain == "come":
            for match in (expression.match for expression in rule.expr):
                if match is not None and match.left.payload is not None:
                    yield ip_address(str(match.right))


def _read_mtus(rules: Iterable[_ListedRule]) -> Iterator[int]:
    """From the first MSS rule, which is that of the first family."""
    family = Family(min((address.version for address in _read_sources(rules)), default=4))
    for rule in rules:
        for expression in rule.expr if rule.chain == service_tables.FIT else ():
            if expression.mangle is not None and isinstance(expression.mangle.value, int):
                yield expression.mangle.value + service_tables.HEADERS[family]


def _read_networks(sets: dict[str, _Set]) -> Iterator[IPNetwork]:
    for family in Family:
        made = sets.get(f"node-addresses-{family.value}")
        for element in made.elem if made is not None else ():
            if isinstance(element, str):
                yield ip_network(element)
            elif isinstance(element, _Element) and element.prefix is not None:
                yield ip_network((element.prefix.addr, element.prefix.len))
            elif isinstance(element, _Element) and element.range:
                first, last = map(ip_address, element.range)
                yield from summarize_address_range(first, last)


def _read_ports(sets: dict[str, _Set]) -> Iterator[ServicePortItem]:
    for family in Family:
        for made, of_address in (
            (sets.get(f"node-ports-{family.value}"), False),
            (sets.get(f"external-ports-{family.value}"), True),
        ):
            for element in made.elem if made is not None else ():
                if isinstance(element, _Element) and len(element.concat) == 2 + of_address:
                    protocol, port = Protocol(int(element.concat[-2])), int(element.concat[-1])
                    if of_address:
                        yield ExternalPort(ip_address(str(element.concat[0])), protocol, port)
                    else:
                        yield NodePort(family, protocol, port)
