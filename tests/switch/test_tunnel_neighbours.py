"""MAC addresses of tunnel remotes in a real switch: resolved before the first packet needs them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from platforms import not_on_windows
from switches import Switch, requires_ovs, run, running_switch
from windlass.openflow.actions import Output
from windlass.openflow.fields import IN_PORT, LOCAL_PORT
from windlass.openflow.flows import Flow
from windlass.openflow.matches import match
from windlass.program import Owner, OwnerKind, Part
from windlass.switch.programs import InstalledProgram
from windlass.switch.tunnel_neighbours import TunnelNeighbours

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [requires_ovs, pytest.mark.timeout(60)]

TUNNEL, UPLINK = 1, 3
REMOTES = [ip_address("192.0.2.2"), ip_address("198.51.100.3"), ip_address("2001:db8::2")]
# The far end of the NIC is a remote and a router to another one.
_ADDRESSES = """
addr replace 192.0.2.1/24 dev br-int
addr replace 2001:db8::1/64 dev br-int nodad
link set br-int up
route replace default via 192.0.2.2
"""
_FAR = """
addr add 192.0.2.2/24 dev eth0-far
addr add 2001:db8::2/64 dev eth0-far nodad
link set eth0-far up
"""
PROGRAM = {
    Owner(OwnerKind.NODE, "node"): Part(
        (
            Flow(0, 1, match(IN_PORT(LOCAL_PORT)), (Output(UPLINK),), "to the wire"),
            Flow(0, 1, match(IN_PORT(UPLINK)), (Output(LOCAL_PORT),), "from the wire"),
        )
    )
}


@asynccontextmanager
async def tunnelling(switch: Switch) -> AsyncIterator[tuple[InstalledProgram, TunnelNeighbours]]:
    kept = InstalledProgram(str(switch.management("br-int")), PROGRAM)
    neighbours = TunnelNeighbours(str(switch.management("br-int")))
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(kept.keep()), tasks.create_task(neighbours.keep())]
        await kept.synced()
        yield kept, neighbours
        for task in running:
            task.cancel()


async def set_up(switch: Switch) -> None:
    await switch.add_nics("eth0")
    far = f"{switch.namespace}-far"
    await run("ip", "netns", "add", far)
    await run("ip", "-n", switch.namespace, "link", "set", "eth0-far", "netns", far)
    await run("ip", "-n", far, "-batch", "-", stdin=_FAR)
    bridge = ("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev", "fail_mode=secure")
    uplink = ("add-port", "br-int", "eth0", "--", "set", "interface", "eth0", f"ofport_request={UPLINK}")
    tunnel = (
        *("add-port", "br-int", "tun0", "--", "set", "interface", "tun0", "type=geneve"),
        *("options:remote_ip=flow", "options:key=flow", f"ofport_request={TUNNEL}"),
    )
    await switch.vsctl(*bridge, "--", *uplink, "--", *tunnel)
    await run("ip", "-n", switch.namespace, "-batch", "-", stdin=_ADDRESSES)


async def resolved(switch: Switch) -> set[str]:
    lines = (await switch.appctl("ovs-vswitchd", "tnl/neigh/show")).splitlines()[2:]
    return {line.split()[0] for line in lines}


async def until_resolved(switch: Switch, *neighbours: str) -> None:
    async with asyncio.timeout(20):
        while not await resolved(switch) >= set(neighbours):  # noqa: ASYNC110 (the switch has no event for it)
            await asyncio.sleep(0.02)


@not_on_windows("its remotes are network namespaces of Linux")
async def test_remotes_are_resolved_before_the_first_packet(tmp_path: Path):
    """In the same network and behind a router; IPv4 and IPv6; also after the switch was restarted."""
    async with running_switch(tmp_path) as switch:
        await set_up(switch)
        try:
            async with tunnelling(switch) as (kept, neighbours):
                assert await resolved(switch) == set()
                await neighbours.resolve(REMOTES[:1], TUNNEL, kept.counters.syncs)
                await until_resolved(switch, "192.0.2.2")
                await neighbours.resolve(REMOTES, TUNNEL, kept.counters.syncs)
                await until_resolved(switch, "192.0.2.2", "2001:db8::2")

                await switch.stop_vswitchd()
                await switch.start_vswitchd()
                await run("ip", "-n", switch.namespace, "-batch", "-", stdin=_ADDRESSES)
                await kept.synced()
                await neighbours.resolve(REMOTES, TUNNEL, kept.counters.syncs)
                await until_resolved(switch, "192.0.2.2", "2001:db8::2")
        finally:
            await run("ip", "netns", "delete", f"{switch.namespace}-far")
