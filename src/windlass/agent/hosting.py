"""The host of this Node: its uplink given to the bridge, and what it shall hold, as a whole or changed a little.

What is in the way of an item is told, and costs nothing else: it is looked at again after a while.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from windlass.agent.areas import Area
from windlass.host.plans import HostChange, HostNames, HostPlan, diff
from windlass.host.protocol import Host, HostError
from windlass.model.families import IPAddress
from windlass.switch.bridges import BridgeSpec, add_uplink, remove_uplink
from windlass.switch.ovsdb import Database


class Hosting:
    def __init__(
        self, host: Host, report: Callable[[Area, Iterable[str]], object], look_again: Callable[[], object]
    ) -> None:
        self._host = host
        self._report = report
        self._look_again = look_again

    async def take_uplink(self, database: Database, spec: BridgeSpec, node_ips: Collection[IPAddress]) -> None:
        await add_uplink(database, spec)
        try:
            await self._host.adopt_uplink(spec.uplink, spec.name, node_ips)
        except HostError:
            await remove_uplink(database, spec.name)  # the Node's address is back on its NIC: so must the wire be
            raise

    async def hold(self, names: HostNames, desired: HostPlan) -> None:
        """All of this, whatever is there."""
        problems = await self._host.apply(diff(await self._host.installed(names), desired))
        self._tell(problems)

    async def change(self, change: HostChange) -> None:
        """This alone. What is in the way keeps nobody waiting, not even as an error."""
        if not change:
            return
        try:
            problems = await self._host.apply(change)
        except HostError as error:
            problems = (str(error),)
        if problems:
            self._tell(problems)

    def _tell(self, problems: Collection[str]) -> None:
        self._report(Area.HOST, problems)
        if problems:
            self._look_again()
