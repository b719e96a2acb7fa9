"""Tunnels of a switch that forwards in user space: the agent tells it the routes, and has it learn the ends beforehand.

The kernel's datapath needs neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NoReturn

from windlass.agent.areas import Area
from windlass.host.protocol import Uplink
from windlass.model.families import IPAddress
from windlass.nodes.config import Config
from windlass.switch.controls import control_socket
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError
from windlass.switch.tunnel_neighbours import TunnelNeighbours
from windlass.switch.tunnel_routes import TunnelRoute, next_hop, set_routes, wait_for_neighbours

ANSWERS_WITHIN = 0.2  # seconds for a new end to tell its MAC; one that is down must not delay a pass for longer


class Tunnelling:
    def __init__(
        self,
        config: Config,
        report: Callable[[Area, Iterable[str]], object],
        look_again: Callable[[], object],
    ) -> None:
        self._config = config
        self._neighbours = TunnelNeighbours(str(config.openflow_socket))
        self._report = report
        self._look_again = look_again

    async def hold(self, adapter: Uplink, ends: Collection[IPAddress], port: int, life: int) -> None:
        """As `TunnelNeighbours.resolve`, after the routes have been set."""
        await self._tell_routes(adapter)
        await self._neighbours.resolve(ends, port, life)

    async def prepare(self, adapter: Uplink, ends: Collection[IPAddress], port: int, life: int) -> None:
        """As `hold`; returns when the switch knows the MACs of those that are new, if they answer in time.

        Before flows lead there: the first packets to an end whose MAC is not known are lost.
        """
        new = set(ends).difference(self._neighbours.remotes)
        await self.hold(adapter, ends, port, life)
        if new:
            routes = tunnel_routes(adapter)
            with suppress(TimeoutError, SwitchRefusedError, SwitchUnreachableError):
                async with asyncio.timeout(ANSWERS_WITHIN):
                    await wait_for_neighbours(
                        control_socket(self._config.ovs_run_directory),
                        self._config.bridge,
                        {hop for end in new if (hop := next_hop(routes, end))},
                    )

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
