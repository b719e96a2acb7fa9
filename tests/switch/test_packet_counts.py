"""Packets that match a flow of a real switch are counted, also after the flow was added again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import pytest

from switches import requires_ovs, running_switch
from windlass.openflow.conditions import destination
from windlass.pipeline.layout import CLASSIFIER
from windlass.pipeline.priorities import NORMAL
from windlass.program import Owner, OwnerKind, Part
from windlass.switch.packet_counts import PacketCounts
from windlass.switch.programs import InstalledProgram

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [requires_ovs, pytest.mark.timeout(30)]

OWNER = Owner(OwnerKind.NODE, "node-1")
COUNTED, OTHER = (
    CLASSIFIER.flow(NORMAL, destination(IPv4Address(address))).drop(why=f"to {address}")
    for address in ("10.0.0.1", "10.0.0.2")
)
PACKET = "02000000000102000000000208004500001400000000401166d70a0000030a000001"  # IPv4 from 10.0.0.3 to 10.0.0.1


async def test_a_total_grows_also_after_the_flow_was_added_again(tmp_path: Path):
    counts = PacketCounts({"counted": COUNTED, "other": OTHER})
    async with running_switch(tmp_path) as switch:
        bridge = ("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev", "fail_mode=secure")
        await switch.vsctl(*bridge)
        management = str(switch.management("br-int"))
        kept = InstalledProgram(management, {OWNER: Part((COUNTED, OTHER))})
        await kept.requests.count(counts)
        assert counts.totals == {"counted": 0, "other": 0}, "the switch is away"
        keeper = asyncio.create_task(kept.keep())
        try:
            await kept.synced()
            await _send(switch, management, 3)
            await kept.requests.count(counts)
            await kept.requests.count(counts)
            assert counts.totals == {"counted": 3, "other": 0}
            await kept.apply({OWNER: Part((OTHER,))})
            await kept.apply({OWNER: Part((COUNTED, OTHER))})
            await _send(switch, management, 2)
            await kept.requests.count(counts)
            assert counts.totals == {"counted": 5, "other": 0}
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper


async def _send(switch, management: str, times: int) -> None:
    for _ in range(times):
        await switch.ofctl("packet-out", management, f"in_port=LOCAL, packet={PACKET}, actions=table")
