"""What the agent writes to a real kube-apiserver: annotations and taint of its Node, and Events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from apiserver_agents import NODE, SERVICES, SLICES, RunningAgent, agent_on, running_agent, until
from fed_agents import fed_node

from control_planes import needs
from windlass.agent import cluster_writers
from windlass.cluster.kubernetes.connections import RequestRefused
from windlass.cluster.kubernetes.writing import GATEWAY_ADDRESSES, NOT_READY, UPLINK_MAC, mark_node, write_event
from windlass.cluster.objects import Problem, Reference
from windlass.lab.control.control_planes import AGENT, apply

pytestmark = needs("etcd", "kube-apiserver")
OTHER = {"key": "example.com/mine", "value": "v", "effect": "NoExecute"}


# The Node ---------------------------------------------------------------------------------------------------------


async def test_a_node_whose_network_is_ready(api, monkeypatch):
    """The agent adds annotations, removes the taint and keeps other fields; a restarted agent writes nothing."""
    monkeypatch.setattr(cluster_writers, "LOOK_AGAIN", 0.1)
    await api.put_node()
    await api.patch(NODE, {"metadata": {"annotations": {"example.com/a": "b"}}, "spec": {"taints": [OTHER, NOT_READY]}})
    async with fed_node() as fed:
        async with agent_on(fed, api.plane) as one:
            await one.becomes_ready()
            await until(api.annotations, accept=lambda found: UPLINK_MAC in found)
            mac = one.agent.view.state.node.uplink_mac
        found = await api.get(NODE)
        assert found["metadata"]["annotations"] == {
            "example.com/a": "b",
            UPLINK_MAC: mac,
            GATEWAY_ADDRESSES: "172.16.1.1",
        }
        assert found["spec"]["taints"] == [OTHER]
        async with agent_on(fed, api.plane) as one:
            await one.becomes_ready()
            await until(lambda: _requests(one), accept=lambda number: number >= 3)
            # The agent writes everything to a new Node object: its first write.
            assert (await api.get(NODE))["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
            await api.delete(NODE)
            await api.put_node()
            await until(api.annotations, accept=lambda found: found.get(GATEWAY_ADDRESSES) == "172.16.1.1")
            await one.has_no_problems()


async def _requests(one: RunningAgent) -> int:
    return one.requests


async def test_unchanged_fields_of_the_node_are_not_written(api):
    await api.put_node()
    async with api.plane.connection(AGENT) as connection:
        for is_ready in (False, True):
            await mark_node(connection, "node-1", {UPLINK_MAC: "0a:00:00:00:00:01"}, is_ready=is_ready)
            before = await api.get(NODE)
            await mark_node(connection, "node-1", {UPLINK_MAC: "0a:00:00:00:00:01"}, is_ready=is_ready)
            assert await api.get(NODE) == before
            assert (NOT_READY in before["spec"].get("taints", [])) is not is_ready
        await mark_node(connection, "node-9", {UPLINK_MAC: "0a:00:00:00:00:01"}, is_ready=True)  # there is none


async def test_taints_of_others_survive_concurrent_writes(api):
    await api.put_node()
    mine = [{**OTHER, "key": f"example.com/{number}"} for number in range(20)]
    await api.patch(NODE, {"spec": {"taints": [OTHER]}})

    async def toggle() -> None:
        async with api.plane.connection(AGENT) as connection:
            for number in range(30):
                try:
                    await mark_node(connection, "node-1", {}, is_ready=bool(number % 2))
                except RequestRefused as error:  # conflicting writes each time; the agent retries later
                    assert error.code == 409  # noqa: PT017

    async def add() -> None:
        for taint in mine:
            await api.patch(NODE, [{"op": "add", "path": "/spec/taints/0", "value": taint}], "json-patch")

    await asyncio.gather(toggle(), add())
    found = await api.taints()
    assert {taint["key"] for taint in found} - {NOT_READY["key"]} == {taint["key"] for taint in [OTHER, *mine]}


@pytest.mark.usefixtures("short_delays")
async def test_a_node_that_loses_its_network(api):
    await api.put_node()
    async with running_agent(api.plane) as one:
        await one.becomes_ready()
        await until(api.annotations, accept=lambda found: UPLINK_MAC in found)
        await one.fed.switch._switch.kill()
        await until(api.taints, accept=lambda found: NOT_READY in found)
        assert UPLINK_MAC in await api.annotations()
        await one.fed.switch.restart()
        await one.becomes_ready()
        await until(api.taints, accept=lambda found: NOT_READY not in found)


@pytest.mark.usefixtures("short_delays")
async def test_a_node_without_pod_cidr(api):
    await api.put_node(cidr="")
    async with running_agent(api.plane) as one:
        reported = await one.reports("spec.podCIDRs is empty", area="node")
        assert reported == one.agent.status.waiting_for
        (event,) = await until(lambda: api.events("Node", "node-1"))
        assert reported == f"Node node-1: {event['note']}"
        uid = (await api.get(NODE))["metadata"]["uid"]
        assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": uid}
        assert (event["type"], event["reason"]) == ("Warning", "NotUsable")
        await until(api.taints, accept=lambda found: NOT_READY in found)
        await api.put_node()
        await one.becomes_ready()
        await until(api.taints, accept=lambda found: NOT_READY not in found)


@pytest.mark.usefixtures("short_delays")
async def test_a_node_with_the_pod_cidr_of_another(api):
    await api.put_node()
    await api.put_node("node-2", address="10.176.25.12")
    async with running_agent(api.plane) as one:
        await one.becomes_ready()
        sentence = "its PodCIDR 172.16.1.0/24 overlaps that of Node node-2"
        await one.reports(f"Node node-1: {sentence}", "Node node-2: its PodCIDR", area="cluster")
        (event,) = await until(lambda: api.events("Node", "node-1"))
        assert event["note"].startswith(sentence)
        assert await api.events("Node", "node-2") == [], "it speaks for itself"


# Objects that it had to refuse ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_delays")
async def test_objects_that_the_api_accepts_and_the_agent_cannot_serve(api):
    await api.put_node()
    await api.put_service("first", externalIPs=["192.0.2.1"])
    async with running_agent(api.plane) as one:
        await one.becomes_ready()
        await api.put_service("second", externalIPs=["192.0.2.1", "172.16.1.77"])
        await api.put(
            f"{SLICES}/odd",
            metadata={"labels": {"kubernetes.io/service-name": "first"}},
            addressType="IPv4",
            endpoints=[{"addresses": ["240.0.0.1"]}],
            ports=[{"name": "http", "port": 8080}],
        )
        reported = await one.reports(
            "Service default/second: 192.0.2.1:80/TCP belongs to Service default/first",
            "spec.externalIPs[1]: 172.16.1.77 is inside 172.16.1.0/24, the PodCIDR of this Node",
            "EndpointSlice default/odd: endpoints[0].addresses: 240.0.0.1 is a reserved address",
            area="services",
        )
        events = await until(lambda: api.events("Service", "second"), accept=lambda found: len(found) == 2)
        events += await until(lambda: api.events("EndpointSlice", "odd"))
        found = await api.get(f"{SLICES}/odd")
        assert events[2]["regarding"] == {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "namespace": "default",
            "name": "odd",
            "uid": found["metadata"]["uid"],
        }
        assert all(event["note"] in reported for event in events)
        assert {"default/first", "default/second"} <= set(one.agent.view.state.services), "the rest keeps working"
        # Another agent reports the same: that is one Event. And kubectl shows it.
        regarding = Reference(**{key: value for key, value in events[2]["regarding"].items() if key != "apiVersion"})
        async with api.plane.connection(AGENT) as connection:
            await write_event(connection, Problem("", events[2]["note"], regarding), "node-2")
        assert len(await api.events("EndpointSlice", "odd")) == 1
        # The problem disappears after the repair.
        await api.delete(f"{SLICES}/odd")
        await api.delete(f"{SERVICES}/second")
        await one.has_no_problems()


@pytest.mark.usefixtures("short_delays")
async def test_many_malformed_objects_do_not_hammer_the_server(api, monkeypatch):
    delays: list[float] = []

    def recorded(least: float, most: float, uniform: Callable[[float, float], float] = random.uniform) -> float:
        delays.append(most)
        return uniform(least, most)

    monkeypatch.setattr(random, "uniform", recorded)
    await api.put_node()
    for number in range(40):
        await api.put_service(f"bad-{number}", externalIPs=["172.16.1.77"])
    async with running_agent(api.plane) as one:
        await one.becomes_ready()
        asked = one.requests
        await until(lambda: api.events("Service"), accept=lambda found: len(found) == 40)
        assert delays.count(2 / cluster_writers.EVENTS_PER_SECOND) >= 40, "one before each Event"
        assert one.requests - asked <= 42, "an attempt for each, and a look at the Node"


async def test_no_event_is_written_into_a_namespace_that_is_being_deleted(api):
    async with api.plane.connection(AGENT) as connection:
        await write_event(connection, Problem("", "it is wrong", Reference("Service", "web", "nowhere", "1")), "node-1")
        namespaces_path = "/api/v1/namespaces"
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "going"}}
        await apply(api.connection, made, f"{namespaces_path}/going")
        await api.delete(f"{namespaces_path}/going")  # the deletion is never completed: there are no controllers
        await write_event(connection, Problem("", "it is wrong", Reference("Service", "web", "going", "1")), "node-1")


async def test_long_texts_of_events_are_shortened(api):
    problem = Problem("", "é" * 2000, Reference("Service", "web", "default", "1"))
    async with api.plane.connection(AGENT) as connection:
        await write_event(connection, problem, "node-" * 50)
    (event,) = await api.events("Service", "web")
    assert event["note"].endswith("é...")
    assert len(event["reportingInstance"]) == 128
