"""The addresses and routes that belong to the uplink, and the steps that move them to the bridge interface and back.

Pure. The steps start from the current state: the same function moves, completes an interrupted move, restores what was
lost with the bridge interface, and undoes a failed move.

Network managers keep working: what they add or renew on the uplink replaces what the bridge interface has, and what
they remove from the bridge interface stays removed. The record restores what disappeared with the bridge
interface. Node IPs are always kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from windlass.host.linux.adapter_state import Adapter, AdapterAddress, AdapterRoute
from windlass.model.families import Family, IPAddress, family_of

T = TypeVar("T", AdapterAddress, AdapterRoute)
MovableItem = AdapterAddress | AdapterRoute

TOLERANCE = 2  # seconds by which two readings of one lifetime may differ


@dataclass(frozen=True, slots=True)
class UplinkRecord:
    """Written before anything moves: it may become the only place that has the addresses of the Node."""

    uplink: Adapter  # with all addresses and routes to move
    bridge: str
    boot: str  # the ID of the boot
    settled_on: int | None = None  # the index of the bridge interface on which everything was in place


@dataclass(frozen=True, slots=True)
class AddItem:
    """Add the item; an existing address gets these lifetimes."""

    to: Adapter
    item: MovableItem

    def __str__(self) -> str:
        return f"add {self.item} to {self.to.name}"


@dataclass(frozen=True, slots=True)
class RemoveItem:
    by: Adapter
    item: MovableItem

    def __str__(self) -> str:
        return f"remove {self.item} from {self.by.name}"


@dataclass(frozen=True, slots=True)
class MoveRoute:
    """Move an IPv6 route in one step: two copies would form a multipath route."""

    by: Adapter
    to: Adapter
    item: AdapterRoute

    def __str__(self) -> str:
        return f"move {self.item} to {self.to.name}"


MoveStep = AddItem | RemoveItem | MoveRoute


def uplink_with_all(
    record: UplinkRecord | None,
    uplink: Adapter,
    bridge: Adapter | None,
    boot: str,
    node_ips: Collection[IPAddress] = (),
    *,
    intact: Collection[Family] = (),
    now: int = 0,
) -> Adapter:
    """The uplink with everything that belongs to it, whichever interface has it now.

    intact: the families of which the kernel has removed nothing from the bridge interface (as it does when the
    interface goes down): a missing item was removed on purpose. now: expired items of the record are not restored.
    """
    there = Adapter("", 0, "", 0) if bridge is None else bridge
    if record is None or record.uplink.name != uplink.name or (record.boot != boot and uplink.addresses):
        # The first time, or after a reboot, in which the machine has configured its NIC again.
        known = there
    else:
        known = _unexpired(record.uplink, node_ips, now)
        if bridge is not None and record.boot == boot and record.settled_on == bridge.index:
            known = _not_withdrawn(known, bridge, node_ips, intact)
    known = _without_source(known, {a.ip for a in replaced_leases(uplink, there, node_ips)})
    of_the_node = tuple(address for address in there.addresses if address.ip in node_ips)
    # Network managers work on the uplink: its version of an item is the newest, then that of the bridge interface.
    return replace(
        uplink,
        addresses=_joined(
            key, known.addresses, of_the_node, uplink.addresses, versions=(there.addresses, uplink.addresses)
        ),
        routes=_joined(key, known.routes, uplink.routes, versions=(there.routes, uplink.routes)),
    )


def replaced_leases(uplink: Adapter, bridge: Adapter, node_ips: Collection[IPAddress]) -> tuple[AdapterAddress, ...]:
    """IPv4 addresses of the bridge interface whose lease was replaced by one for another address on the uplink.

    A DHCPv4 client has one lease, and cannot remove the old address from an interface that it does not manage. Node IPs
    are kept.
    """
    held = {address.ip for address in bridge.addresses}
    if not any(_is_lease(address) and address.ip not in held for address in uplink.addresses):
        return ()
    kept = {address.ip for address in uplink.addresses} | set(node_ips)
    return tuple(address for address in bridge.addresses if _is_lease(address) and address.ip not in kept)


def lasting(adapter: Adapter, node_ips: Collection[IPAddress]) -> Adapter:
    """Node IPs do not expire on the bridge interface: while no agent runs, no program would renew them."""
    return replace(
        adapter,
        addresses=tuple(
            replace(address, valid_until=None, preferred_until=None) if address.ip in node_ips else address
            for address in adapter.addresses
        ),
    )


def steps(
    goal: Adapter, source: Adapter | None, target: Adapter, replaced: Collection[AdapterAddress] = ()
) -> Iterator[MoveStep]:
    """The steps after which only `target` has the items of `goal`, and has none of `replaced`.

    Items are added to the target before they are removed from the source, so that they are there after each step.
    Exceptions, which are missing for the microseconds between two steps: an IPv6 route that the target has with other
    next hops, and an IPv6 address whose prefix length changes.
    """
    yield from arrivals(goal, source, target)
    yield from (RemoveItem(target, address) for address in replaced)
    if source is not None:
        # In reverse, because the order of addresses matters: the first one is removed last.
        moved = {key(address) for address in goal.addresses}
        yield from (RemoveItem(source, address) for address in reversed(source.addresses) if key(address) in moved)


def arrivals(goal: Adapter, source: Adapter | None, target: Adapter) -> Iterator[MoveStep]:
    """The steps after which `target` has the addresses of `goal`, and only `target` its routes."""
    for address in goal.addresses:
        yield from _address_steps(address, target)
    # Routes without a next hop come first: the next hops of other routes may need them.
    for route in sorted(goal.routes, key=lambda route: route.is_indirect):
        yield from _route_steps(route, source, target)


def key(item: MovableItem) -> Hashable:
    """Items with the same key are versions of one item, for example with different lifetimes or next hops."""
    if isinstance(item, AdapterAddress):
        return item.ip
    if item.is_learned:  # a copy has a different metric: see `AdapterRoute.is_learned`
        return item.destination, item.table, item.via
    return item.destination, item.metric, item.table, item.tos


def alike(one: Adapter, other: Adapter) -> bool:
    """Equal, apart from small differences of lifetimes between two readings."""
    items: list[MovableItem] = [*one.addresses, *one.routes]
    others: list[MovableItem] = [*other.addresses, *other.routes]
    return (
        replace(one, addresses=(), routes=()) == replace(other, addresses=(), routes=())
        and len(items) == len(others)
        and all(_same(a, b) for a, b in zip(items, others, strict=True))
    )


def _address_steps(address: AdapterAddress, target: Adapter) -> Iterator[MoveStep]:
    held = [there for there in target.addresses if key(there) == key(address)]
    if any(_same(there, address) for there in held):
        return
    outdated: list[MoveStep] = [RemoveItem(target, there) for there in held if there.interface != address.interface]
    add: list[MoveStep] = [AddItem(target, address)]
    yield from (*add, *outdated) if address.version == 4 else (*outdated, *add)


def _route_steps(route: AdapterRoute, source: Adapter | None, target: Adapter) -> Iterator[MoveStep]:
    held = [there for there in target.routes if key(there) == key(route)]
    leaving: list[MoveStep] = [RemoveItem(source, r) for r in source.routes if key(r) == key(route)] if source else []
    if route.is_learned:
        # The kernel may have learned the route on the target, too; that one is refreshed and suffices.
        is_there = any(not there.is_moved for there in held) or any(_same(there, route.moved) for there in held)
        outdated = [there for there in held if there.is_moved and (not is_there or len(held) > 1)]
        route = route.moved
    else:
        is_there = any(_same(there, route) for there in held)
        outdated = [] if is_there else held
    old: list[MoveStep] = [RemoveItem(target, there) for there in outdated]
    add: list[MoveStep] = [] if is_there else [AddItem(target, route)]
    if route.destination.version == 4:
        yield from (*add, *leaving, *old)
    elif route.is_learned:  # the copy has another metric
        yield from (*old, *add, *leaving)
    elif source is not None and add and leaving and not old:
        yield MoveRoute(source, target, route)
    else:
        yield from (*leaving, *old, *add)


def _not_withdrawn(
    known: Adapter, bridge: Adapter, node_ips: Collection[IPAddress], intact: Collection[Family]
) -> Adapter:
    """Everything was in place on this interface: a missing item was removed on purpose, for example a virtual address
    that moved to another Node, or a route that a router withdrew. Node IPs are always kept.

    The kernel removes routes together with their source address: if a Node IP is missing, routes are restored.
    """
    held = {address.ip for address in bridge.addresses}
    whole = {family for family in intact if all(ip in held for ip in node_ips if family_of(ip) is family)}
    # IPv4 addresses survive when the interface goes down.
    taken = {
        address.ip
        for address in known.addresses
        if address.ip not in held
        and address.ip not in node_ips
        and (address.version == 4 or family_of(address.ip) in intact)
    }
    routed = {key(route) for route in bridge.routes}
    present = tuple(r for r in known.routes if key(r) in routed or family_of(r.destination) not in whole)
    return _without_source(replace(known, routes=present), taken)


def _without_source(adapter: Adapter, gone: Collection[IPAddress]) -> Adapter:
    return replace(
        adapter,
        addresses=tuple(address for address in adapter.addresses if address.ip not in gone),
        routes=tuple(route for route in adapter.routes if route.source not in gone),
    )


def _unexpired(adapter: Adapter, node_ips: Collection[IPAddress], now: int) -> Adapter:
    lasts = lasting(adapter, [a.ip for a in adapter.addresses if a.ip in node_ips and _has_expired(a.valid_until, now)])
    gone = {address.ip for address in lasts.addresses if _has_expired(address.valid_until, now)}
    current = _without_source(lasts, gone)
    return replace(current, routes=tuple(r for r in current.routes if not _has_expired(r.expires_at, now)))


def _has_expired(until: int | None, now: int) -> bool:
    return until is not None and until <= now


def _is_lease(address: AdapterAddress) -> bool:
    return address.version == 4 and address.valid_until is not None


def _same(one: MovableItem, other: MovableItem) -> bool:
    if isinstance(one, AdapterAddress) and isinstance(other, AdapterAddress):
        return (
            one.interface == other.interface
            and _close(one.valid_until, other.valid_until)
            and _close(one.preferred_until, other.preferred_until)
        )
    if isinstance(one, AdapterRoute) and isinstance(other, AdapterRoute):
        return replace(one, expires_at=None) == replace(other, expires_at=None) and _close(
            one.expires_at, other.expires_at
        )
    return False


def _close(one: int | None, other: int | None) -> bool:
    return one == other or (one is not None and other is not None and abs(one - other) <= TOLERANCE)


def _joined(key: Callable[[T], Hashable], *parts: Iterable[T], versions: tuple[Iterable[T], ...]) -> tuple[T, ...]:
    """One item for each key, in the order of the first occurrence, and in the last version that exists."""
    joined: dict[Hashable, T] = {}
    for part in parts:
        for item in part:
            joined.setdefault(key(item), item)
    for version in versions:
        joined.update({key(item): item for item in version if key(item) in joined})
    return tuple(joined.values())
