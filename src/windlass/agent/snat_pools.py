"""The pools of SNAT ports: frees ports of ended connections early, and counts connections that find no port."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog

from windlass.agent import metrics
from windlass.agent.areas import Area, Report
from windlass.agent.limits import zone_timeouts
from windlass.agent.metrics import Reading
from windlass.agent.switching import ProgrammedSwitch
from windlass.host.protocol import Host, HostError
from windlass.model.families import IPAddress
from windlass.model.nodes import HostConnection
from windlass.nodes.config import Config
from windlass.pipeline.exhaustion import POOLS, Pool
from windlass.pipeline.snat_ports import HOST_RESERVED
from windlass.switch import conntrack_timeouts
from windlass.switch.ovsdb import Database, SwitchRefusedError
from windlass.switch.packet_counts import PacketCounts

_log = structlog.get_logger(__name__)


class SnatPools:
    """`counts` is False where the datapath drops such packets by itself: the kernel counts them as `insert_failed`."""

    def __init__(self, switch: ProgrammedSwitch, report: Report, *, counts: bool) -> None:
        self._switch = switch
        self._report = report
        self._counts = PacketCounts({pool.name: pool.flow() for pool in POOLS} if counts else {})
        self._checked: dict[str, int] | None = None  # the totals at the last check; None: there was none
        self._refusal = ""  # why the datapath keeps its own timeouts
        self._unreserved: tuple[str, ...] = ()  # why the host could not reserve the ports
        self.reserved = False  # once True it stays: narrower pools would cut connections off
        self.host_connections: tuple[HostConnection, ...] = ()  # connections that are older than the reservation

    async def reserve(self, host: Host, addresses: Collection[IPAddress]) -> None:
        """Make the host reserve the SNAT ports. If it cannot, the pools are smaller, with ports that it seldom uses."""
        try:
            held = await host.reserve_ports(HOST_RESERVED, addresses)
        except HostError as error:
            stay = (
                f"{error}; the SNAT pools keep these ports"
                if self.reserved
                else f"{error}; the SNAT pools stay smaller"
            )
            self._unreserved = (stay,)
        else:
            self._unreserved = ()
            if not self.reserved:
                self.reserved, self.host_connections = True, held
        self._report(Area.SNAT_PORTS, self._unreserved)

    async def hold_timeouts(self, database: Database, config: Config) -> None:
        """Has the datapath free the ports of ended connections soon. Where it cannot, its own timeouts stay."""
        datapath_type = config.datapath_type.value
        try:
            can = await conntrack_timeouts.install(database, datapath_type, zone_timeouts(config))
            refusal = "" if can else f"the {datapath_type} datapath has no conntrack timeouts by zone"
        except SwitchRefusedError as error:
            refusal = str(error)
        if refusal and refusal != self._refusal:
            _log.warning("ended connections keep their SNAT ports for the default timeouts", reason=refusal)
        self._refusal = refusal

    async def readings(self) -> Iterable[Reading]:
        await self._switch.requests.count(self._counts)
        state = self._switch.state
        return [
            *(Reading(metrics.SNAT_PORTS, pool.size(state.node), (pool.name,)) for pool in POOLS if state),
            *(Reading(metrics.SNAT_PORTS_EXHAUSTED, total, (pool,)) for pool, total in self._counts.totals.items()),
        ]

    async def check(self) -> None:
        """Reports each pool that had no free port since the last check."""
        await self._switch.requests.count(self._counts)
        before, self._checked = self._checked, dict(self._counts.totals)
        grown = {pool: total - (before or self._checked)[pool] for pool, total in self._checked.items()}
        exhausted = [_sentence(pool, grown[pool.name]) for pool in POOLS if grown.get(pool.name)]
        self._report(Area.SNAT_PORTS, [*self._unreserved, *exhausted])


def _sentence(pool: Pool, packets: int) -> str:
    return (
        f"pool {pool.name}: {packets:,} packets of new connections were dropped since the last audit, because all "
        f"SNAT ports to their destination are in use ({pool.clients}); "
        "reuse connections, or spread them over more Nodes or more destination addresses"
    )
