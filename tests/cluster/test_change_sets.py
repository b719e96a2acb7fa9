"""What may have changed, from a source to the stages that carry it out."""

from __future__ import annotations

import pytest
from api_objects import endpoint, service, slice_of

from windlass.cluster.changes import EVERYTHING, NOTHING, ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import EndpointSlice, Metadata, Node, Pod, Service, ServiceCIDR
from windlass.cluster.policy_objects import NetworkPolicy
from windlass.cluster.sources import changes_between

WEB, SHOP = service("web"), service("shop")
SLICE = slice_of(endpoint("172.16.1.5"))
NODE, CIDR, POLICY = Node(Metadata("node-1")), ServiceCIDR(Metadata("kubernetes")), NetworkPolicy(Metadata("deny"))
BEFORE = Cluster("1", nodes={"node-1": NODE}, services={"default/web": WEB}, slices={SLICE.key: SLICE})


def changed(**fields: object) -> ChangeSet:
    kept = {"nodes": BEFORE.nodes, "services": BEFORE.services, "slices": BEFORE.slices}
    return changes_between(BEFORE, Cluster("2", **{**kept, **fields}))


def test_two_states_differ_by_the_objects_that_came_went_or_changed():
    assert changed() == NOTHING
    assert changed(services={"default/web": WEB, "default/shop": SHOP}) == ChangeSet.of({Service: {"default/shop"}})
    assert changed(services={}, slices={}) == ChangeSet.of({Service: {"default/web"}, EndpointSlice: {SLICE.key}})
    assert changed(nodes={"node-1": Node(Metadata("node-1"))}) == ChangeSet.of({Node: {"node-1"}})
    assert changed(service_cidrs={"kubernetes": CIDR}) == ChangeSet.of({ServiceCIDR: {"kubernetes"}})
    assert changed(network_policies={"default/deny": POLICY}) == ChangeSet.of({NetworkPolicy: {"default/deny"}})


def test_the_union_of_changes():
    first = ChangeSet.of({Service: {"a"}, EndpointSlice: {"b"}})
    second = ChangeSet.of({Service: {"c"}, Pod: {"d"}})
    assert first | second == ChangeSet.of({Service: {"a", "c"}, EndpointSlice: {"b"}, Pod: {"d"}})
    assert first | NOTHING == NOTHING | first == first
    assert first | EVERYTHING == EVERYTHING | first == EVERYTHING


def test_a_kind_without_keys_is_not_in_a_change():
    changes = ChangeSet.of({Service: set(), Pod: {"a", "b"}})
    assert changes == ChangeSet.of({Pod: {"a", "b"}})
    assert set(changes) == {(Pod, "a"), (Pod, "b")}
    assert changes.keys(Service) == set()
    assert not ChangeSet.of({Service: set()})


def test_everything_has_no_list_of_keys():
    assert EVERYTHING
    with pytest.raises(ValueError, match="no list of keys"):
        EVERYTHING.keys(Service)
    with pytest.raises(ValueError, match="no list of keys"):
        list(EVERYTHING)


def test_if_everything_may_have_changed_the_objects_are_compared():
    after = {"default/web": WEB, "default/shop": SHOP}
    assert EVERYTHING.keys_between(Service, BEFORE.services, after) == {"default/shop"}
    assert ChangeSet.of({Service: {"default/web"}}).keys_between(Service, {}, after) == {"default/web"}


def test_changes_in_words():
    assert str(EVERYTHING) == "everything"
    assert str(NOTHING) == "nothing"
    assert str(ChangeSet.of({Service: {"default/b", "default/a"}})) == "Service default/a, Service default/b"
