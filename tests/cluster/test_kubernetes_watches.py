"""Lists and watches against a stand-in of the API server: changes are reported, and faults lose no objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime

import pytest
from api_servers import (
    BUILT_IN,
    CIDRS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    SLICES,
    Listener,
    StandIn,
    address,
    listening,
    move,
    shop_server,
    until,
)

from windlass.cluster.changes import EVERYTHING, NOTHING, ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.kubernetes.credentials import Access
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.objects import EndpointSlice, Node, Pod, Service


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    async with shop_server() as stand_in:
        yield stand_in


def problems(cluster: Cluster) -> list[str]:
    return [str(problem) for problem in cluster.problems]


# Changes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams_lists", [True, False])
async def test_the_first_change_holds_all_kinds(server, streams_lists):
    server.streams_lists = streams_lists
    async with listening(server) as listener:
        cluster, changes, *_ = await listener.hear()
    assert changes == EVERYTHING
    assert cluster.nodes["node-1"].pod_cidrs == ("172.16.1.0/24",)
    assert set(cluster.services) == {"shop/web"}
    assert set(cluster.slices) == {"shop/web-1"}
    assert set(cluster.service_cidrs) == {"kubernetes"}
    assert set(cluster.namespaces) == {"shop"}
    assert set(cluster.pods) == {"shop/web-0"}
    assert cluster.problems == ()
    assert cluster.revision


async def test_a_list_in_pages_is_one_list(server):
    server.streams_lists = False
    for number in range(1201):
        server.put(SERVICES, f"web-{number}", "shop")
    async with listening(server) as listener:
        cluster, *_ = await listener.hear()
    assert len(cluster.services) == 1202
    assert len([asked for path, asked in server.requests if path == SERVICES and "limit" in asked]) == 3


async def test_only_objects_that_the_node_needs_are_requested(server):
    async with listening(server, "node-7") as listener:
        await listener.hear()
    asked = dict(server.requests)
    assert asked[PODS]["fieldSelector"] == "spec.nodeName=node-7"
    assert asked[SERVICES]["labelSelector"] == (
        "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"
    )
    assert "!service.kubernetes.io/headless" in asked[SLICES]["labelSelector"]


async def test_a_change_names_the_changed_objects_and_keeps_all_others(server):
    async with listening(server) as listener:
        before = (await listener.hear()).cluster
        move(server, "172.16.1.6")
        change = await listener.hear()
        assert change.changes == ChangeSet.of({EndpointSlice: {"shop/web-1"}})
        assert address(change) == "172.16.1.6"
        assert change.cluster.services is before.services
        assert before.slices["shop/web-1"] is not change.cluster.slices["shop/web-1"]  # the earlier one is unchanged
        server.remove(SERVICES, "web", "shop")
        change = await listener.hear()
        assert change.changes == ChangeSet.of({Service: {"shop/web"}})
        assert not change.cluster.services
        server.put(NODES, "node-2")
        assert (await listener.hear()).changes == ChangeSet.of({Node: {"node-2"}})
        server.put(PODS, "web-1", "shop")
        assert (await listener.hear()).changes == ChangeSet.of({Pod: {"shop/web-1"}})


async def test_unused_fields_are_no_change(server):
    """Heartbeats, managed fields and annotations: most writes in a cluster."""
    async with listening(server) as listener:
        first = await listener.hear()
        server.put(NODES, "node-1", spec={"podCIDRs": ["172.16.1.0/24"]}, status={"conditions": [{"type": "Ready"}]})
        move(server, "172.16.1.6")
        change = await listener.hear()
    assert change.changes == ChangeSet.of({EndpointSlice: {"shop/web-1"}})
    assert change.cluster.nodes is first.cluster.nodes


async def test_changes_that_come_together_are_one_change(server):
    async with listening(server) as listener:
        await listener.hear()
        lines = StandIn()
        lines.version = server.version
        for number in range(50):
            lines.put(SERVICES, f"web-{number}", "shop")
        server.say(SERVICES, b"".join(line for _, line in lines._history[SERVICES]))
        change = await listener.hear()
    assert len(change.changes.keys(Service)) == 50


async def test_equal_content_has_an_equal_revision(server):
    async with listening(server) as listener, listening(server) as other:
        first = (await listener.hear()).cluster.revision
        assert (await other.hear()).cluster.revision == first
        move(server, "172.16.1.6")
        second = (await listener.hear()).cluster.revision
        assert second != first
        move(server, "172.16.1.5")
        assert (await listener.hear()).cluster.revision == first


async def test_a_server_without_service_cidrs(server):
    """Before Kubernetes 1.33."""
    server.refusals[CIDRS] = 404, "the server could not find the requested resource"
    async with listening(server) as listener:
        cluster, *_ = await listener.hear()
    assert cluster.service_cidrs == {}
    assert cluster.problems == ()


# Faults -----------------------------------------------------------------------------------------------------------


async def test_a_malformed_object_affects_no_other(server):
    server.put(SERVICES, "odd", "shop", spec={"ports": [{"port": "eighty"}]})
    async with listening(server) as listener:
        cluster, *_ = await listener.hear()
        assert set(cluster.services) == {"shop/web"}
        assert problems(cluster) == [
            "Service shop/odd: spec.ports[0].port: expected a number, got text; it is left out, the rest is used"
        ]
        server.put(SERVICES, "web", "shop", spec={"clusterIPs": 7})
        cluster, *_ = await listener.hear()
        assert cluster.services["shop/web"].spec.cluster_ips == ("10.96.0.10",)
        assert (
            "Service shop/web: spec.clusterIPs: expected a list, got a number; its earlier version stays in use"
            in problems(cluster)
        )
        server.put(SERVICES, "odd", "shop", spec={"ports": [{"port": 80}]})
        cluster, changes, *_ = await listener.hear()
        assert set(cluster.services) == {"shop/web", "shop/odd"}
        assert changes == ChangeSet.of({Service: {"shop/odd"}})
        server.remove(SERVICES, "web", "shop")
        cluster, *_ = await listener.hear()
        assert problems(cluster) == []


async def test_a_connection_cut_in_the_middle_of_an_object(server):
    async with listening(server) as listener:
        await listener.hear()
        server.say(SLICES, b'{"type":"MODIFIED","object":{"metadata":{"name":"web-1","namespace":"shop"},"endpo')
        server.cut(SLICES)
        await until(lambda: not server.is_watched(SLICES))
        version = server.version
        move(server, "172.16.1.6")
        change = await listener.hear()
    assert address(change) == "172.16.1.6"
    assert change.cluster.problems == ()
    assert int(server.watches(SLICES)[-1]["resourceVersion"]) <= version
    assert "sendInitialEvents" not in server.watches(SLICES)[-1]  # it continued where it was


async def test_a_watch_continues_from_the_last_bookmark(server):
    async with listening(server) as listener:
        await listener.hear()
        for number in range(20):  # other kinds, of which this watch gets no events
            server.put(NAMESPACES, f"namespace-{number}")
        server.bookmark(SLICES)
        bookmarked = server.version
        server.cut(SLICES)
        await until(lambda: len(server.watches(SLICES)) == 2)
    assert server.watches(SLICES)[-1]["resourceVersion"] == str(bookmarked)


async def test_an_expired_version_leads_to_a_new_list_and_only_differences_are_reported(server):
    server.put(SLICES, "other-1", "shop", endpoints=[{"addresses": ["172.16.1.9"]}])
    server.put(SLICES, "going-1", "shop")
    async with listening(server) as listener:
        before = (await listener.hear()).cluster
        server.cut(SLICES)
        await until(lambda: not server.is_watched(SLICES))
        move(server, "172.16.1.6")
        server.remove(SLICES, "going-1", "shop")
        server.version += 1
        server.forget()
        change = await listener.hear()
    assert change.changes == ChangeSet.of({EndpointSlice: {"shop/web-1", "shop/going-1"}})
    assert change.cluster.slices["shop/other-1"] is before.slices["shop/other-1"]
    assert set(change.cluster.slices) == {"shop/web-1", "shop/other-1"}
    assert change.cluster.problems == ()


async def test_an_expired_version_may_also_be_refused(server):
    async with listening(server) as listener:
        await listener.hear()
        server.refusals[SLICES] = 410, "Expired"
        server.cut(SLICES)
        await until(lambda: len(server.watches(SLICES)) == 2)
        move(server, "172.16.1.6")
        del server.refusals[SLICES]
        change = await listener.hear()
    assert address(change) == "172.16.1.6"


async def test_a_version_that_goes_backwards_leads_to_a_new_list(server):
    """A server that was restored from a backup, or a new one at the same address."""
    async with listening(server) as listener:
        await listener.hear()
        server._objects[SLICES].clear()
        server.bookmark(SLICES, version=7)
        change = await listener.hear()
    assert change.cluster.slices == {}


async def test_garbage_is_a_problem_and_the_watch_starts_again(server):
    async with listening(server) as listener:
        await listener.hear()
        server.say(SLICES, b"<html>502 Bad Gateway</html>\n")
        cluster, changes, *_ = await listener.hear()
        assert changes == NOTHING
        assert "endpointslices: the server sends data that cannot be decoded" in problems(cluster)[0]
        assert "the state that was read before stays in use" in problems(cluster)[0]
        await until(lambda: server.is_watched(SLICES))
        move(server, "172.16.1.6")
        change = await listener.hear()
    assert address(change) == "172.16.1.6"
    assert change.cluster.problems == ()


async def test_a_change_that_was_garbled_on_its_way_is_read_again(server, monkeypatch):
    def garbled(path: str, content: bytes) -> None:
        StandIn.say(server, path, content.replace(b"172.16.1.6", b"172.16.1.\xff"))

    async with listening(server) as listener:
        await listener.hear()
        monkeypatch.setattr(server, "say", garbled)
        move(server, "172.16.1.6")
        cluster, *_ = await listener.hear()
        assert "the server sends data that cannot be decoded" in problems(cluster)[0]
        change = await listener.hear()
    assert address(change) == "172.16.1.6"
    assert change.cluster.problems == ()


async def test_after_the_server_was_away_only_the_difference_is_reported(server):
    async with listening(server) as listener:
        before = (await listener.hear()).cluster
        await server.stop()
        cluster, changes, *_ = await listener.hear()
        assert changes == NOTHING
        assert cluster.slices is before.slices
        assert cluster.revision == before.revision
        (sentence,) = problems(cluster)
        assert sentence.startswith(f"API server: {server.address}: ")
        assert "does the API server run there? Check a test; the state that was read before stays in use" in sentence
        move(server, "172.16.1.6")
        server.forget()
        await server.start()
        heard = await listener.hear()
        changes = heard.changes
        while heard.cluster.problems or address(heard) != "172.16.1.6":
            heard = await listener.hear()
        assert heard.cluster.nodes is before.nodes
        assert heard.cluster.services is before.services


# Metrics ------------------------------------------------------------------------------------------------------------

TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
LATER = "2999-01-01T00:00:00.123456789Z"  # than the start of any test


def triggered(server: StandIn, to: str, when: str) -> None:
    server.put(SLICES, "web-1", "shop", endpoints=[{"addresses": [to]}], metadata={"annotations": {TRIGGER: when}})


async def test_a_changed_slice_has_its_trigger_time(server):
    async with listening(server) as listener:
        assert (await listener.hear()).triggered == ()
        triggered(server, "172.16.1.6", LATER)
        assert (await listener.hear()).triggered == (datetime.fromisoformat(LATER).timestamp(),)
        move(server, "172.16.1.7")
        assert (await listener.hear()).triggered == (), "it has no such annotation now"
        triggered(server, "172.16.1.8", "2001-01-01T00:00:00Z")
        assert (await listener.hear()).triggered == (), "of before the agent's start"
        triggered(server, "172.16.1.9", "noon")
        assert (await listener.hear()).triggered == ()


@pytest.mark.parametrize("streams_lists", [True, False])
async def test_a_slice_that_changed_before_a_new_list_has_its_trigger_time(server, streams_lists):
    server.streams_lists = streams_lists
    triggered(server, "172.16.1.6", LATER)
    async with listening(server) as listener:
        assert (await listener.hear()).triggered == (), "it was there at the start"
        await until(lambda: server.is_watched(SLICES))
        await server.stop()
        triggered(server, "172.16.1.7", LATER)
        server.forget()
        await server.start()
        while address(change := await listener.hear()) != "172.16.1.7":
            pass
        assert change.triggered == (datetime.fromisoformat(LATER).timestamp(),)


async def test_the_health_of_watches(server):
    source = APIServer(lambda: Access(server.address, "a test", "a token"), "node-1")
    server.refusals[CIDRS] = (404, "the server could not find the requested resource")
    async with aclosing(source.changes()) as changes:
        await Listener(changes).hear()
        watches = {watch.resource: watch for watch in source.watches}
        assert set(watches) >= {kind.resource for kind in BUILT_IN}
        assert watches["servicecidrs"].age is None, "this server does not know them"
        assert watches["services"].age is not None
        assert set(watches["services"].restarts.values()) == {0}

        await until(lambda: server.is_watched(SERVICES))
        server.cut(SERVICES)
        await until(lambda: {one.resource: one for one in source.watches}["services"].restarts["failed"] == 1)
        await until(lambda: server.is_watched(SERVICES))
        server.put(NAMESPACES, "bank")  # so that the version of this watch is not the last one
        server.forget()
        server.cut(SERVICES)
        await until(lambda: {one.resource: one for one in source.watches}["services"].restarts["expired"] == 1)
