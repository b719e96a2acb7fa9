"""The items of a plan in the kernel: which of them are there, and making it so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from windlass.host.linux import rtnetlink, settings
from windlass.host.linux.netlink import Netlink, told
from windlass.host.plans import Address, HostChange, HostNames, HostPlan, Item, Neighbour, Route
from windlass.host.protocol import HostError, UplinkRoute


def installed(netlink: Netlink, names: HostNames) -> HostPlan:
    found = [link for link in (rtnetlink.link(netlink, name) for name in names) if link is not None]
    return HostPlan(
        settings=frozenset(settings.read(netlink, link) for link in found),
        items=frozenset(_items(netlink, {link.index: link.name for link in found}, names)),
    )


def apply(netlink: Netlink, change: HostChange) -> tuple[str, ...]:
    names = {wanted.name for wanted in change.settings} | {i.interface for i in change.added | change.removed}
    links = {link.name: link for link in (rtnetlink.link(netlink, name) for name in names) if link is not None}
    problems = []
    for wanted in change.settings:
        if wanted.name in links:
            problems += settings.write(netlink, links[wanted.name], wanted)
        else:
            problems.append(f"there is no interface {wanted.name}: its settings wait until there is")
    for item, there in _in_order(change):
        link = links.get(item.interface)
        try:
            if link is not None:
                with told(f"{'add' if there else 'remove'} {item}"):
                    (_add if there else _remove)(netlink, link.index, item)
            elif there:  # what is to be removed went with its interface
                problems.append(f"there is no interface {item.interface} for {item}")
        except HostError as error:
            problems.append(str(error))
    return tuple(problems)


def _items(netlink: Netlink, names_by_index: dict[int, str], names: HostNames) -> Iterator[Item]:
    for index, name in list(names_by_index.items()):
        if name == names.gateway:  # wholly ours; the bridge interface has the uplink's addresses, not planned ones
            yield from (Address(name, address) for _, address in rtnetlink.addresses(netlink, index))
        for neighbour in rtnetlink.neighbours(netlink, index):
            if neighbour.ours:
                yield Neighbour(name, neighbour.address, neighbour.mac)
    for found in rtnetlink.routes(netlink, protocol=rtnetlink.PROTOCOL):
        if found.index not in names_by_index:  # left from when an interface had another name
            link = rtnetlink.link(netlink, found.index)
            names_by_index[found.index] = "" if link is None else link.name
        route = found.route
        yield Route(route.destination, names_by_index[found.index], route.via, route.onlink, route.source)


def _in_order(change: HostChange) -> Iterator[tuple[Item, bool]]:
    """Addresses come before they go, and before what depends on them: with the last address of an interface the
    kernel also takes its routes away.
    """
    yield from ((item, False) for item in _sorted(change.removed, Neighbour, Route))
    yield from ((item, True) for item in _sorted(change.added, Address))
    yield from ((item, False) for item in _sorted(change.removed, Address))
    yield from ((item, True) for item in _sorted(change.added, Route, Neighbour))


def _sorted(items: Iterable[Item], *kinds: type[Item]) -> list[Item]:
    return sorted((item for item in items if isinstance(item, kinds)), key=lambda i: (kinds.index(type(i)), str(i)))


def _add(netlink: Netlink, index: int, item: Item) -> None:
    match item:
        case Address():
            rtnetlink.add_address(netlink, index, item.address)
        case Route():
            rtnetlink.add_route(netlink, index, _kernel_route(item))
        case Neighbour():
            rtnetlink.set_neighbour(netlink, index, item.address, item.mac)


def _remove(netlink: Netlink, index: int, item: Item) -> None:
    match item:
        case Address():
            rtnetlink.delete_address(netlink, index, item.address)
        case Route():
            rtnetlink.delete_route(netlink, index, _kernel_route(item))
        case Neighbour():
            rtnetlink.delete_neighbour(netlink, index, item.address)


def _kernel_route(route: Route) -> UplinkRoute:
    return UplinkRoute(route.destination, route.via, route.source, onlink=route.onlink, protocol=rtnetlink.PROTOCOL)
