"""Tunnels of a switch that forwards in user space: the agent gives it the routes, and has it learn the MACs of peers.

The kernel datapath needs neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from windlass.agent.areas import Area, Report
from windlass.agent.switching import ProgrammedSwitch
from windlass.host.protocol import Uplink
from windlass.model.families import IPAddress
from windlass.model.nodes import TrafficMode
from windlass.nodes.config import Config
from windlass.pipeline.routing import tunnel_ends
from windlass.switch.controls import control_socket
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError
from windlass.switch.tunnel_neighbours import TunnelNeighbours
from windlass.switch.tunnel_routes import TunnelRoute, next_hop, set_routes, wait_for_neighbours

ANSWERS_WITHIN = 0.2  # seconds for a new peer to send its MAC; one that is down must not delay flows for longer


@dataclass(eq=False)
class Tunnelling:
    _config: Config
    _switch: ProgrammedSwitch
    _report: Report
    _look_again: Callable[[], object]
    _routes: list[TunnelRoute] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.neighbours = TunnelNeighbours(str(self._config.openflow_socket))

    async def hold(self, uplink: Uplink) -> None:
        """Returns when the switch has the routes to other Nodes, and has started to resolve the MACs of peers."""
        await self.set_routes(uplink)
        await self._resolve()

    async def set_routes(self, uplink: Uplink) -> None:
        """A failure does not stop the pass: a switch that copies the host's routes works without these."""
        if not self._is_needed:
            return
        problems = []
        self._routes = tunnel_routes(uplink)
        try:
            socket = control_socket(self._config.ovs_run_directory)
            held = [address.ip for address in uplink.addresses]
            await set_routes(socket, self._config.bridge, self._routes, held)
        except (SwitchRefusedError, SwitchUnreachableError) as error:
            problems.append(str(error))
            self._look_again()
        self._report(Area.TUNNEL_ROUTES, problems)

    async def prepare(self) -> None:
        """Returns when the switch has the MACs of peers that are new, if they answer in time.

        To be called before flows lead there: the first packets to a peer whose MAC is not known are lost.
        """
        known = set(self.neighbours.remotes)
        new = await self._resolve() - known
        if new:
            with suppress(TimeoutError, SwitchRefusedError, SwitchUnreachableError):
                async with asyncio.timeout(ANSWERS_WITHIN):
                    await wait_for_neighbours(
                        control_socket(self._config.ovs_run_directory),
                        self._config.bridge,
                        {hop for end in new if (hop := next_hop(self._routes, end))},
                    )

    @property
    def _is_needed(self) -> bool:
        return self._config.is_userspace and self._config.traffic_mode is not TrafficMode.NO_ENCAP

    async def _resolve(self) -> set[IPAddress]:
        """The addresses of all peers behind the tunnel."""
        state = self._switch.state
        if state is None or not self._is_needed:
            return set()
        ends = tunnel_ends(state.node, state.peers.values())
        await self.neighbours.resolve(ends, state.node.ports.tunnel, self._switch.counters.syncs)
        return ends


def tunnel_routes(uplink: Uplink) -> list[TunnelRoute]:
    """The routes to other Nodes: the networks of the NIC, and those behind a router in one of them."""
    networks = {address.network for address in uplink.addresses}
    routes = {network: TunnelRoute(network) for network in networks}
    for route in uplink.routes:
        if route.via and any(route.via in network for network in networks):
            routes[route.destination] = TunnelRoute(route.destination, route.via)
    return list(routes.values())
