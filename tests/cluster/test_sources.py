"""What a source says has changed: all of it, and several changes as one."""

from __future__ import annotations

from api_objects import endpoint, service, slice_of

from windlass.cluster.catalogues import Touched
from windlass.cluster.objects import Cluster, Metadata, Node, ServiceCIDR
from windlass.cluster.sources import between, both

WEB, SHOP = service("web"), service("shop")
SLICE = slice_of(endpoint("172.16.1.5"))
BEFORE = Cluster("1", {"node-1": Node(Metadata("node-1"))}, services={"default/web": WEB}, slices={SLICE.key: SLICE})


def changed(**fields: object) -> Cluster:
    kept = {"nodes": BEFORE.nodes, "services": BEFORE.services, "slices": BEFORE.slices}
    return Cluster("2", **{**kept, **fields})


def test_services_and_slices_are_named():
    assert between(BEFORE, changed()) == Touched()
    assert between(BEFORE, changed(services={"default/web": WEB, "default/shop": SHOP})) == Touched({"default/shop"})
    assert between(BEFORE, changed(slices={})) == Touched(slices={SLICE.key})
    assert between(BEFORE, changed(services={}, slices={})) == Touched({"default/web"}, {SLICE.key})


def test_another_node_or_service_cidr_may_change_anything():
    assert between(BEFORE, changed(nodes={"node-1": Node(Metadata("node-1", labels={"a": "b"}))})) is None
    assert between(BEFORE, changed(service_cidrs={"kubernetes": ServiceCIDR(Metadata("kubernetes"))})) is None


def test_several_changes_are_one():
    first, second = Touched({"a"}, {"b"}), Touched({"c"}, {"b"})
    assert both(first, second) == Touched({"a", "c"}, {"b"})
    assert both(first, None) is None
    assert both(None, second) is None
