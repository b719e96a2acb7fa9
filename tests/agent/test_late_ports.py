"""Ports whose interface appears after CNI ADD has returned, as on Windows, on a real Open vSwitch."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from test_pod_records import SPEC, link, pod

from switches import Switch, requires_ovs
from windlass.agent.late_ports import LatePorts
from windlass.agent.pod_records import PodRecords
from windlass.agent.pods import RecordedPodPorts
from windlass.cni.attachments import NotReadyError, PodNetwork
from windlass.host.protocol import AttachedLink, HostError
from windlass.switch.bridges import ensure_bridge
from windlass.switch.ovsdb import Database, open_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from windlass.model.nodes import AttachedPod

pytestmark = requires_ovs


class Pods:
    """A host whose interfaces appear when the test says so."""

    appear_later = True

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.asked = asyncio.Event()
        self.error = ""
        self.existing: list[AttachedLink] = []

    async def appeared(self, host_interface: str, mtu: int) -> None:
        self.asked.set()
        await self.started.wait()
        assert (host_interface, mtu) == ("pod1", 1450)
        if self.error:
            raise HostError(self.error)

    async def links(self) -> list[AttachedLink]:
        return self.existing


class Agent:
    def __init__(self) -> None:
        self.programmed_pods: asyncio.Queue[tuple[AttachedPod, str]] = asyncio.Queue()
        self.set_up = asyncio.Event()
        self.set_up.set()

    def pod_network(self) -> PodNetwork:
        if not self.set_up.is_set():
            raise NotReadyError("it waits for: the first pass")
        return PodNetwork({}, 1450, 1500, userspace=True)

    async def until_ready(self) -> None:
        await self.set_up.wait()

    async def programmed(self, attached: AttachedPod, uid: str = "") -> None:
        self.programmed_pods.put_nowait((attached, uid))

    async def forget(self, container_id: str) -> None: ...


class LateNode:
    def __init__(self, database: Database, state: Path) -> None:
        self.database = database
        self.pods, self.agent = Pods(), Agent()
        self.problems: asyncio.Queue[list[str]] = asyncio.Queue()
        self.state = state

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RecordedPodPorts]:
        late = LatePorts(
            self.database, "br-int", self.pods, self.agent, lambda _, problems: self.problems.put_nowait(list(problems))
        )
        work = asyncio.create_task(late.keep())
        yield RecordedPodPorts(self.database, "br-int", PodRecords(self.state), self.pods.links, late)
        work.cancel()
        await asyncio.wait((work,))

    def type_of(self, interface: str) -> str | None:
        row = self.database.view.interfaces.get(interface)
        return row.type if row else None


@pytest.fixture
async def node(switch: Switch, tmp_path: Path) -> AsyncIterator[LateNode]:
    async with open_database(str(switch.database)) as database:
        await ensure_bridge(database, SPEC)
        yield LateNode(database, tmp_path / "state")


async def test_the_port_becomes_internal_and_gets_its_flows_when_the_interface_appears(node):
    async with node.running() as ports:
        node.pods.existing = [link(pod(1))]
        assert await ports.add_pod_port(pod(1), "uid-1") is None
        await node.pods.asked.wait()
        assert node.type_of("pod1") == ""

        node.pods.started.set()
        attached, uid = await node.agent.programmed_pods.get()
        assert node.type_of("pod1") == "internal"
        assert (attached.interface, attached.container_id, uid) == ("pod1", "container-1", "uid-1")
        # CNI ADD is repeated.
        assert await ports.add_pod_port(pod(1), "uid-1") == attached.ofport


async def test_an_agent_that_starts_again_goes_on_waiting(node):
    async with node.running() as ports:
        await ports.add_pod_port(pod(1))
    node.pods.existing = [link(pod(1))]
    async with node.running() as ports:
        assert not (await ports.restore()).problems
        node.pods.started.set()
        attached, _ = await node.agent.programmed_pods.get()
        assert attached.interface == "pod1"


async def test_a_failure_is_reported_and_tried_again(node, monkeypatch):
    monkeypatch.setattr("windlass.agent.late_ports.SECONDS_BETWEEN_ATTEMPTS", 0.01)
    node.pods.error = "the MTU was refused"
    node.pods.started.set()
    async with node.running() as ports:
        await ports.add_pod_port(pod(1))
        assert await node.problems.get() == ["Pod default/web-1 has no network yet: the MTU was refused"]
        node.pods.error = ""
        await node.agent.programmed_pods.get()
        assert await node.problems.get() == []


async def test_an_agent_that_is_not_ready_is_waited_for_without_a_pause(node, monkeypatch):
    """After each restart of the agent, ports are restored before the first pass has ended."""
    monkeypatch.setattr("windlass.agent.late_ports.SECONDS_BETWEEN_ATTEMPTS", 1e6)
    node.agent.set_up.clear()
    node.pods.started.set()
    async with node.running() as ports:
        await ports.add_pod_port(pod(1))
        assert await node.problems.get() == ["Pod default/web-1 has no network yet: it waits for: the first pass"]
        node.agent.set_up.set()
        await node.agent.programmed_pods.get()
        assert await node.problems.get() == []


async def test_a_pod_that_goes_is_no_longer_awaited(node):
    async with node.running() as ports:
        await ports.add_pod_port(pod(1))
        await node.pods.asked.wait()
        await ports.delete_pod_port("pod1")
        node.pods.started.set()
        await node.database.change(lambda _: [])
        assert node.type_of("pod1") is None
        assert node.agent.programmed_pods.empty()


async def test_after_a_reboot_the_ports_of_pods_that_are_gone_are_removed(node):
    async with node.running() as ports:
        await ports.add_pod_port(pod(1))
        node.pods.existing = []
        await ports.remove_stale()
        assert not (await ports.restore()).problems
        assert node.type_of("pod1") is None
        assert PodRecords(node.state).ports == {}
