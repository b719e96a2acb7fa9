"""Reads and changes the items of a plan in the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from windlass.host.linux import canaries, rtnetlink, services, settings, tracking
from windlass.host.linux.adapter_state import AdapterRoute
from windlass.host.linux.former_settings import FormerSettings
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.nftables import Nftables
from windlass.host.plans import HostAddress, HostChange, HostNames, HostPlan, InterfaceItem, Item, Neighbour, Route
from windlass.host.protocol import HostError, attempting

Kind = TypeVar("Kind", bound=InterfaceItem)


def installed(netlink: Netlink, nftables: Nftables, names: HostNames) -> HostPlan:
    found = [link for link in (rtnetlink.link(netlink, name) for name in names) if link is not None]
    return HostPlan(
        settings=frozenset(settings.read(netlink, link) for link in found),
        items=frozenset(_items(netlink, {link.index: link.name for link in found}, names)).union(
            services.installed(netlink, nftables, names)
        ),
        tracking=frozenset(tracking.installed()),
    )


def apply(netlink: Netlink, nftables: Nftables, formers: FormerSettings, change: HostChange) -> tuple[str, ...]:
    items = (item for item in change.added | change.removed if isinstance(item, InterfaceItem))
    names = {wanted.name for wanted in change.settings} | {item.interface for item in items}
    links = {link.name: link for link in (rtnetlink.link(netlink, name) for name in names) if link is not None}
    problems = []
    for wanted in change.settings:
        if wanted.name in links:
            problems += settings.write(netlink, formers, links[wanted.name], wanted)
        else:
            problems.append(f"there is no interface {wanted.name}; its settings are applied when it exists")
    for item, there in _in_order(change):
        link = links.get(item.interface)
        try:
            if link is not None:
                with attempting(f"{'add' if there else 'remove'} {item}"):
                    (_add if there else _remove)(netlink, link.index, item)
            elif there:  # items to be removed disappeared together with the interface
                problems.append(f"there is no interface {item.interface} for {item}")
        except HostError as error:
            problems.append(str(error))
    problems += services.apply(netlink, nftables, formers, change)
    problems += tracking.write(formers, change.tracking)
    return tuple(problems)


def _items(netlink: Netlink, names_by_index: dict[int, str], names: HostNames) -> Iterator[InterfaceItem]:
    for index, name in list(names_by_index.items()):
        if name == names.gateway:  # all its addresses are planned, unlike those of the bridge interface
            yield from (HostAddress(name, address) for _, address in rtnetlink.addresses(netlink, index))
        for neighbour in rtnetlink.neighbours(netlink, index):
            if neighbour.ours:
                yield Neighbour(name, neighbour.address, neighbour.mac)
    for found in rtnetlink.routes(netlink, protocol=rtnetlink.PROTOCOL):
        if found.route.table in {services.TABLE, canaries.TABLE}:
            continue
        if found.index not in names_by_index:  # a route of an interface that was renamed
            link = rtnetlink.link(netlink, found.index)
            names_by_index[found.index] = "" if link is None else link.name
        route = found.route
        yield Route(route.destination, names_by_index[found.index], route.via, route.onlink, route.source)


def _in_order(change: HostChange) -> Iterator[tuple[InterfaceItem, bool]]:
    """Items to remove (False) and add (True), in an order in which they do not affect one another.

    The kernel removes all IPv4 routes together with the last IPv4 address of an interface: new IPv4 addresses are added
    first. It refuses an IPv6 address that exists with another prefix length: old IPv6 addresses are removed first.
    """
    yield from ((item, False) for item in _sorted(change.removed, Neighbour, Route))
    addresses = _sorted(change.removed, HostAddress)
    yield from ((item, False) for item in addresses if item.address.version == 6)
    yield from ((item, True) for item in _sorted(change.added, HostAddress))
    yield from ((item, False) for item in addresses if item.address.version == 4)
    yield from ((item, True) for item in _sorted(change.added, Route, Neighbour))


def _sorted(items: Iterable[Item], *kinds: type[Kind]) -> list[Kind]:
    chosen = [item for item in items if isinstance(item, kinds)]
    return sorted(chosen, key=lambda item: (kinds.index(type(item)), str(item)))


def _add(netlink: Netlink, index: int, item: InterfaceItem) -> None:
    match item:
        case HostAddress():
            rtnetlink.add_address(netlink, index, item.address)
        case Route():
            rtnetlink.add_route(netlink, index, _kernel_route(item))
        case Neighbour():
            rtnetlink.set_neighbour(netlink, index, item.address, item.mac)


def _remove(netlink: Netlink, index: int, item: InterfaceItem) -> None:
    match item:
        case HostAddress():
            rtnetlink.delete_address(netlink, index, item.address)
        case Route():
            rtnetlink.delete_route(netlink, index, _kernel_route(item))
        case Neighbour():
            rtnetlink.delete_neighbour(netlink, index, item.address)


def _kernel_route(route: Route) -> AdapterRoute:
    return AdapterRoute(route.destination, route.via, route.source, onlink=route.onlink, protocol=rtnetlink.PROTOCOL)
