"""The last known good state: whole or not at all, and a help, never a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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


def test_what_was_saved_is_loaded(tmp_path):
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


def test_a_file_of_before_there_were_services_is_understood(tmp_path):
    (tmp_path / lastgood.FILE).write_bytes(b'{"revision": "r1", "nodes": {}}')
    assert lastgood.load(tmp_path) == Cluster("r1")


def test_problems_are_not_remembered(tmp_path):
    """They are about files that may be mended by now."""
    lastgood.save(tmp_path, Cluster("r1", nodes={"node-1": NODE}, problems=(Problem("a.yaml", "was broken"),)))
    loaded = lastgood.load(tmp_path)
    assert loaded is not None
    assert loaded.problems == ()


def test_the_newest_counts_and_nothing_else_stays(tmp_path):
    lastgood.save(tmp_path, Cluster("r1", nodes={"node-1": NODE}))
    lastgood.save(tmp_path, Cluster("r2"))
    assert lastgood.load(tmp_path) == Cluster("r2")
    assert [file.name for file in tmp_path.iterdir()] == [lastgood.FILE]


def test_there_is_none(tmp_path):
    assert lastgood.load(tmp_path) is None
    assert lastgood.load(tmp_path / "nowhere") is None


def test_a_torn_file_is_none(tmp_path):
    lastgood.save(tmp_path, Cluster("r1", nodes={"node-1": NODE}))
    whole = (tmp_path / lastgood.FILE).read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        (tmp_path / lastgood.FILE).write_bytes(whole[:length])
        assert lastgood.load(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[]", b'{"revision": 5, "nodes": {}}', b'{"nodes": {"a": {}}}', b"{}"]
)
def test_a_file_of_something_else_is_none(tmp_path, content):
    (tmp_path / lastgood.FILE).write_bytes(content)
    assert lastgood.load(tmp_path) is None


def test_a_crash_while_saving_leaves_the_former_file(tmp_path):
    lastgood.save(tmp_path, Cluster("r1", nodes={"node-1": NODE}))
    (tmp_path / f".{lastgood.FILE}.new").write_bytes(b'{"revi')  # what such a crash leaves
    loaded = lastgood.load(tmp_path)
    assert loaded is not None
    assert loaded.revision == "r1"
    lastgood.save(tmp_path, Cluster("r2"))
    assert [file.name for file in tmp_path.iterdir()] == [lastgood.FILE]


def test_the_file_is_the_json_of_the_cluster(tmp_path):
    """Written in batches, and read by whoever reads JSON."""
    services = {f"default/s{number}": service(f"s{number}") for number in range(3 * lastgood._BATCH + 1)}
    cluster = Cluster("r1", nodes={"node-1": NODE}, services=services)
    lastgood.save(tmp_path, cluster)
    saved = msgspec.json.decode((tmp_path / lastgood.FILE).read_bytes())
    assert saved | {"problems": []} == msgspec.json.decode(msgspec.json.encode(cluster))


# Saving beside other work -----------------------------------------------------------------------------------------


class Told:
    """What the saver reports."""

    def __init__(self, directory: Path) -> None:
        self.problems: list[str] = []
        self.told = asyncio.Event()
        self.saver = lastgood.Saver(directory, self._tell)

    def _tell(self, problems: object) -> None:
        self.problems = list(problems)
        self.told.set()

    async def once(self) -> None:
        async with asyncio.timeout(10):
            await self.told.wait()
        self.told.clear()


async def test_the_newest_of_many_is_saved_and_at_the_end_the_last(tmp_path):
    told = Told(tmp_path)
    running = asyncio.create_task(told.saver.run())
    for number in range(100):
        told.saver.keep(Cluster(f"r{number}"))
    await told.once()
    assert lastgood.load(tmp_path) == Cluster("r99")
    told.saver.keep(Cluster("r100"))  # too early for another one
    running.cancel()
    await asyncio.wait([running])
    assert lastgood.load(tmp_path) == Cluster("r100")


async def test_each_change_is_kept_at_once(tmp_path):
    """Whatever becomes of the agent: nothing is closed, flushed or ended here."""
    told = Told(tmp_path)
    running = asyncio.create_task(told.saver.run())
    states = list(_states(40))
    told.saver.keep(states[0].cluster)
    await told.once()
    for change in states[1:]:
        told.saver.keep(*change[:2])
        assert lastgood.load(tmp_path) == change.cluster
    running.cancel()
    await asyncio.wait([running])


async def test_changes_while_the_whole_is_saved_follow_it(tmp_path):
    told = Told(tmp_path)
    running = asyncio.create_task(told.saver.run())
    first, *others = _states(20)
    told.saver.keep(first.cluster)
    await asyncio.sleep(0)  # it is being saved
    for change in others:
        told.saver.keep(*change[:2])
    await told.once()
    assert lastgood.load(tmp_path) == others[-1].cluster
    running.cancel()
    await asyncio.wait([running])


async def test_a_journal_that_is_too_long_makes_way_for_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(lastgood, "LONGEST_JOURNAL", 300)
    monkeypatch.setattr(lastgood, "LEAST_PAUSE", 0.0)
    told = Told(tmp_path)
    running = asyncio.create_task(told.saver.run())
    first, *others = _states(30)
    told.saver.keep(first.cluster)
    await told.once()
    for change in others:
        told.saver.keep(*change[:2])
        assert lastgood.load(tmp_path) == change.cluster
        await asyncio.sleep(0)
    await told.once()
    whole = msgspec.json.decode((tmp_path / lastgood.FILE).read_bytes())
    assert whole["revision"] != first.cluster.revision
    running.cancel()
    await asyncio.wait([running])
    assert lastgood.load(tmp_path) == others[-1].cluster


async def test_a_torn_line_ends_the_journal(tmp_path):
    told = Told(tmp_path)
    running = asyncio.create_task(told.saver.run())
    first, second, third = _states(3)
    told.saver.keep(first.cluster)
    await told.once()
    told.saver.keep(*second[:2])
    told.saver.keep(*third[:2])
    running.cancel()
    await asyncio.wait([running])
    journal = tmp_path / journals.FILE
    journal.write_bytes(journal.read_bytes()[:-10])
    assert lastgood.load(tmp_path) == second.cluster


async def test_a_journal_that_cannot_be_written_to_is_told_and_the_whole_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(lastgood, "LEAST_PAUSE", 0.0)
    told = Told(tmp_path)
    running = asyncio.create_task(told.saver.run())
    first, second, third = _states(3)
    told.saver.keep(first.cluster)
    await told.once()
    with monkeypatch.context() as full:
        full.setattr(journals.os, "write", lambda _, data: len(data) // 2)
        told.saver.keep(*second[:2])
    assert told.problems == [
        f"{tmp_path}: the state of the cluster cannot be saved: No space left on device; the next change is tried again"
    ]
    told.told.clear()
    await told.once()
    assert (told.problems, lastgood.load(tmp_path)) == ([], second.cluster)
    told.saver.keep(*third[:2])
    assert lastgood.load(tmp_path) == third.cluster
    running.cancel()
    await asyncio.wait([running])


def _states(count: int) -> Iterator[ClusterChange]:
    """Services and slices come, change and go; the first is whole."""
    cluster = Cluster("r0", nodes={"node-1": NODE}, services={"default/old": service("old")})
    yield ClusterChange(cluster)
    for number in range(1, count):
        name = f"s{number % 5}"
        slices = slice_of(endpoint(f"172.16.1.{number}"), name=name)
        services = dict(cluster.services)
        if number % 7:
            services[f"default/{name}"] = service(name)
        else:
            services.pop(f"default/{name}", None)
        cluster = replace(
            cluster, revision=f"r{number}", services=services, slices={**cluster.slices, slices.key: slices}
        )
        yield ClusterChange(cluster, ChangeSet.of({Service: {f"default/{name}"}, EndpointSlice: {slices.key}}))


async def test_a_state_that_cannot_be_saved_is_told_and_the_next_is_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(lastgood, "LEAST_PAUSE", 0.0)
    (tmp_path / "state").write_text("in the way")
    told = Told(tmp_path / "state")
    running = asyncio.create_task(told.saver.run())
    told.saver.keep(Cluster("r1"))
    await told.once()
    (problem,) = told.problems
    assert str(tmp_path / "state") in problem
    assert "cannot be saved: File exists" in problem
    (tmp_path / "state").unlink()
    told.saver.keep(Cluster("r2"))
    await told.once()
    assert told.problems == []
    assert lastgood.load(tmp_path / "state") == Cluster("r2")
    running.cancel()
    await asyncio.wait([running])
