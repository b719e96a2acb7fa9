"""Reads what Windlass has installed on a Windows host, and applies changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import ParamSpec

from windlass.host.plans import (
    HostAddress,
    HostChange,
    HostNames,
    HostPlan,
    InterfaceItem,
    InterfaceSettings,
    Neighbour,
    Route,
)
from windlass.host.protocol import HostError, attempting
from windlass.host.windows import adapters
from windlass.host.windows.ip_helper import IpHelper, is_up
from windlass.host.windows.ip_structures import ForwardRow, IPInterfaceRow, LinkRow
from windlass.host.windows.metrics import METRIC
from windlass.model.families import Family, IPAddress, IPInterface, IPNetwork, family_of
from windlass.pipeline.reserved import VIRTUAL_CLIENT

P = ParamSpec("P")

_VIRTUAL = {VIRTUAL_CLIENT[family] for family in Family}


def installed(helper: IpHelper, names: HostNames) -> HostPlan:
    links = {link.index: link for link in helper.links()}
    known = {index: link.alias for index, link in links.items()}
    addresses: dict[int, list[IPInterface]] = {}
    for row in helper.addresses():
        if adapters.is_global(row.address.ip):
            addresses.setdefault(row.index, []).append(row.interface)
    gateway = next((index for index, name in known.items() if name == names.gateway), None)
    items: set[InterfaceItem] = set()
    if gateway is not None:  # Windlass owns all its addresses, unlike those of the bridge interface
        items.update(HostAddress(names.gateway, address) for address in addresses.get(gateway, ()))
    sources = {family_of(address.ip): address.ip for address in addresses.get(gateway or 0, ())}
    for found in helper.routes():
        if found.metric == METRIC and known.get(found.index, "") in names:
            items.add(_route(found, known[found.index], names, sources))
    for neighbour in helper.neighbours():
        if known.get(neighbour.index) == names.gateway:
            items.add(Neighbour(names.gateway, neighbour.address.ip, neighbour.mac))
    settings = (_settings(helper, link, names) for link in links.values() if link.alias in names)
    return HostPlan(frozenset(settings), frozenset(items))


def apply(helper: IpHelper, change: HostChange) -> tuple[str, ...]:
    """Returns a sentence for each item that failed."""
    indices = {link.alias: link.index for link in helper.links()}
    problems = []
    for settings in change.settings:
        problems += _attempted(_apply_settings, helper, indices, settings)
    removed = [item for item in change.removed if isinstance(item, InterfaceItem) and item.interface in indices]
    added = [item for item in change.added if isinstance(item, InterfaceItem)]
    for item in sorted(removed, key=lambda item: (-_order(item), str(item))):
        if not isinstance(item, HostAddress):
            problems += _attempted(_remove, helper, indices[item.interface], item)
    kept = _own_routes(helper)
    for item in sorted(removed, key=str):
        if isinstance(item, HostAddress):
            problems += _attempted(_remove, helper, indices[item.interface], item)
    for item in sorted(added, key=lambda item: (_order(item), str(item))):
        if item.interface not in indices:
            problems.append(f"there is no interface {item.interface} for {item}")
        else:
            problems += _attempted(_add, helper, indices[item.interface], item)
    if any(isinstance(item, HostAddress) for item in removed):
        problems += _attempted(_restore, helper, kept)
    return tuple(problems)


def _own_routes(helper: IpHelper) -> set[tuple[int, IPNetwork, IPAddress | None]]:
    return {(row.index, row.destination, row.via) for row in helper.routes() if row.metric == METRIC}


def _restore(helper: IpHelper, kept: set[tuple[int, IPNetwork, IPAddress | None]]) -> None:
    """Windows may remove routes together with the address that they used."""
    for index, destination, via in sorted(kept - _own_routes(helper), key=str):
        with attempting(f"restore route {destination}"):
            helper.add_route(index, destination, via, METRIC)


def clean(helper: IpHelper, names: HostNames) -> tuple[str, ...]:
    return apply(helper, HostChange(removed=installed(helper, names).items))


def _settings(helper: IpHelper, link: LinkRow, names: HostNames) -> InterfaceSettings:
    rows = {family: row for family in Family if (row := _row(helper, link.index, family))}
    return InterfaceSettings(
        link.alias,
        up=is_up(link),
        mac=link.mac,
        mtu=rows[Family.IPV4].mtu if Family.IPV4 in rows else None,
        forwards=frozenset(family for family, row in rows.items() if row.forwarding),
        # Windows needs no setting to forward packets whose source is the Node's own address.
        accepts_own_source=link.alias == names.gateway,
        kernel_ingress=True,
    )


def _row(helper: IpHelper, index: int, family: Family) -> IPInterfaceRow | None:
    """None if the interface lacks this family."""
    try:
        return helper.settings(index, family)
    except OSError:
        return None


def _apply_settings(helper: IpHelper, indices: Mapping[str, int], wanted: InterfaceSettings) -> None:
    if wanted.name not in indices:
        raise HostError(f"there is no interface {wanted.name}; its settings are applied when it exists")
    index = indices[wanted.name]
    for family in Family if wanted.mtu is not None else sorted(wanted.forwards, key=str):
        if family in wanted.forwards or _row(helper, index, family):
            with attempting(f"set MTU and forwarding of {wanted.name} for {family}"):
                helper.change_settings(index, family, forwarding=family in wanted.forwards or None, mtu=wanted.mtu)


def _route(row: ForwardRow, interface: str, names: HostNames, sources: Mapping[Family, IPAddress]) -> Route:
    """The route as it was planned. Windows accepts any next hop, and uses the interface's address as the source."""
    destination, via = row.destination, row.via
    is_onlink = via is not None and interface == names.gateway
    is_virtual = via in _VIRTUAL or any(destination == ip_network(address) for address in _VIRTUAL)
    return Route(destination, interface, via, is_onlink, sources.get(family_of(destination)) if is_virtual else None)


def _order(item: InterfaceItem) -> int:
    """Addresses are added before the routes that use them, and removed after them."""
    return (HostAddress, Route, Neighbour).index(type(item))


def _add(helper: IpHelper, index: int, item: InterfaceItem) -> None:
    with attempting(f"add {item}"):
        match item:
            case HostAddress():
                helper.add_address(index, item.address)
            case Route():
                helper.add_route(index, item.destination, item.via, METRIC)
            case Neighbour():
                helper.set_neighbour(index, item.address, item.mac)


def _remove(helper: IpHelper, index: int, item: InterfaceItem) -> None:
    with attempting(f"remove {item}"):
        match item:
            case HostAddress():
                helper.delete_address(index, item.address)
            case Route():
                helper.delete_route(index, item.destination, item.via)
            case Neighbour():
                helper.delete_neighbour(index, item.address)


def _attempted(work: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> list[str]:
    try:
        work(*arguments, **named)
    except HostError as error:
        return [str(error)]
    return []
