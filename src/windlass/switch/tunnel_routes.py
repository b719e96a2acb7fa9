"""Gives an ovs-vswitchd that forwards in user space its routes for tunnels.

By default it copies the host's routes, and flushes all of them for a moment whenever an interface of the Node is added
or removed: with every Pod, packets of tunnels are lost. With `--disable-system-route` it does not, and has only these
routes (docs/decisions/0013-tunnel-routes.md).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from windlass.model.families import IPAddress, IPNetwork
from windlass.switch.controls import ask
from windlass.switch.ovsdb import SwitchRefusedError

# Seconds between attempts. ovs-vswitchd refuses a route if it knows no address of the bridge interface in that network,
# and it learns of an address a little later than the host has it, without an event.
_PAUSES = (0.01, 0.02, 0.05, 0.1)
# "User: 0.0.0.0/0 dev br-int GW 10.176.25.1 SRC 10.176.25.11"; routes copied from the host are not marked "User".
_SHOWN = re.compile(r"^User: (?P<destination>\S+) dev (?P<bridge>\S+)(?: GW (?P<via>\S+))?", re.MULTILINE)

# A line of `tnl/neigh/show` has an address, its MAC and the bridge.
_NEIGHBOUR = re.compile(r"^(?P<address>\S+)\s+(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\s+(?P<bridge>\S+)", re.MULTILINE)

_LISTENING = re.compile(r"ipv[46]\(dst=([^,]+),")  # in each line of `tnl/ports/show -v`


@dataclass(frozen=True, slots=True)
class TunnelRoute:
    destination: IPNetwork
    via: IPAddress | None = None


async def set_routes(
    socket: str, bridge: str, wanted: Collection[TunnelRoute], addresses: Collection[IPAddress]
) -> None:
    """Make these the only routes by the bridge interface. Sends the difference only.

    `addresses` are the bridge interface's. A switch that receives no tunnel packets at any of them has lost the bridge
    interface and got it back since then. It has kept the routes, but listens there only after they are added again.
    """
    known = set(shown_routes(await ask(socket, "ovs/route/show"), bridge))
    listens = set(listening_addresses(await ask(socket, "tnl/ports/show", "-v")))
    destinations = {route.destination for route in wanted} if listens & set(addresses) else set()
    for route in list(known):
        if route.destination not in destinations:
            await ask(socket, "ovs/route/del", str(route.destination))
            known.remove(route)
    for route in wanted:
        if route not in known:
            await _add(socket, bridge, route)


def shown_routes(text: str, bridge: str) -> Iterator[TunnelRoute]:
    """The configured routes by this bridge in the output of `ovs/route/show`."""
    for shown in _SHOWN.finditer(text):
        if shown["bridge"] == bridge:
            via = ip_address(shown["via"]) if shown["via"] else None
            yield TunnelRoute(ip_network(shown["destination"]), via)


def listening_addresses(text: str) -> Iterator[IPAddress]:
    """The addresses that receive tunnel packets, in the output of `tnl/ports/show -v`."""
    yield from (ip_address(address) for address in _LISTENING.findall(text))


def next_hop(routes: Collection[TunnelRoute], end: IPAddress) -> IPAddress | None:
    """The neighbour whose MAC a packet to this address gets; None if no route leads there."""
    leading = [route for route in routes if end in route.destination]
    return max(leading, key=lambda route: route.destination.prefixlen).via or end if leading else None


async def wait_for_neighbours(socket: str, bridge: str, wanted: Collection[IPAddress]) -> None:
    """Returns when the switch knows the MACs of all of these."""
    while not set(wanted) <= set(shown_neighbours(await ask(socket, "tnl/neigh/show"), bridge)):  # noqa: ASYNC110 - the switch does not announce them
        await asyncio.sleep(_PAUSES[0])


def shown_neighbours(text: str, bridge: str) -> Iterator[IPAddress]:
    """The neighbours of this bridge in the output of `tnl/neigh/show`."""
    yield from (ip_address(shown["address"]) for shown in _NEIGHBOUR.finditer(text) if shown["bridge"] == bridge)


async def _add(socket: str, bridge: str, route: TunnelRoute) -> None:
    via = [str(route.via)] if route.via else []
    for pause in _PAUSES:
        try:
            await ask(socket, "ovs/route/add", str(route.destination), bridge, *via)
        except SwitchRefusedError:
            await asyncio.sleep(pause)
        else:
            return
    await ask(socket, "ovs/route/add", str(route.destination), bridge, *via)
