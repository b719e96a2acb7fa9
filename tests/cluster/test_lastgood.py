"""The last known good state: whole or not at all, and a help, never a condition."""

from __future__ import annotations

import pytest
from api_objects import endpoint, service, slice_of

from windlass.cluster import lastgood
from windlass.cluster.objects import (
    Cluster,
    Metadata,
    Node,
    NodeAddress,
    NodeSpec,
    NodeStatus,
    Problem,
    ServiceCIDR,
    ServiceCIDRSpec,
)

NODE = Node(
    Metadata("node-1", labels={"kubernetes.io/os": "windows"}),
    NodeSpec(pod_cidrs=("172.16.1.0/24", "fd00:172:16:1::/64")),
    NodeStatus((NodeAddress("InternalIP", "10.176.25.11"), NodeAddress("ExternalIP", "192.0.2.1"))),
)


def test_what_was_saved_is_loaded(tmp_path):
    lastgood.save(tmp_path / "state", Cluster("r1", {"node-1": NODE}))
    assert lastgood.load(tmp_path / "state") == Cluster("r1", {"node-1": NODE})


def test_all_kinds_are_saved(tmp_path):
    slices = slice_of(endpoint("172.16.1.5", ready=False, zones=["zone-a"]), endpoint("172.16.1.6"))
    cluster = Cluster(
        "r1",
        {"node-1": NODE},
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
    lastgood.save(tmp_path, Cluster("r1", {"node-1": NODE}, (Problem("a.yaml", "was broken"),)))
    loaded = lastgood.load(tmp_path)
    assert loaded is not None
    assert loaded.problems == ()


def test_the_newest_counts_and_nothing_else_stays(tmp_path):
    lastgood.save(tmp_path, Cluster("r1", {"node-1": NODE}))
    lastgood.save(tmp_path, Cluster("r2", {}))
    assert lastgood.load(tmp_path) == Cluster("r2", {})
    assert [file.name for file in tmp_path.iterdir()] == [lastgood.FILE]


def test_there_is_none(tmp_path):
    assert lastgood.load(tmp_path) is None
    assert lastgood.load(tmp_path / "nowhere") is None


def test_a_torn_file_is_none(tmp_path):
    lastgood.save(tmp_path, Cluster("r1", {"node-1": NODE}))
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
    lastgood.save(tmp_path, Cluster("r1", {"node-1": NODE}))
    (tmp_path / f".{lastgood.FILE}.new").write_bytes(b'{"revi')  # what such a crash leaves
    loaded = lastgood.load(tmp_path)
    assert loaded is not None
    assert loaded.revision == "r1"
    lastgood.save(tmp_path, Cluster("r2", {}))
    assert [file.name for file in tmp_path.iterdir()] == [lastgood.FILE]
