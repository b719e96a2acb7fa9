"""Session affinity in a real switch: learned flows survive audits, and go with their endpoint."""

from __future__ import annotations

from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import pytest
from installed_programs import installed

from switches import Switch, requires_ovs, running_switch
from windlass.model.families import Family
from windlass.model.services import Endpoint
from windlass.openflow.actions import Ct, Nat
from windlass.openflow.conditions import destination, ip
from windlass.openflow.flows import Group
from windlass.pipeline import affinity
from windlass.pipeline.declarations import goto
from windlass.pipeline.layout import CLASSIFIER, L3_FORWARDING, SERVICE_LB
from windlass.pipeline.priorities import NORMAL
from windlass.pipeline.tracking import POD_ZONE
from windlass.program import Owner, OwnerKind, Part
from windlass.switch import retirement
from windlass.switch.connection import connected
from windlass.switch.switch_events import GroupsChanged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from windlass.switch.connection import OpenFlowConnection
    from windlass.switch.programs import InstalledProgram

pytestmark = [requires_ovs, pytest.mark.timeout(30)]

WEB = Owner(OwnerKind.SERVICE, "default/web")
GROUP, LOCAL_GROUP = 512, 513
SERVICE = IPv4Address("10.96.0.10")
HOURS = 10800


def endpoint(number: int) -> Endpoint:
    return Endpoint.at(IPv4Address("172.16.1.0") + number, 8080)


def web(*endpoints: int, local: tuple[int, ...] = (), seconds: int = HOURS) -> Part:
    """If some endpoints are local, only these serve it, as with policy Local."""
    asked, other = (LOCAL_GROUP, GROUP) if local else (GROUP, LOCAL_GROUP)
    groups = {GROUP: _numbered(endpoints)} | ({LOCAL_GROUP: _numbered(local)} if local else {})
    flows = [
        CLASSIFIER.flow(NORMAL, ip(Family.IPV4)).then(goto(SERVICE_LB), why="all packets"),
        SERVICE_LB.flow(NORMAL, destination(SERVICE)).then(*affinity.look_up(asked, other), why="the Service"),
    ]
    for group, numbered in groups.items():
        (other,) = {GROUP, LOCAL_GROUP} - {group}
        flows += affinity.flows(Family.IPV4, group, other, numbered, seconds, "the Service")
    return Part(
        tuple(flows),
        tuple(
            Group(group, tuple(map(affinity.bucket, numbered)), "the endpoints", affinity.CLIENT[Family.IPV4])
            for group, numbered in groups.items()
        ),
    )


def _numbered(endpoints: tuple[int, ...]) -> dict[int, tuple[Endpoint, Ct]]:
    return {
        key: (found, Ct(POD_ZONE, L3_FORWARDING.number, True, Nat(to=found.address, ports=(found.port, found.port))))
        for key, found in affinity.numbered([endpoint(number) for number in endpoints]).items()
    }


class Net:
    def __init__(self, switch: Switch, kept: InstalledProgram) -> None:
        self.switch = switch
        self.kept = kept

    async def asks(self, client: str) -> str:
        """A connection's first packet; returns the endpoint's address."""
        packet = f"in_port=LOCAL,tcp,nw_src={client},nw_dst={SERVICE},tp_src=40000,tp_dst=80"
        said = await self.switch.appctl("ovs-vswitchd", "ofproto/trace", "br-int", packet, "-generate")
        return said.partition("nat(dst=")[2].partition(":")[0]

    async def entries(self) -> dict[str, str]:
        """The clients with an entry, and its idle timeout."""
        dump = await self.switch.ofctl("dump-flows", str(self.switch.management("br-int")), "table=42")
        lines = [line for line in dump.splitlines() if "nw_src=" in line]
        return {
            line.partition("nw_src=")[2].partition(" ")[0]: line.partition("idle_timeout=")[2].partition(",")[0]
            for line in lines
        }


@asynccontextmanager
async def network(folder: Path, part: Part) -> AsyncIterator[Net]:
    async with running_switch(folder) as switch:
        bridge = ("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev", "fail_mode=secure")
        await switch.vsctl(*bridge)
        async with installed(str(switch.management("br-int")), {WEB: part}) as kept:
            yield Net(switch, kept)


async def test_clients_keep_their_endpoints_when_endpoints_are_added_and_removed(tmp_path: Path):
    clients = [f"172.16.9.{number}" for number in range(1, 31)]
    async with network(tmp_path, web(1, 2)) as net:
        before = {client: await net.asks(client) for client in clients}
        assert set(before.values()) == {"172.16.1.1", "172.16.1.2"}

        await net.kept.apply({WEB: web(1, 2, 3, 4)})
        assert {client: await net.asks(client) for client in clients} == before

        await net.kept.apply({WEB: web(2, 3, 4)})
        after = {client: await net.asks(client) for client in clients}
        kept = [client for client in clients if before[client] == "172.16.1.2"]
        assert all(after[client] == before[client] for client in kept)
        assert "172.16.1.1" not in after.values()


async def test_clients_keep_their_endpoints_when_the_policy_changes(tmp_path: Path):
    clients = [f"172.16.9.{number}" for number in range(1, 21)]
    async with network(tmp_path, web(1, 2, 3, local=(1,))) as net:
        assert {await net.asks(client) for client in clients} == {"172.16.1.1"}
        await net.kept.apply({WEB: web(1, 2, 3)})
        assert {await net.asks(client) for client in clients} == {"172.16.1.1"}
        await net.kept.apply({WEB: web(1, 2, 3, local=(1, 4))})
        assert {await net.asks(client) for client in clients} == {"172.16.1.1"}

        await net.kept.apply({WEB: web(2, 3)})
        assert await net.entries() == {}


async def test_learned_flows_are_not_drift(tmp_path: Path):
    async with network(tmp_path, web(1, 2)) as net:
        await net.asks("172.16.9.1")
        assert await net.kept.audit() == 0
        assert await net.entries() == {"172.16.9.1": str(HOURS)}
        assert net.kept.counters.drift_healed == 0


async def test_learned_flows_outlive_the_agent(tmp_path: Path):
    async with network(tmp_path, web(1, 2)) as net:
        served = await net.asks("172.16.9.1")
        async with installed(net.kept.path, {WEB: web(1, 2, 3)}):
            assert await net.entries() == {"172.16.9.1": str(HOURS)}
            assert await net.asks("172.16.9.1") == served


async def test_learned_flows_go_with_their_endpoint_and_their_service(tmp_path: Path):
    async with network(tmp_path, web(1)) as net:
        await net.asks("172.16.9.1")
        await net.kept.apply({WEB: web(2)})
        assert await net.entries() == {}
        assert await net.asks("172.16.9.1") == "172.16.1.2"
        await net.kept.apply({WEB: Part()})
        assert await net.entries() == {}


async def test_entries_with_a_timeout_beyond_that_of_a_flow_are_deleted_by_the_agent(tmp_path: Path):
    """An expired entry (0 seconds), one that has a day left, and one with an idle timeout of the switch."""
    async with network(tmp_path, web(1, seconds=86400)) as net:
        await net.asks("172.16.9.1")
        bridge = str(net.switch.management("br-int"))
        of_zero_seconds = 1 << 20
        for client, idle in (("172.16.9.2", 0), ("172.16.9.3", 60)):
            flow = f"table=42,cookie={of_zero_seconds},idle_timeout={idle},ip,nw_src={client},actions=drop"
            await net.switch.ofctl("add-flow", bridge, flow)
        assert await net.kept.requests.forget_idle() == 1
        assert await net.entries() == {"172.16.9.1": "", "172.16.9.3": "60"}


async def test_after_its_entry_expires_a_client_may_get_a_different_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Kubernetes promises nothing after the timeout, and its own tests expect to see a different endpoint then."""
    monkeypatch.setattr(retirement, "ROTATION_DELAY", 0.01)
    async with network(tmp_path, web(1, 2, 3, 4, seconds=1)) as net, connected(net.kept.path) as watcher:
        served = {await net.asks("172.16.9.1")}
        rotations = 0
        while len(served) == 1:
            assert rotations < 20, "always the same endpoint"
            await group_changed(watcher)  # the entry has expired, and the group was rotated
            rotations += 1
            served.add(await net.asks("172.16.9.1"))
        assert await net.kept.audit() == 0
        assert net.kept.counters.drift_healed == 0


async def group_changed(watcher: OpenFlowConnection) -> None:
    while not any(isinstance(event, GroupsChanged) for event in await watcher.events()):
        pass
