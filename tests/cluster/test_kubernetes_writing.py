"""The patch of a Node and the body of an Event. A real server accepts them in test_cluster_writer_apiserver."""

from __future__ import annotations

from datetime import UTC, datetime

from windlass.cluster.kubernetes.writing import NOT_READY, MarkedMetadata, MarkedNode, MarkedSpec, event, node_patch
from windlass.cluster.objects import Reference

OTHER = {"key": "example.com/mine", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
EVICTING = {**NOT_READY, "effect": "NoExecute"}  # with our key, but of another client
NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
SERVICE = Reference("Service", "web", "shop", "u1")


def node(*taints: dict[str, object], **annotations: str) -> MarkedNode:
    return MarkedNode(MarkedMetadata("7", annotations or None), MarkedSpec(taints or None))


def test_unchanged_fields_of_the_node_are_not_written():
    assert node_patch(node(OTHER, a="1"), {"a": "1"}, is_ready=True) == {}
    assert node_patch(node(OTHER, NOT_READY), {}, is_ready=False) == {}


def test_annotations_alone_need_no_version():
    assert node_patch(node(a="1", b="2"), {"a": "1", "b": "3"}, is_ready=True) == {
        "metadata": {"annotations": {"b": "3"}}
    }


def test_a_write_of_taints_has_all_of_them_and_the_version_that_was_read():
    patch = node_patch(node(OTHER, NOT_READY, EVICTING), {"a": "1"}, is_ready=True)
    assert patch == {
        "metadata": {"resourceVersion": "7", "annotations": {"a": "1"}},
        "spec": {"taints": [OTHER, EVICTING]},
    }
    assert node_patch(node(NOT_READY), {}, is_ready=True)["spec"] == {"taints": None}
    assert node_patch(node(OTHER), {}, is_ready=False)["spec"] == {"taints": [OTHER, NOT_READY]}


def test_the_same_problem_has_the_same_event_from_every_agent():
    one, same = event("wrong", SERVICE, "node-1", NOW), event("wrong", SERVICE, "node-2", datetime.now(UTC))
    assert one["metadata"] == same["metadata"]
    assert one["eventTime"] == "2026-01-02T03:04:05.000006Z"
    others = [event("wronger", SERVICE, "node-1", NOW), event("wrong", SERVICE._replace(uid="u2"), "node-1", NOW)]
    assert len({str(other["metadata"]) for other in [one, *others]}) == 3


def test_an_object_without_namespace_has_its_events_in_default():
    body = event("wrong", Reference("ServiceCIDR", "kubernetes", uid="u1"), "node-1", NOW)
    assert body["metadata"]["namespace"] == "default"
    assert body["regarding"] == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "name": "kubernetes",
        "uid": "u1",
    }
