"""Decoding of lists and watch events into typed objects, and the store of one kind."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from counted_lines import lines_run
from windlass.cluster.clusters import KINDS, decode
from windlass.cluster.kubernetes import decoding
from windlass.cluster.kubernetes.decoding import Garbled
from windlass.cluster.kubernetes.stores import ObjectStore
from windlass.cluster.objects import APIObject, EndpointSlice, Namespace, Node, Pod, Service

ENDPOINTS, OF_EACH = 100_000, 10


def recorded_slice(number: int) -> dict[str, object]:
    """As kube-apiserver 1.34 sends one that the EndpointSlice controller wrote, with all its unused fields."""
    name = f"web-{number:05}"
    first = number * OF_EACH
    return {
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": f"{name}-x7k2p",
            "generateName": f"{name}-",
            "namespace": "default",
            "uid": f"0b5c1a8e-6d1e-4b7e-9a55-{number:012}",
            "resourceVersion": str(1000 + number),
            "generation": 1,
            "creationTimestamp": "2026-11-15T21:05:11Z",
            "labels": {
                "app": name,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": name,
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-11-15T21:05:11Z"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": name, "controller": True}],
            "managedFields": [
                {
                    "manager": "kube-controller-manager",
                    "operation": "Update",
                    "apiVersion": "discovery.k8s.io/v1",
                    "time": "2026-11-15T21:05:11Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:addressType": {}, "f:endpoints": {}, "f:metadata": {"f:labels": {".": {}}}},
                }
            ],
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [f"10.{place >> 16 & 255}.{place >> 8 & 255}.{place & 255}"],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "targetRef": {"kind": "Pod", "namespace": "default", "name": f"{name}-5d4f8c7b9-{place:05}"},
                "nodeName": f"node-{place % 100}",
                "zone": "zone-a",
            }
            for place in range(first, first + OF_EACH)
        ],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def store(struct: type[APIObject]) -> ObjectStore:
    return ObjectStore(next(kind for kind in KINDS if kind.struct is struct))


def raw(document: object) -> Raw:
    return Raw(json.dumps(document).encode())


def test_an_object_is_the_same_as_from_a_manifest():
    document = recorded_slice(7)
    found = store(EndpointSlice)
    found.put(raw(document))
    assert found.objects == {"default/web-00007-x7k2p": decode(document)}


def test_the_work_for_a_hundred_thousand_endpoints_is_linear():
    events = [
        json.dumps({"type": "ADDED", "object": recorded_slice(number)}).encode()
        for number in range(ENDPOINTS // OF_EACH)
    ]

    def take(count: int) -> ObjectStore:
        found = store(EndpointSlice)
        for event in events[:count]:
            found.put(decoding.event(event).object)
        return found

    assert sum(len(one.endpoints or ()) for one in take(len(events)).objects.values()) == ENDPOINTS  # type: ignore[attr-defined]
    assert lines_run(lambda: take(1000)) < 15 * lines_run(lambda: take(100)), "quadratic work: a hundred times as much"


def test_items_of_a_list_have_no_kind():
    """Only the list has one."""
    found = store(Service)
    page = decoding.page(
        b'{"kind":"ServiceList","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]}'
    )
    assert page.metadata.resource_version == "7"
    for item in page.items or ():
        found.put(item)
    assert list(found.objects) == ["default/a"]


def test_an_empty_list():
    assert decoding.page(b'{"metadata":{"resourceVersion":"7"},"items":null}').items is None


def test_pods_and_namespaces():
    pods, namespaces = store(Pod), store(Namespace)
    pods.put(
        raw(
            {
                "metadata": {"name": "web-0", "namespace": "shop", "labels": {"app": "web"}},
                "spec": {"hostNetwork": True, "containers": [{"name": "c"}]},
                "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
            }
        )
    )
    namespaces.put(raw({"metadata": {"name": "shop", "labels": {"team": "a"}}, "status": {"phase": "Active"}}))
    pod = pods.objects["shop/web-0"]
    assert isinstance(pod, Pod)
    assert pod.status
    assert [one.ip for one in pod.status.pod_ips or ()] == ["10.0.0.1", "fd00::1"]
    assert namespaces.objects["shop"].metadata.labels == {"team": "a"}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"<html>",
        b"\xff\xfe",
        b'{"type":"WEIRD","object":{}}',
        b'{"object":{}}',
        b'{"type":"ADDED"}',
    ],
)
def test_a_line_that_is_not_an_event(line):
    with pytest.raises(Garbled):
        decoding.event(line)


@given(st.binary())
def test_any_line_is_an_event_or_garbled(line):
    with suppress(Garbled):
        decoding.event(line)


@given(
    st.dictionaries(
        st.sampled_from(["metadata", "spec", "status", "kind"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=4),
            lambda inner: (
                st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "podCIDRs", "addresses"]), inner)
            ),
            max_leaves=5,
        ),
    )
)
def test_any_object_is_stored_or_a_problem(document):
    found = store(Node)
    found.put(raw(document))
    assert len(found.objects) + len(found.problems) == 1


async def test_lines_are_the_same_however_chunks_split_them():
    async def chunks(*parts: bytes):
        for part in parts:
            yield part

    async def lines(*parts: bytes) -> list[bytes]:
        return [line async for batch in decoding.line_batches(chunks(*parts)) for line in batch]

    assert await lines(b"a\nb\nc\n") == [b"a", b"b", b"c"]
    assert await lines(b"a", b"b\nc", b"d", b"\n", b"\n", b"e") == [b"ab", b"cd"]


NAMES = st.sampled_from(["a", "b", "c"])
STATES = st.dictionaries(NAMES, st.integers(0, 3), max_size=3)


def service(name: str, number: int) -> Raw:
    """With number 3 it is malformed."""
    return raw(
        {"metadata": {"name": name, "namespace": "n"}, "spec": {"clusterIP": f"10.0.0.{number}" if number < 3 else 7}}
    )


@given(STATES, STATES)
def test_a_new_list_gives_the_same_as_the_events(before, after):
    """A new list changes exactly what differs, and gives the same digest."""
    listed, followed = store(Service), store(Service)
    for found in (listed, followed):
        for name, number in before.items():
            found.put(service(name, number))
        found.snapshot()
    fresh = listed.emptied()
    for name, number in after.items():
        fresh.put(service(name, number))
    listed.replace(fresh)
    for name in before.keys() - after.keys():
        followed.remove(service(name, 0))
    for name, number in after.items():
        followed.put(service(name, number))
    assert listed.objects == followed.objects
    assert listed.problems == followed.problems
    assert listed.digest == followed.digest
    assert listed.changed == followed.changed
    assert listed.snapshot() == followed.snapshot()
    assert dict(listed.snapshot()[0]) == listed.objects
