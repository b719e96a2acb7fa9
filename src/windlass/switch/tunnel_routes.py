"""The routes by which tunnels leave, told to an ovs-vswitchd that forwards in user space.

By itself it copies the host's routes, and forgets all of them for a moment whenever any interface of the Node comes or
goes: what it works out for a tunnel in that moment is wrong, and packets are lost with every Pod. One that was started
with `--disable-system-route` does not; it knows no routes but these (docs/decisions/0013-tunnel-routes.md).
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

# Seconds. It refuses a route for whose network it knows no address of the bridge interface, and it learns of one a
# little later than the host has it; nothing tells when.
_PAUSES = (0.01, 0.02, 0.05, 0.1)
# "User: 0.0.0.0/0 dev br-int GW 10.176.25.1 SRC 10.176.25.11"; those that it copied are not the "User"'s.
_SHOWN = re.compile(r"^User: (?P<destination>\S+) dev (?P<bridge>\S+)(?: GW (?P<via>\S+))?", re.MULTILINE)

_LISTENING = re.compile(r"ipv[46]\(dst=([^,]+),")  # in each line of `tnl/ports/show -v`


@dataclass(frozen=True, slots=True)
class TunnelRoute:
    destination: IPNetwork
    via: IPAddress | None = None


async def tell_routes(
    socket: str, bridge: str, wanted: Collection[TunnelRoute], addresses: Collection[IPAddress]
) -> None:
    """These and no others lead out by the bridge interface. Where they do already, nothing is changed.

    `addresses` are the bridge interface's. A switch that receives no tunnel packets at any of them has lost the bridge
    interface and got it back since it was told: it keeps the routes then, but has to be told again to listen there.
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
    """Of the answer to `ovs/route/show`: those that somebody told, by this bridge."""
    for shown in _SHOWN.finditer(text):
        if shown["bridge"] == bridge:
            via = ip_address(shown["via"]) if shown["via"] else None
            yield TunnelRoute(ip_network(shown["destination"]), via)


def listening_addresses(text: str) -> Iterator[IPAddress]:
    """Of the answer to `tnl/ports/show -v`: where tunnel packets are received."""
    yield from (ip_address(address) for address in _LISTENING.findall(text))


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
