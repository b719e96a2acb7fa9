"""How many packets policies denied, as the flows of the switch count them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from windlass.agent import metrics
from windlass.agent.readings import Reading
from windlass.agent.switching import ProgrammedSwitch
from windlass.pipeline.policies import counted_denials
from windlass.switch.packet_counts import PacketCounts


def denied_packets(switch: ProgrammedSwitch) -> Callable[[], Awaitable[Iterable[Reading]]]:
    """For the metrics: asks the switch at each scrape."""
    counts: PacketCounts | None = None

    async def readings() -> Iterable[Reading]:
        nonlocal counts
        if switch.state is None:
            return []
        counts = counts or PacketCounts(counted_denials(switch.state.node))
        await switch.count(counts)
        new = sum(total for name, total in counts.totals.items() if name.startswith("new"))
        return [
            Reading(metrics.DENIED_PACKETS, new, ("new",)),
            Reading(metrics.DENIED_PACKETS, counts.totals["existing"], ("existing",)),
        ]

    return readings
