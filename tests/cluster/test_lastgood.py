"""The last known good state on disk: complete or not there, and never needed to start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from api_objects import endpoint, service, slice_of

from windlass.cluster import journals, lastgood
from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import (
    EndpointSlice,
    Metadata,
    Node,
    NodeAddress,
    NodeSpec,
    NodeStatus,
    Problem,
    Service,
    ServiceCIDR,
    ServiceCIDRSpec,
)
from windlass.cluster.sources import ClusterChange

NODE = Node(
    Metadata("node-1", labels={"kubernetes.io/os": "windows"}),
    NodeSpec(pod_cidrs=("172.16.1.0/24", "fd00:172:16:1::/64")),
    NodeStatus((NodeAddress("InternalIP", "10.176.25.11"), NodeAddress("ExternalIP", "192.0.2.1"))),
)


def test_a_saved_state_is_loaded(tmp_path):
    lastgood.save(tmp_path / "state", Cluster("r1", nodes={"node-1": NODE}))
    assert lastgood.load(tmp_path / "state") == Cluster("r1", nodes={"node-1": NODE})


def test_all_kinds_are_saved(tmp_path):
    slices = slice_of(endpoint("172.16.1.5", ready=False, zones=["zone-a"]), endpoint("172.16.1.6"))
    cluster = Cluster(
        "r1",
        nodes={"node-1": NODE},
        services={"default/web": service(type="LoadBalancer", ingress=[{"ip": "192.0.2.1"}])},
        slices={slices.key: slices},
        service_cidrs={"kubernetes": ServiceCIDR(Metadata("kubernetes"), ServiceCIDRSpec(("10.96.0.0/16",)))},
    )
    lastgood.save(tmp_path, cluster)
    assert lastgood.load(tmp_path) == cluster


def test_a_file_from_before_services_is_loaded(tmp_path):
    (tmp_path / lastgood.FILE).write_bytes(b'{"revision": "r1", "nodes": {}}')
    assert lastgood.load(tmp_path) == Cluster("r1", listed_namespaces=frozenset())


def test_problems_are_not_saved(tmp_path):
    """They may be corrected by the time the state is loaded."""
    lastgood.save(tmp_path, Cluster("r1", nodes={"node-1": NODE}, problems=(Problem("a.yaml", "was broken"),)))
    loaded = lastgood.load(tmp_path)
    assert loaded is not None
    assert loaded.problems == ()


def test_a_save_replaces_the_former_file(tmp_path):
    lastgood.save(tmp_path, Cluster("r1", nodes={"node-1": NODE}))
    lastgood.save(tmp_path, Cluster("r2"))
    assert lastgood.load(tmp_path) == Cluster("r2")
    assert [file.name for file in tmp_path.iterdir()] == [lastgood.FILE]


def test_a_missing_file_is_none(tmp_path):
    assert lastgood.load(tmp_path) is None
    assert lastgood.load(tmp_path / "nowhere") is None


def test_a_torn_file_is_none(tmp_path):
    lastgood.save(tmp_path, Cluster("r1", nodes={"node-1": NODE}))
    whole = (tmp_path / lastgood.FILE).read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        (tmp_path / lastgood.FILE).write_bytes(whole[:length])
        assert lastgood.load(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[]", b'{"revision": 5, "nodes": {}}', b'{"nodes": {"a": {}}}', b"{}", b'{"revision": "\xff"}'],
)
def test_another_file_is_none(tmp_path, content):
    (tmp_path / lastgood.FILE).write_bytes(content)
    assert lastgood.load(tmp_path) is None


def test_a_crash_during_a_save_leaves_the_former_file(tmp_path):
    lastgood.save(tmp_path, Cluster("r1", nodes={"node-1": NODE}))
    (tmp_path / f".{lastgood.FILE}.new").write_bytes(b'{"revi')  # as after a crash
    loaded = lastgood.load(tmp_path)
    assert loaded is not None
    assert loaded.revision == "r1"
    lastgood.save(tmp_path, Cluster("r2"))
    assert [file.name for file in tmp_path.iterdir()] == [lastgood.FILE]


def test_the_file_is_the_json_of_the_cluster(tmp_path):
    """It is written in batches, but is plain JSON."""
    services = {f"default/s{number}": service(f"s{number}") for number in range(3 * lastgood._BATCH + 1)}
    cluster = Cluster("r1", nodes={"node-1": NODE}, services=services)
    lastgood.save(tmp_path, cluster)
    saved = msgspec.json.decode((tmp_path / lastgood.FILE).read_bytes())
    assert saved | {"problems": []} == msgspec.json.decode(msgspec.json.encode(cluster))


# Saving in the background -----------------------------------------------------------------------------------------


class Reports:
    """What the saver reports."""

    def __init__(self, directory: Path) -> None:
        self.problems: list[str] = []
        self.reports = asyncio.Event()
        self.saver = lastgood.Saver(directory, self._tell)

    def _tell(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        self.reports.set()

    async def once(self) -> None:
        async with asyncio.timeout(30):
            await self.reports.wait()
        self.reports.clear()


async def test_of_many_states_the_newest_is_saved_and_at_the_end_the_last(tmp_path):
    reports = Reports(tmp_path)
    running = asyncio.create_task(reports.saver.run())
    for number in range(100):
        reports.saver.keep(Cluster(f"r{number}"))
    await reports.once()
    assert lastgood.load(tmp_path) == Cluster("r99")
    reports.saver.keep(Cluster("r100"))  # too early for another save
    running.cancel()
    await asyncio.wait([running])
    assert lastgood.load(tmp_path) == Cluster("r100")


async def test_each_change_is_saved_at_once(tmp_path):
    """As after SIGKILL: nothing is closed or flushed here."""
    reports = Reports(tmp_path)
    running = asyncio.create_task(reports.saver.run())
    states = list(_states(40))
    reports.saver.keep(states[0].cluster)
    await reports.once()
    for change in states[1:]:
        reports.saver.keep(*change[:2])
        assert lastgood.load(tmp_path) == change.cluster
    running.cancel()
    await asyncio.wait([running])


async def test_changes_during_a_save_of_the_whole_follow_it(tmp_path):
    reports = Reports(tmp_path)
    running = asyncio.create_task(reports.saver.run())
    first, *others = _states(20)
    reports.saver.keep(first.cluster)
    await asyncio.sleep(0)  # it is being saved
    for change in others:
        reports.saver.keep(*change[:2])
    await reports.once()
    assert lastgood.load(tmp_path) == others[-1].cluster
    running.cancel()
    await asyncio.wait([running])


async def test_a_long_journal_leads_to_a_save_of_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(lastgood, "LONGEST_JOURNAL", 300)
    monkeypatch.setattr(lastgood, "LEAST_PAUSE", 0.0)
    reports = Reports(tmp_path)
    running = asyncio.create_task(reports.saver.run())
    first, *others = _states(30)
    reports.saver.keep(first.cluster)
    await reports.once()
    for change in others:
        reports.saver.keep(*change[:2])
        assert lastgood.load(tmp_path) == change.cluster
        await asyncio.sleep(0)
    await reports.once()
    whole = msgspec.json.decode((tmp_path / lastgood.FILE).read_bytes())
    assert whole["revision"] != first.cluster.revision
    running.cancel()
    await asyncio.wait([running])
    assert lastgood.load(tmp_path) == others[-1].cluster


@pytest.mark.parametrize("damage", [slice(-10, None), slice(-10, -9)], ids=["torn", "not text"])
async def test_a_damaged_line_ends_the_journal(tmp_path, damage):
    reports = Reports(tmp_path)
    running = asyncio.create_task(reports.saver.run())
    first, second, third = _states(3)
    reports.saver.keep(first.cluster)
    await reports.once()
    reports.saver.keep(*second[:2])
    reports.saver.keep(*third[:2])
    running.cancel()
    await asyncio.wait([running])
    journal = tmp_path / journals.FILE
    content = bytearray(journal.read_bytes())
    content[damage] = b"" if damage.stop is None else b"\xff"
    journal.write_bytes(content)
    assert lastgood.load(tmp_path) == second.cluster


async def test_a_journal_that_cannot_be_written_is_reported_and_the_whole_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(lastgood, "LEAST_PAUSE", 0.0)
    reports = Reports(tmp_path)
    running = asyncio.create_task(reports.saver.run())
    first, second, third = _states(3)
    reports.saver.keep(first.cluster)
    await reports.once()
    with monkeypatch.context() as full:
        full.setattr(journals.os, "write", lambda _, data: len(data) // 2)
        reports.saver.keep(*second[:2])
    sentence = (
        "the state of the cluster cannot be saved: No space left on device; the agent retries with the next change"
    )
    assert reports.problems == [f"{tmp_path}: {sentence}"]
    reports.reports.clear()
    await reports.once()
    assert (reports.problems, lastgood.load(tmp_path)) == ([], second.cluster)
    reports.saver.keep(*third[:2])
    assert lastgood.load(tmp_path) == third.cluster
    running.cancel()
    await asyncio.wait([running])


def test_a_change_that_an_earlier_version_saved_does_not_say_that_all_namespaces_are_listed(tmp_path):
    (tmp_path / lastgood.FILE).write_text('{"revision": "r1", "listed_namespaces": null}')
    (tmp_path / journals.FILE).write_text('{"before": "r1", "revision": "r2"}\n')
    assert lastgood.load(tmp_path) == Cluster("r2", listed_namespaces=frozenset())


def _states(count: int) -> Iterator[ClusterChange]:
    """Services and slices come, change and go; the first is whole."""
    nodes, services = {"node-1": NODE}, {"default/old": service("old")}
    cluster = Cluster("r0", listed_namespaces=frozenset({"shop"}), nodes=nodes, services=services)
    yield ClusterChange(cluster)
    for number in range(1, count):
        name = f"s{number % 5}"
        slices = slice_of(endpoint(f"172.16.1.{number}"), name=name)
        services = dict(cluster.services)
        if number % 7:
            services[f"default/{name}"] = service(name)
        else:
            services.pop(f"default/{name}", None)
        listed = frozenset({"shop", name}) if number % 3 else None
        cluster = replace(
            cluster,
            revision=f"r{number}",
            listed_namespaces=listed,
            services=services,
            slices={**cluster.slices, slices.key: slices},
        )
        yield ClusterChange(cluster, ChangeSet.of({Service: {f"default/{name}"}, EndpointSlice: {slices.key}}))


async def test_a_failed_save_is_reported_and_the_next_state_is_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(lastgood, "LEAST_PAUSE", 0.0)
    (tmp_path / "state").write_text("in the way")
    reports = Reports(tmp_path / "state")
    running = asyncio.create_task(reports.saver.run())
    reports.saver.keep(Cluster("r1"))
    await reports.once()
    (problem,) = reports.problems
    assert str(tmp_path / "state") in problem
    assert "cannot be saved: File " in problem
    (tmp_path / "state").unlink()
    reports.saver.keep(Cluster("r2"))
    await reports.once()
    assert reports.problems == []
    assert lastgood.load(tmp_path / "state") == Cluster("r2")
    running.cancel()
    await asyncio.wait([running])
