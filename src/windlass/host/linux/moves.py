"""Carries out the steps of `migrations`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import suppress

from windlass.host.linux import leases, migrations, rtnetlink
from windlass.host.linux.adapter_state import AdapterAddress, AdapterRoute
from windlass.host.linux.migrations import AddItem, MovableItem, MoveRoute, MoveStep, RemoveItem
from windlass.host.linux.netlink import Netlink
from windlass.host.protocol import HostError, attempting


def carry_out(netlink: Netlink, step: MoveStep) -> None:
    with attempting(str(step)):
        match step:
            case AddItem(to, AdapterRoute() as route):
                rtnetlink.add_route(netlink, to.index, route, instead=True)
            case AddItem(to, AdapterAddress() as address):
                leases.put(netlink, to.index, address)
            case MoveRoute(by, to, route):
                rtnetlink.move_route(netlink, by.index, to.index, route)
            case RemoveItem(by, AdapterRoute() as route):
                rtnetlink.delete_route(netlink, by.index, route)
            case RemoveItem(by, AdapterAddress() as address):
                leases.delete(netlink, by.index, address)


def carry_out_possible(netlink: Netlink, steps: Iterable[MoveStep]) -> dict[MovableItem, str]:
    """Returns refused items with reasons. An item that the target refuses stays on its source, or goes back there."""
    refused: dict[Hashable, tuple[MovableItem, str]] = {}
    removed: dict[Hashable, list[RemoveItem]] = {}
    for step in steps:
        key = migrations.key(step.item)
        if isinstance(step, RemoveItem) and key in refused:
            continue
        try:
            carry_out(netlink, step)
        except HostError as error:
            refused[key] = (step.item, str(error))
            for before in removed.get(key, ()):
                with suppress(HostError):
                    carry_out(netlink, AddItem(before.by, before.item))
        else:
            if isinstance(step, RemoveItem):
                removed.setdefault(key, []).append(step)
    return dict(refused.values())
