"""Meters in a real switch: synced, tampered with, counted. `ovs-ofctl` and `ofproto/trace` show what is there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from installed_programs import installed

from switches import Switch, requires_ovs, running_switch
from windlass.openflow import ofctl
from windlass.openflow.actions import Resubmit, ToController
from windlass.openflow.fields import ETH_TYPE, LOCAL_PORT
from windlass.openflow.flows import Flow, Meter
from windlass.openflow.matches import match
from windlass.openflow.wire import flows
from windlass.openflow.wire.packets import PacketIn
from windlass.program import Owner, OwnerKind, Part
from windlass.switch.connection import PacketLimit, connected

pytestmark = [requires_ovs, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]
NODE = Owner(OwnerKind.NODE, "node")
FRAME = bytes.fromhex("ffffffffffff 020000000001 88b5") + bytes(50)


def to_us(meter: int = 0, ethertype: int = 0x88B5) -> Flow:
    return Flow(0, 1, match(ETH_TYPE(ethertype)), (ToController(b"why", meter=meter),), "")


def limit(identity: int, burst: int = 20) -> Meter:
    return Meter(identity, 1, burst, "a test")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Switch]:
    async with running_switch(tmp_path_factory.mktemp("ovs")) as switch:
        yield switch


class Bridge:
    def __init__(self, switch: Switch, name: str) -> None:
        self.switch = switch
        self.name = name
        self.path = str(switch.management(name))

    async def meters(self) -> set[str]:
        """In the text form of the Program's meters."""
        dump = (await self.switch.ofctl("dump-meters", self.path)).split("\n", 1)[1]
        found = re.findall(r"meter=(\d+) pktps burst stats bands=\ntype=drop rate=(\d+) burst_size=(\d+)", dump)
        return {ofctl.meter_text(Meter(int(number), int(rate), int(burst), "")) for number, rate, burst in found}

    async def datapath_meter(self, ethertype: int) -> str:
        """The datapath's own number of the meter that limits such packets."""
        flow = f"in_port=LOCAL,dl_type={ethertype:#x}"
        trace = await self.switch.appctl("ovs-vswitchd", "ofproto/trace", self.name, flow)
        return re.search(r"meter\((\d+)\)", trace)[1]


@pytest_asyncio.fixture(loop_scope="module")
async def bridge(running: Switch, request: pytest.FixtureRequest) -> Bridge:
    name = f"br{abs(hash(request.node.name)) % 10**6}"
    await running.vsctl("add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure")
    return Bridge(running, name)


def texts(*meters: Meter) -> set[str]:
    return set(map(ofctl.meter_text, meters))


async def test_a_sync_leaves_the_meters_of_the_program_and_no_others(bridge: Bridge):
    for foreign in (
        "meter=1,pktps,burst,stats,bands=type=drop,rate=9,burst_size=9",
        "meter=5,kbps,band=type=drop,rate=9",
    ):
        await bridge.switch.ofctl("add-meter", bridge.path, foreign)
    async with installed(bridge.path, {NODE: Part((to_us(1),), meters=(limit(1), limit(2)))}) as kept:
        assert await bridge.meters() == texts(limit(1), limit(2))
        assert "meter=5" not in await bridge.switch.ofctl("dump-meters", bridge.path)
        await kept.apply({NODE: Part((to_us(1),), meters=(limit(1, burst=7),))})
        assert await bridge.meters() == texts(limit(1, burst=7))


async def test_a_restart_with_the_same_meters_sends_nothing(bridge: Bridge):
    program = {NODE: Part((to_us(1),), meters=(limit(1),))}
    async with installed(bridge.path, program):
        pass
    async with installed(bridge.path, program) as kept:
        assert kept.counters.changes_sent == 0
        assert await bridge.meters() == texts(limit(1))


async def test_meters_that_another_client_deletes_come_back_with_their_flows(bridge: Bridge):
    """The datapath renumbers meters: a flow that was not sent again would be limited by a different meter."""
    program = {NODE: Part((to_us(1), to_us(2, 0x88B6)), meters=(limit(1), limit(2)))}
    async with connected(bridge.path) as watcher, installed(bridge.path, program) as kept:
        await watcher.watch_flows()
        before = await bridge.datapath_meter(0x88B5), await bridge.datapath_meter(0x88B6)
        await bridge.switch.ofctl("del-meters", bridge.path)
        await bridge.switch.ofctl("add-meter", bridge.path, "meter=9,pktps,band=type=drop,rate=9")
        while await bridge.meters() != texts(limit(1), limit(2)) or not kept.counters.drift_healed:
            await watcher.events()  # a repair is a change, too
        await kept.audit()
        after = await bridge.datapath_meter(0x88B5), await bridge.datapath_meter(0x88B6)
        assert len(set(before)) == len(set(after)) == 2
        assert await kept.audit() == 0


async def test_packets_beyond_a_meter_are_counted_and_do_not_reach_us(bridge: Bridge):
    came: asyncio.Queue[PacketIn] = asyncio.Queue()

    def on_packet(event: object) -> None:
        if isinstance(event, PacketIn):
            came.put_nowait(event)

    async with installed(bridge.path, {NODE: Part((to_us(1),), meters=(limit(1),))}, on_packet=on_packet) as kept:
        for _ in range(200):
            await kept.requests.packet_out(FRAME, LOCAL_PORT, (Resubmit(0),))
        suppressed = (await kept.packets_suppressed())[1]
        assert 0 < suppressed < 200
        for _ in range(200 - suppressed):
            await came.get()
        assert (await kept.packets_suppressed())[1] == suppressed
        assert came.empty()


class ObservedLimit(PacketLimit):
    """Tells when a number of packets has arrived, whether they were admitted or not."""

    def __init__(self, per_second: float, expected: int) -> None:
        super().__init__(per_second)
        self.all_arrived = asyncio.Event()
        self._missing = expected

    def admits(self) -> bool:
        self._missing -= 1
        if not self._missing:
            self.all_arrived.set()
        return super().admits()


async def test_without_meters_the_agent_itself_limits_packets(bridge: Bridge):
    limit = ObservedLimit(10, expected=50)
    async with connected(bridge.path, limit=limit) as connection:
        await connection.deliver([flows.encode(to_us())], flows.add)
        for _ in range(50):
            await connection.packet_out(FRAME, LOCAL_PORT, (Resubmit(0),))
        await limit.all_arrived.wait()
        came = [event for event in await connection.events() if isinstance(event, PacketIn)]
        assert len(came) >= 10
        assert len(came) + limit.refused == 50


async def test_a_switch_that_refuses_a_meter_works_without_it(bridge: Bridge):
    reserved = 0xFFFF0005  # a number that this switch refuses
    async with installed(bridge.path, {NODE: Part((to_us(reserved),), meters=(limit(reserved),))}) as kept:
        assert await bridge.meters() == set()
        assert await kept.audit() == 0, "nothing is drift"
        assert f"meter_id={reserved}" in await bridge.switch.ofctl("dump-flows", bridge.path)
        assert kept.counters.drift_healed == 0
