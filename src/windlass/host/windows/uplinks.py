"""Moves addresses and routes of the uplink to the bridge interface and back.

When HNS creates a network on a NIC, it moves them to its own interface, which becomes the bridge interface, but
sometimes not all of them. So a move adds only what is missing, and can be repeated at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

import msgspec

from windlass import files
from windlass.host import uplink_choices
from windlass.host.protocol import Adopted, HostError, attempting
from windlass.host.windows import adapters
from windlass.host.windows.adapters import WindowsAdapter, WindowsRoute
from windlass.host.windows.ip_helper import IpHelper
from windlass.model.families import IPAddress, IPInterface


class _StoredUplinkRoute(msgspec.Struct, omit_defaults=True):
    destination: str
    via: str | None = None
    metric: int = 0


class _StoredUplink(msgspec.Struct):
    """Written before anything is moved: it may become the only copy of the Node's addresses."""

    uplink: str
    bridge: str
    addresses: list[str]
    routes: list[_StoredUplinkRoute]


def find(
    helper: IpHelper,
    record_file: Path,
    bridge: str,
    node_ips: Collection[IPAddress],
    name: str | None,
    port: str | None,
) -> WindowsAdapter:
    record = _load(record_file)
    if name is None:
        remembered = record.uplink if record is not None and record.bridge == bridge else port
        adopted = adapters.read(helper, bridge)
        name = uplink_choices.chosen_uplink(
            bridge,
            node_ips,
            adapters.holders(helper, node_ips),
            remembered,
            record_file,
            is_adopted=adopted is not None and adopted.has_any(node_ips),
        )
    uplink = adapters.read(helper, name)
    if uplink is None:
        raise HostError(f"there is no interface {name}, which should be the uplink")
    return _with_all(record, uplink, adapters.read(helper, bridge))


def adopt(
    helper: IpHelper, record_file: Path, uplink_name: str, bridge_name: str, node_ips: Collection[IPAddress]
) -> Adopted:
    uplink, bridge = uplink_choices.both_interfaces(uplink_name, bridge_name, partial(adapters.read, helper))
    goal = _with_all(_load(record_file), uplink, bridge)
    known = (address.ip for address in goal.addresses)
    uplink_choices.require_known(uplink_name, bridge_name, known, node_ips, record_file)
    is_all_on_uplink = uplink.has_all(node_ips) and not bridge.has_any(node_ips)
    problems = _recorded_first(record_file, goal, bridge_name, must_be=is_all_on_uplink)
    refused = list(_move(helper, goal, uplink_name, bridge_name))
    now = adapters.read(helper, bridge_name)
    if refused and (is_all_on_uplink or now is None or not now.has_any(node_ips)):
        _undo(helper, record_file, goal, bridge_name, refused)
        raise HostError(f"{'; '.join(refused)}: the addresses are back on {uplink_name}")
    return Adopted(goal.uplink, (*problems, *refused))


def record(helper: IpHelper, record_file: Path, uplink_name: str, bridge_name: str) -> None:
    """Call it before anything changes the addresses of the uplink."""
    uplink = adapters.read(helper, uplink_name)
    if uplink is None:
        raise HostError(f"there is no interface {uplink_name}, which should be the uplink")
    goal = _with_all(_load(record_file), uplink, adapters.read(helper, bridge_name))
    _recorded_first(record_file, goal, bridge_name, must_be=True)


def is_back(record_file: Path, uplink_name: str, helper: IpHelper) -> bool:
    """Whether the uplink has every address of the record."""
    stored, uplink = _load(record_file), adapters.read(helper, uplink_name)
    addresses = stored.addresses if stored is not None else []
    return uplink is not None and set(map(ip_interface, addresses)) <= set(uplink.addresses)


def needs_wire(helper: IpHelper, uplink_name: str, bridge_name: str, node_ips: Collection[IPAddress]) -> bool:
    uplink, bridge = adapters.read(helper, uplink_name), adapters.read(helper, bridge_name)
    on_bridge = bridge is not None and bridge.has_any(node_ips)
    return uplink is not None and uplink.has_all(node_ips) and not on_bridge


def release(helper: IpHelper, record_file: Path, uplink_name: str, bridge_name: str, *, keep_record: bool) -> None:
    uplink = adapters.read(helper, uplink_name)
    if uplink is None:
        raise HostError(f"there is no interface {uplink_name}; its addresses and routes stay recorded in {record_file}")
    goal = _with_all(_load(record_file), uplink, adapters.read(helper, bridge_name))
    refused = list(_move(helper, goal, bridge_name, uplink_name))
    if refused:
        raise HostError("; ".join(refused))
    if not keep_record:
        _forget(record_file)


def recorded(helper: IpHelper, record_file: Path) -> str | None:
    record = _load(record_file)
    return record.uplink if record and helper.link(record.uplink) else None


def _with_all(record: _StoredUplink | None, uplink: WindowsAdapter, bridge: WindowsAdapter | None) -> WindowsAdapter:
    """The uplink with all its addresses and routes, whichever interface has them now."""
    addresses: dict[IPInterface, None] = dict.fromkeys(uplink.addresses)
    routes = {(route.destination, route.via): route for route in uplink.routes}
    if bridge is not None:
        addresses |= dict.fromkeys(bridge.addresses)
        routes |= {(route.destination, route.via): route for route in bridge.routes}
    if record is not None and record.uplink == uplink.name:
        addresses |= dict.fromkeys(map(ip_interface, record.addresses))
        for stored in record.routes:
            route = _read_route(stored)
            routes.setdefault((route.destination, route.via), route)
    in_order = sorted(routes.values(), key=lambda route: (route.via is not None, str(route)))
    return replace(uplink, addresses=tuple(sorted(addresses, key=str)), routes=tuple(in_order))


def _move(helper: IpHelper, goal: WindowsAdapter, source_name: str, target_name: str) -> Iterator[str]:
    """Yields a sentence for each item that Windows refused; that item stays, or is restored, where it was.

    Windows refuses an address that another interface has, so each item is removed from one interface first.
    """
    source, target = adapters.read(helper, source_name), adapters.read(helper, target_name)
    if target is None:
        yield f"{target_name} has disappeared"
        return
    for address in goal.addresses:
        if source is not None and address in source.addresses and address in target.addresses:
            helper.delete_address(source.index, address)
        elif address not in target.addresses:
            yield from _move_address(helper, address, source, target)
    held = {(route.destination, route.via) for route in target.routes}
    for route in goal.routes:
        if (route.destination, route.via) not in held:
            yield from _move_route(helper, route, source, target)


def _move_address(
    helper: IpHelper, address: IPInterface, source: WindowsAdapter | None, target: WindowsAdapter
) -> Iterator[str]:
    has_source = source is not None and address in source.addresses
    try:
        if source is not None and has_source:
            with attempting(f"remove address {address} from {source.name}"):
                helper.delete_address(source.index, address)
        with attempting(f"add address {address} to {target.name}"):
            helper.add_address(target.index, address)
    except HostError as error:
        if source is not None and has_source:
            with suppress(OSError):
                helper.add_address(source.index, address)
        yield str(error)


def _move_route(
    helper: IpHelper, route: WindowsRoute, source: WindowsAdapter | None, target: WindowsAdapter
) -> Iterator[str]:
    try:
        if source is not None:
            with suppress(OSError):  # Windows removed it together with the address
                helper.delete_route(source.index, route.destination, route.via)
        with attempting(f"add {route} to {target.name}"):
            helper.add_route(target.index, route.destination, route.via, route.metric)
    except HostError as error:
        if source is not None:
            with suppress(OSError):
                helper.add_route(source.index, route.destination, route.via, route.metric)
        yield str(error)


def _undo(helper: IpHelper, record_file: Path, goal: WindowsAdapter, bridge_name: str, refused: list[str]) -> None:
    left = list(_move(helper, goal, bridge_name, goal.name))
    if left:
        raise HostError(
            f"{'; '.join(refused)}; undoing it also failed: {'; '.join(left)}; the addresses and routes of {goal.name} "
            f"are in {record_file}"
        )
    _forget(record_file)


# --- the record -------------------------------------------------------------------------------------------------------


def _recorded_first(record_file: Path, goal: WindowsAdapter, bridge: str, *, must_be: bool) -> tuple[str, ...]:
    record = _StoredUplink(goal.name, bridge, [*map(str, goal.addresses)], [*map(_store, goal.routes)])
    try:
        if _load(record_file) != record:
            files.write(record_file, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    except OSError as error:
        if must_be:
            raise HostError(f"could not write the record: {error}; {goal.name} was not changed") from error
        return (f"could not write the record: {error}; new items of {goal.name} would be lost together with {bridge}",)
    return ()


def _load(record_file: Path) -> _StoredUplink | None:
    try:
        return msgspec.json.decode(record_file.read_bytes(), type=_StoredUplink)
    except (OSError, msgspec.DecodeError):
        return None


def _forget(record_file: Path) -> None:
    with attempting(f"remove the record {record_file}"):
        files.remove(record_file)


def _store(route: WindowsRoute) -> _StoredUplinkRoute:
    return _StoredUplinkRoute(str(route.destination), str(route.via) if route.via else None, route.metric)


def _read_route(stored: _StoredUplinkRoute) -> WindowsRoute:
    via = ip_address(stored.via) if stored.via else None
    return WindowsRoute(ip_network(stored.destination), via, stored.metric)
