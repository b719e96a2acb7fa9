"""Moving the uplink's addresses and routes to the bridge interface and back: what belongs there, and in which steps.

Pure. The steps always start from what is found, so that the same function moves, completes a move that was cut short,
restores what was lost with the bridge interface, and undoes a failed attempt.

The host's network manager goes on working: what it adds or renews on the uplink replaces what the bridge interface
holds, and what it withdraws from the bridge interface stays withdrawn. The record is the last resort, for what vanished
together with the bridge interface. Node IPs are never withdrawn.
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
    """Written before anything moves; if need be it is the only place that knows the Node's addresses."""

    uplink: Adapter  # with what was, is or will be moved
    bridge: str
    boot: str  # which run of the machine
    settled_on: int | None = None  # the bridge interface (its index) on which everything was in place


@dataclass(frozen=True, slots=True)
class AddItem:
    """Or change: an address that is there gets these lifetimes."""

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


MoveStep = AddItem | RemoveItem


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
    """The uplink with what belongs to it, wherever that is now.

    `intact`: the families in which the bridge interface has lost nothing by itself (as it does when it goes down), so
    that what is missing was withdrawn by somebody. `now`: what has expired in the record is not restored.
    """
    there = Adapter("", 0, "", 0) if bridge is None else bridge
    if record is None or record.uplink.name != uplink.name or (record.boot != boot and uplink.addresses):
        # The first time; or the machine was started again and has configured its NIC anew, perhaps differently.
        known = there
    else:
        known = _unexpired(record.uplink, node_ips, now)
        if bridge is not None and record.boot == boot and record.settled_on == bridge.index:
            known = _not_withdrawn(known, bridge, node_ips, intact)
    known = _without_source(known, {a.ip for a in replaced_leases(uplink, there, node_ips)})
    of_the_node = tuple(address for address in there.addresses if address.ip in node_ips)
    # The manager knows the uplink and works there: its word is the newest. Then that of the bridge interface.
    return replace(
        uplink,
        addresses=_joined(
            key, known.addresses, of_the_node, uplink.addresses, versions=(there.addresses, uplink.addresses)
        ),
        routes=_joined(key, known.routes, uplink.routes, versions=(there.routes, uplink.routes)),
    )


def replaced_leases(uplink: Adapter, bridge: Adapter, node_ips: Collection[IPAddress]) -> tuple[AdapterAddress, ...]:
    """IPv4 addresses of the bridge interface whose lease ended because the uplink got one for another address.

    A DHCPv4 client has one lease, and cannot remove the old address from an interface that it does not know. The Node
    IPs stay.
    """
    held = {address.ip for address in bridge.addresses}
    if not any(_is_lease(address) and address.ip not in held for address in uplink.addresses):
        return ()
    kept = {address.ip for address in uplink.addresses} | set(node_ips)
    return tuple(address for address in bridge.addresses if _is_lease(address) and address.ip not in kept)


def lasting(adapter: Adapter, node_ips: Collection[IPAddress]) -> Adapter:
    """The Node IPs do not expire on the bridge interface: no one would renew them there while no agent runs."""
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
    """From what `source` and `target` hold to where `target` alone holds what `goal` has, and nothing `replaced`.

    Everything is on the target before it leaves the source. Only of IPv6 routes there would then be two halves of one,
    and an IPv6 address cannot be there with two prefix lengths: these are away for the microseconds between two steps.
    """
    for address in goal.addresses:
        yield from _address_steps(address, target)
    # A route without a next hop may be how the next hop of another is reached.
    for route in sorted(goal.routes, key=lambda route: route.is_indirect):
        yield from _route_steps(route, source, target)
    yield from (RemoveItem(target, address) for address in replaced)
    if source is not None:
        # Backwards, so that what is left is at any moment the beginning: the order of addresses has a meaning.
        moved = {key(address) for address in goal.addresses}
        yield from (RemoveItem(source, address) for address in reversed(source.addresses) if key(address) in moved)


def key(item: MovableItem) -> Hashable:
    """What makes two the same one, perhaps with other lifetimes or another next hop."""
    if isinstance(item, AdapterAddress):
        return item.ip
    if item.is_learned:  # the kernel's own metric for these differs from ours: see `AdapterRoute.is_learned`
        return item.destination, item.table, item.via
    return item.destination, item.metric, item.table, item.tos


def alike(one: Adapter, other: Adapter) -> bool:
    """Equal, but for the seconds that pass between two readings of a lifetime."""
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
        # The kernel of the target has learned it, too: its own is refreshed by the router, and is enough.
        is_there = any(not there.is_moved for there in held) or any(_same(there, route.moved) for there in held)
        outdated = [there for there in held if there.is_moved and (not is_there or len(held) > 1)]
        route = route.moved
    else:
        is_there = any(_same(there, route) for there in held)
        outdated = [] if is_there else held
    add: list[MoveStep] = [] if is_there else [AddItem(target, route)]
    leaving += [RemoveItem(target, there) for there in outdated]
    yield from (*add, *leaving) if route.destination.version == 4 else (*leaving, *add)


def _not_withdrawn(
    known: Adapter, bridge: Adapter, node_ips: Collection[IPAddress], intact: Collection[Family]
) -> Adapter:
    """Everything was in place on this very interface. What is missing has been taken away on purpose: a virtual address
    that moved to another Node, a route that its router withdrew; but never an address of the Node.

    With an address that is gone the kernel removes routes, too: where a Node IP is missing, routes are restored.
    """
    held = {address.ip for address in bridge.addresses}
    whole = {family for family in intact if all(ip in held for ip in node_ips if family_of(ip) is family)}
    # IPv4 addresses stay when the interface goes down.
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
    """One for each key, in the first order found; in the last of the versions that has it."""
    joined: dict[Hashable, T] = {}
    for part in parts:
        for item in part:
            joined.setdefault(key(item), item)
    for version in versions:
        joined.update({key(item): item for item in version if key(item) in joined})
    return tuple(joined.values())
