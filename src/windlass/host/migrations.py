"""Moving the uplink's addresses and routes to the bridge interface and back: what belongs there, and in which steps.

Pure. The steps always start from what is found, so that the same function moves, completes a move that was cut short,
restores what was lost with the bridge interface, and undoes a failed attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from windlass.host.protocol import Adapter, UplinkRoute
from windlass.model.families import IPAddress, IPInterface

T = TypeVar("T", IPInterface, UplinkRoute)
Item = IPInterface | UplinkRoute


@dataclass(frozen=True, slots=True)
class Record:
    """Written before anything moves; if need be it is the only place that knows the Node's addresses."""

    uplink: Adapter  # with what was, is or will be moved
    bridge: str
    boot: str  # which run of the machine
    settled_on: int | None = None  # the bridge interface (its index) on which everything was in place


@dataclass(frozen=True, slots=True)
class Add:
    to: Adapter
    item: Item

    def __str__(self) -> str:
        return f"add {_described(self.item)} to {self.to.name}"


@dataclass(frozen=True, slots=True)
class Remove:
    by: Adapter
    item: Item

    def __str__(self) -> str:
        return f"remove {_described(self.item)} from {self.by.name}"


Step = Add | Remove


def uplink_with_all(
    record: Record | None, uplink: Adapter, bridge: Adapter | None, boot: str, node_ips: Collection[IPAddress] = ()
) -> Adapter:
    """The uplink with what belongs to it, wherever that is now."""
    there = Adapter("", 0, "", 0) if bridge is None else bridge
    if record is None or record.uplink.name != uplink.name or (record.boot != boot and uplink.addresses):
        # The first time; or the machine was started again and has configured its NIC anew, perhaps differently.
        known = there
    elif bridge is not None and record.boot == boot and record.settled_on == bridge.index:
        # An address that is missing where everything was in place has been taken away on purpose (a virtual one that
        # moved to another Node, say); but never that of the Node.
        held = {address.ip for address in bridge.addresses} | set(node_ips)
        taken = {address.ip for address in record.uplink.addresses} - held
        known = replace(
            record.uplink,
            addresses=tuple(address for address in record.uplink.addresses if address.ip not in taken),
            routes=tuple(route for route in record.uplink.routes if route.source not in taken),
        )
    else:
        known = record.uplink
    of_the_node = tuple(address for address in there.addresses if address.ip in node_ips)
    return replace(
        uplink,
        addresses=_joined(_address_key, known.addresses, of_the_node, uplink.addresses, newest=there.addresses),
        routes=_joined(_route_key, known.routes, uplink.routes, newest=there.routes),
    )


def steps(goal: Adapter, source: Adapter | None, target: Adapter) -> Iterator[Step]:
    """From what `source` and `target` hold to where `target` alone holds what `goal` has.

    Everything is on the target before it leaves the source. Only of IPv6 routes there would then be two halves of one,
    so these are away for the microseconds between two steps.
    """
    held = {_address_key(address) for address in target.addresses}
    for address in goal.addresses:
        if _address_key(address) not in held:
            yield Add(target, address)
    routed = {_route_key(route) for route in target.routes}
    # A route without a next hop may be how the next hop of another is reached.
    for route in sorted(goal.routes, key=lambda route: route.via is not None):
        key = _route_key(route)
        add: list[Step] = [Add(target, route)] if key not in routed else []
        remove: list[Step] = (
            [Remove(source, r) for r in source.routes if _route_key(r) == key] if source is not None else []
        )
        yield from (*add, *remove) if route.destination.version == 4 else (*remove, *add)
    if source is not None:
        # Backwards, so that what is left is at any moment the beginning: the order of addresses has a meaning.
        moved = {_address_key(address) for address in goal.addresses}
        yield from (Remove(source, a) for a in reversed(source.addresses) if _address_key(a) in moved)


def _address_key(address: IPInterface) -> Hashable:
    return address.ip


def _route_key(route: UplinkRoute) -> Hashable:
    return route.destination, route.metric, route.table


def _joined(key: Callable[[T], Hashable], *parts: Iterable[T], newest: Iterable[T]) -> tuple[T, ...]:
    """One for each key, in the first order found; in the newest version."""
    joined: dict[Hashable, T] = {}
    for part in parts:
        for item in part:
            joined.setdefault(key(item), item)
    joined.update({key(item): item for item in newest if key(item) in joined})
    return tuple(joined.values())


def _described(item: IPInterface | UplinkRoute) -> str:
    return str(item) if isinstance(item, UplinkRoute) else f"address {item}"
