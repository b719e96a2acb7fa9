"""Services on a Linux host: the nftables table, and the rules, routes and settings that it needs.

NodePorts are translated to an address behind the gateway. External ports keep their address and are marked: marked
packets use a routing table of their own, so that the other ports of an external address are not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_network

from windlass.host.linux import rtnetlink, service_listings, service_tables, settings
from windlass.host.linux.adapter_state import AdapterRoute
from windlass.host.linux.conntrack import Target, forget_udp
from windlass.host.linux.former_settings import FormerSettings
from windlass.host.linux.netlink import NETLINK_NETFILTER, Netlink
from windlass.host.linux.nftables import Nftables, NftablesError
from windlass.host.linux.route_messages import KernelRoute
from windlass.host.linux.rtnetlink import MarkRule
from windlass.host.linux.service_listings import InstalledServices
from windlass.host.plans import ExternalPort, HostChange, HostNames, Item, NodePort, ServiceAccess, ServicePortItem
from windlass.host.protocol import HostError, attempting
from windlass.model.families import Family, family_of
from windlass.model.services import Protocol
from windlass.pipeline.reserved import VIRTUAL_CLIENT

TABLE = rtnetlink.PROTOCOL  # the routing table of marked packets; its number shows that it is ours
_PRIORITY = rtnetlink.PROTOCOL  # after the local table, before the rules of others
_ANYWHERE = {Family.IPV4: ip_network("0.0.0.0/0"), Family.IPV6: ip_network("::/0")}
_LOOPBACK = ip_network("127.0.0.0/8")


def installed(netlink: Netlink, nftables: Nftables, names: HostNames) -> Iterator[Item]:
    found = _found(nftables, names.gateway, names.bridge)
    yield from found.ports
    if found.access is not None and _is_routed(netlink, found.access) and _is_set(netlink, found.access):
        yield found.access


def apply(netlink: Netlink, nftables: Nftables, formers: FormerSettings, change: HostChange) -> list[str]:
    going = [item for item in change.removed if isinstance(item, ServiceAccess)]
    coming = [item for item in change.added if isinstance(item, ServiceAccess)]
    removed = [item for item in change.removed if isinstance(item, ServicePortItem)]
    added = [item for item in change.added if isinstance(item, ServicePortItem)]
    if not (going or coming or removed or added):
        return []
    try:
        if coming:
            _replace(nftables, coming[0], removed, added)
        elif going:
            _close(netlink, nftables, going[0])
        else:
            _change_ports(nftables, removed, added)
    except NftablesError as error:
        return [_sentence(coming, going, removed, added, error)]
    problems = []
    for access in coming:
        problems += _route(netlink, access) + _set(netlink, formers, access)
    return problems + _forget_flows((*removed, *added))


# The table ------------------------------------------------------------------------------------------------------------


def _found(nftables: Nftables, gateway: str, bridge: str) -> InstalledServices:
    try:
        if not service_listings.is_listed(nftables.run(service_tables.LIST_TABLES)):
            return service_listings.NOTHING
        return service_listings.read(nftables.run(service_tables.LIST), gateway, bridge)
    except NftablesError:  # the error is reported when items are added
        return service_listings.NOTHING


def _replace(
    nftables: Nftables, access: ServiceAccess, removed: Iterable[ServicePortItem], added: Iterable[ServicePortItem]
) -> None:
    kept = _found(nftables, access.gateway, access.bridge).ports
    nftables.run(service_tables.replaced(access, kept.difference(removed).union(added)))


def _close(netlink: Netlink, nftables: Nftables, access: ServiceAccess) -> None:
    """Closes loopback addresses first, because the table protects them."""
    _let_loopback_out(access.gateway, allow=False)
    nftables.run(service_tables.deleted())
    for rule in list(rtnetlink.mark_rules(netlink)):
        rtnetlink.delete_mark_rule(netlink, rule)
    for found in _routes(netlink):
        rtnetlink.delete_route(netlink, found.index, found.route)


def _change_ports(nftables: Nftables, removed: Iterable[ServicePortItem], added: Iterable[ServicePortItem]) -> None:
    try:
        nftables.run(service_tables.changed(removed, added))
    except NftablesError:
        if added or service_listings.is_listed(nftables.run(service_tables.LIST_TABLES)):
            raise
        # Without a table no port is open.


def _sentence(
    coming: list[ServiceAccess],
    going: list[ServiceAccess],
    removed: list[ServicePortItem],
    added: list[ServicePortItem],
    error: NftablesError,
) -> str:
    if coming:
        return (
            f"could not create {coming[0]}: {error}; the host reaches ClusterIPs, but neither NodePorts nor external "
            "addresses; clients behind its other NICs do not reach those either, and external clients do not reach "
            "endpoints on this host with externalTrafficPolicy Local"
        )
    items: list[Item] = [*added, *going, *removed]
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return f"could not {'add' if added else 'remove'} {items[0]}{more}: {error}"


# Routes ---------------------------------------------------------------------------------------------------------------


def _wanted_rules(access: ServiceAccess) -> set[MarkRule]:
    return {MarkRule(family_of(s), service_tables.MARK, TABLE, _PRIORITY) for s in access.sources}


def _wanted_routes(access: ServiceAccess) -> list[AdapterRoute]:
    return [
        AdapterRoute(_ANYWHERE[f], via=VIRTUAL_CLIENT[f], onlink=True, table=TABLE, protocol=rtnetlink.PROTOCOL)
        for f in map(family_of, access.sources)
    ]


def _routes(netlink: Netlink) -> list[KernelRoute]:
    return [f for f in rtnetlink.routes(netlink, protocol=rtnetlink.PROTOCOL) if f.route.table == TABLE]


def _is_routed(netlink: Netlink, access: ServiceAccess) -> bool:
    gateway = rtnetlink.link(netlink, access.gateway)
    there = {(found.index, found.route.destination, found.route.via) for found in _routes(netlink)}
    return (
        gateway is not None
        and there == {(gateway.index, route.destination, route.via) for route in _wanted_routes(access)}
        and set(rtnetlink.mark_rules(netlink)) == _wanted_rules(access)
    )


def _route(netlink: Netlink, access: ServiceAccess) -> list[str]:
    gateway = rtnetlink.link(netlink, access.gateway)
    if gateway is None:
        return [f"there is no interface {access.gateway} for {access}"]
    try:
        with attempting(f"route {access}"):
            for rule in set(rtnetlink.mark_rules(netlink)) - _wanted_rules(access):
                rtnetlink.delete_mark_rule(netlink, rule)
            for found in _routes(netlink):
                rtnetlink.delete_route(netlink, found.index, found.route)
            for route in _wanted_routes(access):
                rtnetlink.add_route(netlink, gateway.index, route)
            for rule in _wanted_rules(access):
                rtnetlink.add_mark_rule(netlink, rule)
    except HostError as error:
        return [str(error)]
    return []


# Settings -------------------------------------------------------------------------------------------------------------


def _is_set(netlink: Netlink, access: ServiceAccess) -> bool:
    routes_localnet = bool(settings.sysctl(Family.IPV4, access.gateway, "route_localnet"))
    return _serves_loopback(access) == routes_localnet and not list(_not_forwarding(netlink, access))


def _set(netlink: Netlink, formers: FormerSettings, access: ServiceAccess) -> list[str]:
    try:
        with attempting(f"set up {access}"):
            _let_loopback_out(access.gateway, allow=_serves_loopback(access))
            for interface in _not_forwarding(netlink, access):
                settings.change_sysctl(formers, Family.IPV4, interface, "forwarding", 1)
    except HostError as error:
        return [str(error)]
    return []


def _serves_loopback(access: ServiceAccess) -> bool:
    return any(network.version == 4 and network.overlaps(_LOOPBACK) for network in access.networks)


def _let_loopback_out(gateway: str, *, allow: bool) -> None:
    """Connections of the host to NodePorts at 127.0.0.1 go through the switch."""
    if settings.has(Family.IPV4, gateway):
        settings.set_sysctl(Family.IPV4, gateway, "route_localnet", int(allow))


def _not_forwarding(netlink: Netlink, access: ServiceAccess) -> Iterator[str]:
    """NICs that may receive packets for Services but do not forward IPv4. (IPv6 forwarding is set for all interfaces.)

    All NICs, whatever addresses NodePorts answer at: packets to external addresses may arrive at any NIC.
    """
    if all(source.version != 4 for source in access.sources):
        return
    used = (index for index, ip in rtnetlink.addresses(netlink) if ip.version == 4 and not ip.is_loopback)
    for index in dict.fromkeys(used):
        link = rtnetlink.link(netlink, index)
        if link is not None and not settings.sysctl(Family.IPV4, link.name, "forwarding"):
            yield link.name


# Conntrack entries ---------------------------------------------------------------------------------------------------


def _forget_flows(ports: Iterable[ServicePortItem]) -> list[str]:
    targets: dict[Family, set[Target]] = {}
    for item in ports:
        match item:
            case NodePort(family, Protocol.UDP, port):
                targets.setdefault(family, set()).add((None, port))
            case ExternalPort(address, Protocol.UDP, port):
                targets.setdefault(family_of(address), set()).add((address, port))
    if not targets:
        return []
    try:
        with attempting("delete outdated UDP conntrack entries"), Netlink(protocol=NETLINK_NETFILTER) as netfilter:
            for family, wanted in targets.items():
                forget_udp(netfilter, family, wanted)
    except HostError as error:
        return [f"{error}; UDP clients that keep sending do not notice the change"]
    return []
