"""Tunnels of a switch that forwards in user space: the agent tells it the routes, and has it learn the ends beforehand.

The kernel's datapath needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NoReturn

from windlass.agent.areas import Area
from windlass.host.protocol import Uplink
from windlass.model.families import IPAddress
from windlass.nodes.config import Config
from windlass.switch.controls import control_socket
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError
from windlass.switch.tunnel_neighbours import Send, TunnelNeighbours
from windlass.switch.tunnel_routes import TunnelRoute, set_routes


class Tunnelling:
    def __init__(
        self,
        config: Config,
        send: Send,
        report: Callable[[Area, Iterable[str]], object],
        look_again: Callable[[], object],
    ) -> None:
        self._config = config
        self._neighbours = TunnelNeighbours(send)
        self._report = report
        self._look_again = look_again

    async def hold(self, adapter: Uplink, ends: Collection[IPAddress], port: int, life: int) -> None:
        """As `TunnelNeighbours.resolve`, after the routes have been set."""
        await self._tell_routes(adapter)
        await self._neighbours.resolve(ends, port, life)

    async def keep(self) -> NoReturn:
        await self._neighbours.keep()

    async def _tell_routes(self, adapter: Uplink) -> None:
        """A failure does not stop the pass: a switch that copies the host's routes works without."""
        problems = []
        try:
            socket = control_socket(self._config.ovs_run_directory)
            held = [address.ip for address in adapter.addresses]
            await set_routes(socket, self._config.bridge, tunnel_routes(adapter), held)
        except (SwitchRefusedError, SwitchUnreachableError) as error:
            problems.append(str(error))
            self._look_again()
        self._report(Area.TUNNEL_ROUTES, problems)


def tunnel_routes(adapter: Uplink) -> list[TunnelRoute]:
    """The routes to other Nodes: the networks of the NIC, and those behind a router in one of them."""
    networks = {address.network for address in adapter.addresses}
    routes = {network: TunnelRoute(network) for network in networks}
    for route in adapter.routes:
        if route.via and any(route.via in network for network in networks):
            routes[route.destination] = TunnelRoute(route.destination, route.via)
    return list(routes.values())
