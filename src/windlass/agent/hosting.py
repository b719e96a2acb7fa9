"""The host of this Node: its uplink given to the bridge, and what it shall hold, as a whole or changed a little.

What is in the way of an item is told, and costs nothing else: it is looked at again after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from windlass.agent.areas import Area
from windlass.host.plans import HostChange, HostNames, HostPlan, Item, diff
from windlass.host.protocol import Host, HostError
from windlass.model.families import IPAddress
from windlass.switch.bridge_specs import BridgeSpec
from windlass.switch.bridges import add_uplink, remove_uplink
from windlass.switch.ovsdb import Database, SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError


class Hosting:
    def __init__(
        self, host: Host, report: Callable[[Area, Iterable[str]], object], look_again: Callable[[], object]
    ) -> None:
        self._host = host
        self._report = report
        self._look_again = look_again

    async def take_uplink(self, database: Database, spec: BridgeSpec, node_ips: Collection[IPAddress]) -> None:
        """The NIC becomes a port of the bridge, and the bridge interface gets its addresses and routes.

        The wire follows the Node IPs: after a failure the NIC leaves the bridge only if the host says that it holds
        them all. A cancelled caller still waits for the end: half way is the one state in which no one answers.
        """
        taking = asyncio.ensure_future(self._take_uplink(database, spec, node_ips))
        try:
            await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.gather(taking, return_exceptions=True)
            raise

    async def _take_uplink(self, database: Database, spec: BridgeSpec, node_ips: Collection[IPAddress]) -> None:
        away = database.view.problem
        if away and await self._host.uplink.needs_wire(spec.uplink, spec.name, node_ips):
            raise SwitchUnreachableError(away)  # what the view still shows may be over: the NIC works, and stays
        try:
            await add_uplink(database, spec)
            adopted = await self._host.uplink.adopt(spec.uplink, spec.name, node_ips)
        except Exception:
            with suppress(HostError, SwitchRefusedError, SwitchUnreachableError):
                if await self._host.uplink.needs_wire(spec.uplink, spec.name, node_ips):
                    await remove_uplink(database, spec.name)
            raise
        self._tell(Area.UPLINK, adopted.problems)

    async def lead_to(self, names: HostNames, ways: Collection[Item]) -> None:
        """The ways to new peers, before flows lead there. What fails here, `hold` does again and reports."""
        with suppress(HostError):
            installed = await self._host.installed(names)
            await self._host.apply(HostChange(added=frozenset(ways) - installed.items))

    async def hold(self, names: HostNames, desired: HostPlan) -> None:
        """All of this, whatever is there."""
        problems = await self._host.apply(diff(await self._host.installed(names), desired))
        self._tell(Area.HOST, problems)

    async def change(self, change: HostChange) -> None:
        """This alone. What is in the way keeps nobody waiting, not even as an error."""
        if not change:
            return
        try:
            problems = await self._host.apply(change)
        except HostError as error:
            problems = (str(error),)
        if problems:
            self._tell(Area.HOST, problems)

    def _tell(self, area: Area, problems: Collection[str]) -> None:
        self._report(area, problems)
        if problems:
            self._look_again()
