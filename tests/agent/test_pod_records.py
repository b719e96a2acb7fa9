"""Records of Pods' ports on disk, and the recreation of ports from them, on a real switch."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from bridge_ports import SPEC, pod
from switches import Switch, requires_ovs
from windlass.agent.pod_records import PodRecords
from windlass.agent.pods import RecordedPodPorts, Restored
from windlass.host.protocol import AttachedLink
from windlass.switch.bridges import ensure_bridge
from windlass.switch.ovsdb import open_database
from windlass.switch.pod_ports import PodPort, add_pod_port, pod_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from windlass.switch.ovsdb import Database


def link(port: PodPort) -> AttachedLink:
    return AttachedLink(port.interface, "eth0", port.netns)


# ---- the files


def test_the_next_agent_reads_a_saved_record(tmp_path: Path) -> None:
    records = PodRecords(tmp_path)
    records.save(pod(1))
    records.save(pod(2))
    records.forget("pod2")
    records.forget("pod3")  # it does not exist: not an error
    assert PodRecords(tmp_path).ports == records.ports == {"pod1": pod(1)}


@pytest.mark.parametrize("content", [b"", b'{"containerId": "c', b"\xff\x00", b"[]", b'{"containerId": 3}'])
def test_an_unreadable_record_is_reported_and_the_others_are_read(tmp_path: Path, content: bytes) -> None:
    PodRecords(tmp_path).save(pod(1))
    (tmp_path / "pods" / "pod2.json").write_bytes(content)
    records = PodRecords(tmp_path)
    assert records.ports == {"pod1": pod(1)}
    (problem,) = records.problems
    assert f"{tmp_path / 'pods' / 'pod2.json'} cannot be read" in problem
    records.save(pod(2))
    assert records.problems == PodRecords(tmp_path).problems == ()


def test_two_threads_may_save_one_record_at_the_same_time(tmp_path: Path) -> None:
    """A CNI ADD and a pass write the same record: once both used one temporary file, and one of them failed."""
    for _ in range(30):
        records = PodRecords(tmp_path)
        records.forget("pod1")
        with ThreadPoolExecutor(8) as threads:
            for saved in [threads.submit(records.save, pod(1)) for _ in range(8)]:
                saved.result()
    assert PodRecords(tmp_path).ports == {"pod1": pod(1)}


def test_a_crash_during_a_write_keeps_the_previous_record(tmp_path: Path) -> None:
    PodRecords(tmp_path).save(pod(1))
    (tmp_path / "pods" / ".pod1.new").write_bytes(b'{"contai')
    (tmp_path / "pods" / ".pod2.new").write_bytes(b'{"contai')
    records = PodRecords(tmp_path)
    assert (records.ports, records.problems) == ({"pod1": pod(1)}, ())


# ---- the ports


class Node:
    """A bridge, the host's interfaces and the records, as an agent has them."""

    def __init__(self, switch: Switch, database: Database, state: Path) -> None:
        self.switch = switch
        self.database = database
        self.state = state
        self.links: list[AttachedLink] = []

    async def plug(self, port: PodPort) -> None:
        await self.switch.add_nics(port.interface)
        self.links.append(link(port))

    def ports(self) -> RecordedPodPorts:
        """The ports after a restart of the agent."""

        async def links() -> list[AttachedLink]:
            return self.links

        return RecordedPodPorts(self.database, "br-int", PodRecords(self.state), links)

    async def lose_bridge(self) -> None:
        await self.switch.vsctl("del-br", "br-int")
        await ensure_bridge(self.database, SPEC)

    def there(self) -> set[str]:
        return {port.interface for port in pod_ports(self.database.view, "br-int")}


@pytest.fixture
async def node(switch: Switch, tmp_path: Path) -> AsyncIterator[Node]:
    async with open_database(str(switch.database)) as database:
        await ensure_bridge(database, SPEC)
        yield Node(switch, database, tmp_path / "state")


@requires_ovs
async def test_lost_ports_are_recreated_with_all_their_attributes(node: Node) -> None:
    ports = node.ports()
    for number in (1, 2):
        await node.plug(pod(number))
        await ports.add_pod_port(pod(number))
    await node.lose_bridge()
    assert node.there() == set()
    assert await ports.restore() == Restored(frozenset({"container-1", "container-2"}), ())
    assert sorted(pod_ports(node.database.view, "br-int"), key=lambda port: port.interface) == [pod(1), pod(2)]
    assert await ports.restore() == Restored(frozenset(), ())


@requires_ovs
async def test_lost_ports_are_recreated_by_an_agent_that_starts_later(node: Node) -> None:
    await node.plug(pod(1))
    await node.ports().add_pod_port(pod(1))
    await node.lose_bridge()
    assert (await node.ports().restore()).containers == {"container-1"}


@requires_ovs
async def test_a_record_without_its_link_is_deleted(node: Node) -> None:
    ports = node.ports()
    for number in (1, 2, 3):
        await node.plug(pod(number))
        await ports.add_pod_port(pod(number))
    await node.lose_bridge()
    node.links = [link(pod(1)), AttachedLink("pod3", "eth0", "/run/netns/somebody-else")]
    assert (await ports.restore()).containers == {"container-1"}
    assert PodRecords(node.state).ports.keys() == {"pod1"}


@requires_ovs
async def test_ports_of_an_agent_without_records_are_recorded(node: Node) -> None:
    await node.plug(pod(1))
    await add_pod_port(node.database, "br-int", pod(1))
    assert await node.ports().restore() == Restored(frozenset(), ())
    assert PodRecords(node.state).ports == {"pod1": pod(1)}


@requires_ovs
async def test_an_unreadable_record_is_rewritten_while_the_port_exists(node: Node) -> None:
    await node.plug(pod(1))
    await node.ports().add_pod_port(pod(1))
    (node.state / "pods" / "pod1.json").write_bytes(b"{")
    assert (await node.ports().restore()).problems == ()
    assert PodRecords(node.state).ports == {"pod1": pod(1)}


@requires_ovs
async def test_an_unreadable_record_affects_only_its_own_pod(node: Node) -> None:
    for number in (1, 2):
        await node.plug(pod(number))
        await node.ports().add_pod_port(pod(number))
    (node.state / "pods" / "pod1.json").write_bytes(b"{")
    await node.lose_bridge()
    restored = await node.ports().restore()
    assert restored.containers == {"container-2"}
    (problem,) = restored.problems
    assert "pod1.json cannot be read" in problem
    node.links = [link(pod(2))]  # the Pod was recreated: its problem disappears with the old link
    assert (await node.ports().restore()).problems == ()


@requires_ovs
async def test_a_port_that_cannot_be_created_does_not_stop_the_others(node: Node) -> None:
    ports = node.ports()
    for number in (1, 2):
        await node.plug(pod(number))
        await ports.add_pod_port(pod(number))
    await node.lose_bridge()
    await node.switch.vsctl("add-br", "br-other", "--", "add-port", "br-other", "pod1")
    await node.database.wait_for(lambda view: "pod1" in view.interfaces)
    restored = await ports.restore()
    assert restored.containers == {"container-2"}
    (problem,) = restored.problems
    assert "Pod default/web-1 has no network" in problem
    assert "br-other" in problem


@requires_ovs
async def test_a_pod_that_is_being_removed_is_not_restored(node: Node) -> None:
    ports = node.ports()
    await node.plug(pod(1))
    await ports.add_pod_port(pod(1))
    await asyncio.gather(ports.delete_pod_port("pod1"), ports.restore())
    assert node.there() == set()
    assert PodRecords(node.state).ports == {}


@requires_ovs
async def test_a_deleted_pod_whose_port_was_lost_is_listed_until_it_is_removed(node: Node) -> None:
    ports = node.ports()
    await node.plug(pod(1))
    await ports.add_pod_port(pod(1))
    await node.lose_bridge()
    assert await ports.list_pod_ports() == [pod(1)]
    await ports.delete_pod_port("pod1")
    assert await ports.list_pod_ports() == []
    assert (await ports.restore()).containers == frozenset()
