"""Which endpoints are near: hints for Nodes and for zones."""

from __future__ import annotations

import pytest
from api_objects import endpoint, slice_of
from served_services import DRAINING, port, used

from windlass.cluster.endpoints import zone_of
from windlass.cluster.objects import Metadata, Node

LOCAL = "node-1"


def near(*endpoints: dict[str, object]) -> list[str]:
    return [
        address.removeprefix("172.16.2.").removesuffix(":8080")
        for address in used(port(slice_of(*endpoints)).endpoints)
    ]


def test_node_hints_come_before_zone_hints():
    assert near(
        endpoint("172.16.2.5", nodes=["node-1"], zones=["zone-b"]),
        endpoint("172.16.2.6", nodes=["node-2", "node-1"], zones=["zone-b"]),
        endpoint("172.16.2.7", nodes=["node-2"], zones=["zone-a"]),
    ) == ["5", "6"]


def test_zone_hints_if_no_node_hint_names_this_node():
    assert near(
        endpoint("172.16.2.5", nodes=["node-3"], zones=["zone-b"]),
        endpoint("172.16.2.6", nodes=["node-2"], zones=["zone-b", "zone-a"]),
    ) == ["6"]


def test_zone_hints_if_one_node_hint_is_missing():
    assert near(
        endpoint("172.16.2.5", nodes=["node-1"], zones=["zone-b"]), endpoint("172.16.2.6", zones=["zone-a"])
    ) == ["6"]


@pytest.mark.parametrize("missing", [{}, {"zones": []}, {"nodes": ["node-2"]}])
def test_all_endpoints_if_a_ready_one_has_no_hint(missing):
    assert near(endpoint("172.16.2.5", zones=["zone-a"]), endpoint("172.16.2.6", **missing)) == ["5", "6"]
    assert near(endpoint("172.16.2.4", **missing), endpoint("172.16.2.5", zones=["zone-a"])) == ["4", "5"]


def test_all_endpoints_if_no_hint_names_this_zone():
    assert near(endpoint("172.16.2.5", zones=["zone-b"]), endpoint("172.16.2.6", zones=["zone-c"])) == ["5", "6"]


def test_only_hints_of_ready_endpoints_count():
    assert near(
        endpoint("172.16.2.5", zones=["zone-a"]),
        endpoint("172.16.2.6", zones=["zone-b"]),
        endpoint("172.16.2.7", **DRAINING),
    ) == ["5"]


def test_draining_endpoints_are_used_whatever_their_hints():
    assert near(
        endpoint("172.16.2.5", zones=["zone-a"], **DRAINING), endpoint("172.16.2.6", zones=["zone-b"], **DRAINING)
    ) == ["5", "6"]


def test_local_policies_ignore_hints():
    slices = slice_of(endpoint("172.16.1.5", LOCAL, zones=["zone-b"]), endpoint("172.16.2.6", zones=["zone-a"]))
    only = port(slices, internalTrafficPolicy="Local")
    assert (used(only.endpoints), used(only.local_endpoints)) == (["172.16.2.6:8080"], ["172.16.1.5:8080"])


def test_the_zone_is_a_label_of_the_node():
    assert zone_of(Node(Metadata("node-1", labels={"topology.kubernetes.io/zone": "zone-a"}))) == "zone-a"
    assert zone_of(Node(Metadata("node-1"))) == ""
