"""What the agent writes to a real kube-apiserver, and what it reports when it cannot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import msgspec
import pytest
import pytest_asyncio
from fed_agents import NODE_IP, FedAgent, fed_node

from control_planes import ADDRESS, needs, running_control_plane
from windlass.agent import cluster_writers, pending_events
from windlass.agent.agents import Agent
from windlass.agent.cluster_writers import ClusterWriter
from windlass.cluster.kubernetes import feeds
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused, Unreachable
from windlass.cluster.kubernetes.credentials import Access, Reader
from windlass.cluster.kubernetes.roles import rules
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.kubernetes.writing import (
    CONTROLLER,
    GATEWAY_ADDRESSES,
    NOT_READY,
    UPLINK_MAC,
    mark_node,
    write_event,
)
from windlass.cluster.objects import Problem, Reference
from windlass.lab.control import certificates
from windlass.lab.control.certificates import Certificate
from windlass.lab.control.control_planes import AGENT, ControlPlane, apply
from windlass.switch.ovsdb import open_database

pytestmark = needs("etcd", "kube-apiserver")
PATIENCE = 60.0  # the timeout of all waits
NODES, NODE = "/api/v1/nodes", "/api/v1/nodes/node-1"
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
RBAC = "rbac.authorization.k8s.io"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICY_GROUP = "policy.networking.k8s.io"
CLUSTER_POLICIES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"clusternetworkpolicies.{POLICY_GROUP}",
        "annotations": {"api-approved.kubernetes.io": "https://example.com/a-test"},
    },
    "spec": {
        "group": POLICY_GROUP,
        "scope": "Cluster",
        "names": {"plural": "clusternetworkpolicies", "kind": "ClusterNetworkPolicy"},
        "versions": [
            {"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}
OTHER = {"key": "example.com/mine", "value": "v", "effect": "NoExecute"}


# The cluster ------------------------------------------------------------------------------------------------------


@dataclass
class Town:
    plane: ControlPlane
    connection: APIConnection  # the administrator's

    async def get(self, path: str, **parameters: str) -> dict:
        return msgspec.json.decode(await self.connection.request("GET", path, parameters))

    async def put(self, path: str, **document: object) -> None:
        kind = {NODES: "Node", SERVICES: "Service", SLICES: "EndpointSlice"}[path.rpartition("/")[0]]
        version = "discovery.k8s.io/v1" if kind == "EndpointSlice" else "v1"
        name = path.rpartition("/")[2]
        metadata = {"name": name, **document.pop("metadata", {})}
        await apply(self.connection, {"apiVersion": version, "kind": kind, "metadata": metadata, **document}, path)

    async def patch(self, path: str, content: object, kind: str = "merge-patch") -> None:
        body = msgspec.json.encode(content)
        await self.connection.request("PATCH", path, body=body, content_type=f"application/{kind}+json")

    async def delete(self, path: str, **parameters: str) -> None:
        with suppress(RequestRefused):
            await self.connection.request("DELETE", path, parameters)

    async def put_node(self, name: str = "node-1", cidr: str = "172.16.1.0/24", address: str = NODE_IP) -> None:
        await self.put(f"{NODES}/{name}", spec={"podCIDR": cidr, "podCIDRs": [cidr]} if cidr else {})
        status = {"addresses": [{"type": "InternalIP", "address": address}]}
        await self.patch(f"{NODES}/{name}/status", {"status": status})

    async def put_service(self, name: str, **spec: object) -> None:
        await self.put(f"{SERVICES}/{name}", spec={"ports": [{"name": "http", "port": 80}]} | spec)

    async def put_policy(self, name: str) -> None:
        document = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
        await apply(self.connection, {**document, "spec": {"podSelector": {}}}, f"{POLICIES}/{name}")

    async def taints(self) -> list[dict]:
        return (await self.get(NODE))["spec"].get("taints", [])

    async def annotations(self) -> dict[str, str]:
        return (await self.get(NODE))["metadata"].get("annotations", {})

    async def events(self, kind: str, name: str = "") -> list[dict]:
        """The agents'; of all objects of the kind, unless one is named. (The API server itself writes Events, too.)"""
        found = (await self.get(EVENTS))["items"]
        ours = [event for event in found if event["reportingController"] == CONTROLLER]
        regarded = ((event, event["regarding"]) for event in ours)
        return [event for event, what in regarded if what["kind"] == kind and name in {"", what["name"]}]

    async def allow(self, allowed: list[dict[str, object]]) -> None:
        """The agents may do this, and no more."""
        api = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": "windlass"}}
        path = f"/apis/{RBAC}/v1"
        await apply(self.connection, {**api, "kind": "ClusterRole", "rules": allowed}, f"{path}/clusterroles/windlass")
        binding = {
            **api,
            "kind": "ClusterRoleBinding",
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": AGENT}],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "windlass"},
        }
        await apply(self.connection, binding, f"{path}/clusterrolebindings/windlass")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control_plane(tmp_path_factory) -> AsyncIterator[ControlPlane]:
    """One for all tests: it takes a while to start."""
    async with running_control_plane(tmp_path_factory.mktemp("cp")) as plane:
        yield plane


@pytest_asyncio.fixture(loop_scope="module")
async def town(control_plane) -> AsyncIterator[Town]:
    """An empty cluster; the agents have the role of the product."""
    async with control_plane.connection() as connection:
        town = Town(control_plane, connection)
        await town.allow(rules())
        yield town
        for path in (NODES, SLICES, POLICIES, EVENTS):
            await town.delete(path)
        for one in (await town.get(SERVICES))["items"]:
            if one["metadata"]["name"] != "kubernetes":
                await town.delete(f"{SERVICES}/{one['metadata']['name']}")


@pytest.fixture
def hasty(monkeypatch) -> None:
    """Shorten the delays of production."""
    monkeypatch.setattr(cluster_writers, "GRACE", 0.5)
    monkeypatch.setattr(pending_events, "SETTLED", 0.2)


# The agent --------------------------------------------------------------------------------------------------------


@dataclass
class Inhabitant:
    agent: Agent
    fed: FedAgent
    requests: int = 0  # of the ClusterWriter

    @property
    def reported(self) -> str:
        return f"{self.agent.status.waiting_for} {self.agent.view.problems}"

    async def is_ready(self) -> None:
        assert await self.agent.status.wait_until(lambda: self.agent.status.ready, PATIENCE), self.reported

    async def says(self, *words: str, area: str = "") -> str:
        def said() -> str:
            return " | ".join(self.agent.view.problems.get(area, ()) if area else [self.reported])

        assert await self.agent.status.wait_until(lambda: all(word in said() for word in words), PATIENCE), (
            self.reported
        )
        return said()

    async def is_content(self) -> None:
        assert await self.agent.status.wait_until(lambda: not self.agent.view.problems, PATIENCE), self.reported


@asynccontextmanager
async def living(fed: FedAgent, plane: ControlPlane, access: Reader | None = None) -> AsyncIterator[Inhabitant]:
    """An agent on this Node that follows the real server, and its ClusterWriter."""
    access = access or (lambda: plane.access(AGENT))
    agent = Agent(fed._config, fed.host, APIServer(access, "node-1", plane.socket_factory))
    one = Inhabitant(agent, fed)

    def counted() -> Access:
        one.requests += 1
        return access()

    writer = ClusterWriter(counted, "node-1", plane.socket_factory)
    async with open_database(str(fed._config.ovsdb_socket), patience=5) as database:
        tasks = [asyncio.create_task(agent.serve(database)), asyncio.create_task(writer.run(agent.view))]
        try:
            yield one
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


@asynccontextmanager
async def inhabitant(plane: ControlPlane, access: Reader | None = None, **options: object) -> AsyncIterator[Inhabitant]:
    async with fed_node(**options) as fed, living(fed, plane, access) as one:
        yield one


async def until(found: Callable[[], Awaitable[object]], *, is_so: Callable[[object], object] = bool) -> object:
    async with asyncio.timeout(PATIENCE):
        while not is_so(answer := await found()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the server gives no signal
    return answer


# The Node ---------------------------------------------------------------------------------------------------------


async def test_a_node_whose_network_is_ready(town, monkeypatch):
    """It gets annotations and loses the taint; other fields stay; a restart of the agent writes nothing."""
    monkeypatch.setattr(cluster_writers, "LOOK_AGAIN", 0.1)
    await town.put_node()
    await town.patch(
        NODE, {"metadata": {"annotations": {"example.com/a": "b"}}, "spec": {"taints": [OTHER, NOT_READY]}}
    )
    async with fed_node() as fed:
        async with living(fed, town.plane) as one:
            await one.is_ready()
            await until(town.annotations, is_so=lambda found: UPLINK_MAC in found)
            mac = one.agent.view.state.node.uplink_mac
        found = await town.get(NODE)
        assert found["metadata"]["annotations"] == {
            "example.com/a": "b",
            UPLINK_MAC: mac,
            GATEWAY_ADDRESSES: "172.16.1.1",
        }
        assert found["spec"]["taints"] == [OTHER]
        async with living(fed, town.plane) as one:
            await one.is_ready()
            await until(lambda: _requests(one), is_so=lambda number: number >= 3)
            # A new Node object gets all of it again: the first write of this agent.
            assert (await town.get(NODE))["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
            await town.delete(NODE)
            await town.put_node()
            await until(town.annotations, is_so=lambda found: found.get(GATEWAY_ADDRESSES) == "172.16.1.1")
            await one.is_content()


async def _requests(one: Inhabitant) -> int:
    return one.requests


async def test_nothing_is_written_that_the_node_has(town):
    await town.put_node()
    async with town.plane.connection(AGENT) as connection:
        for is_ready in (False, True):
            await mark_node(connection, "node-1", {UPLINK_MAC: "0a:00:00:00:00:01"}, is_ready=is_ready)
            before = await town.get(NODE)
            await mark_node(connection, "node-1", {UPLINK_MAC: "0a:00:00:00:00:01"}, is_ready=is_ready)
            assert await town.get(NODE) == before
            assert (NOT_READY in before["spec"].get("taints", [])) is not is_ready
        await mark_node(connection, "node-9", {UPLINK_MAC: "0a:00:00:00:00:01"}, is_ready=True)  # there is none


async def test_taints_of_others_survive_concurrent_writes(town):
    await town.put_node()
    mine = [{**OTHER, "key": f"example.com/{number}"} for number in range(20)]
    await town.patch(NODE, {"spec": {"taints": [OTHER]}})

    async def toggle() -> None:
        async with town.plane.connection(AGENT) as connection:
            for number in range(30):
                try:
                    await mark_node(connection, "node-1", {}, is_ready=bool(number % 2))
                except RequestRefused as error:  # others were faster each time; the agent tries again later
                    assert error.code == 409  # noqa: PT017

    async def add() -> None:
        for taint in mine:
            await town.patch(NODE, [{"op": "add", "path": "/spec/taints/0", "value": taint}], "json-patch")

    await asyncio.gather(toggle(), add())
    found = await town.taints()
    assert {taint["key"] for taint in found} - {NOT_READY["key"]} == {taint["key"] for taint in [OTHER, *mine]}


@pytest.mark.usefixtures("hasty")
async def test_a_node_that_loses_its_network(town):
    await town.put_node()
    async with inhabitant(town.plane) as one:
        await one.is_ready()
        await until(town.annotations, is_so=lambda found: UPLINK_MAC in found)
        await one.fed.switch._switch.kill()
        await until(town.taints, is_so=lambda found: NOT_READY in found)
        assert UPLINK_MAC in await town.annotations()
        await one.fed.switch.restart()
        await one.is_ready()
        await until(town.taints, is_so=lambda found: NOT_READY not in found)


@pytest.mark.usefixtures("hasty")
async def test_a_node_without_pod_cidr(town):
    await town.put_node(cidr="")
    async with inhabitant(town.plane) as one:
        reported = await one.says("spec.podCIDRs is empty", area="node")
        assert reported == one.agent.status.waiting_for
        (event,) = await until(lambda: town.events("Node", "node-1"))
        assert reported == f"Node node-1: {event['note']}"
        uid = (await town.get(NODE))["metadata"]["uid"]
        assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": uid}
        assert (event["type"], event["reason"]) == ("Warning", "NotUsable")
        await until(town.taints, is_so=lambda found: NOT_READY in found)
        await town.put_node()
        await one.is_ready()
        await until(town.taints, is_so=lambda found: NOT_READY not in found)


@pytest.mark.usefixtures("hasty")
async def test_a_node_with_the_pod_cidr_of_another(town):
    await town.put_node()
    await town.put_node("node-2", address="10.176.25.12")
    async with inhabitant(town.plane) as one:
        await one.is_ready()
        sentence = "its PodCIDR 172.16.1.0/24 overlaps that of Node node-2"
        await one.says(f"Node node-1: {sentence}", "Node node-2: its PodCIDR", area="cluster")
        (event,) = await until(lambda: town.events("Node", "node-1"))
        assert event["note"].startswith(sentence)
        assert await town.events("Node", "node-2") == [], "it speaks for itself"


# Objects that it had to refuse ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty")
async def test_objects_that_the_api_accepts_and_the_agent_cannot_serve(town):
    await town.put_node()
    await town.put_service("first", externalIPs=["192.0.2.1"])
    async with inhabitant(town.plane) as one:
        await one.is_ready()
        await town.put_service("second", externalIPs=["192.0.2.1", "172.16.1.77"])
        await town.put(
            f"{SLICES}/odd",
            metadata={"labels": {"kubernetes.io/service-name": "first"}},
            addressType="IPv4",
            endpoints=[{"addresses": ["240.0.0.1"]}],
            ports=[{"name": "http", "port": 8080}],
        )
        reported = await one.says(
            "Service default/second: 192.0.2.1:80/TCP belongs to Service default/first",
            "spec.externalIPs[1]: 172.16.1.77 is inside 172.16.1.0/24, the PodCIDR of this Node",
            "EndpointSlice default/odd: endpoints[0].addresses: 240.0.0.1 is a reserved address",
            area="services",
        )
        events = await until(lambda: town.events("Service", "second"), is_so=lambda found: len(found) == 2)
        events += await until(lambda: town.events("EndpointSlice", "odd"))
        found = await town.get(f"{SLICES}/odd")
        assert events[2]["regarding"] == {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "namespace": "default",
            "name": "odd",
            "uid": found["metadata"]["uid"],
        }
        assert all(event["note"] in reported for event in events)
        assert {"default/first", "default/second"} <= set(one.agent.view.state.services), "the rest keeps working"
        # Another agent says the same: that is one Event. And kubectl shows it.
        regarding = Reference(**{key: value for key, value in events[2]["regarding"].items() if key != "apiVersion"})
        async with town.plane.connection(AGENT) as connection:
            await write_event(connection, Problem("", events[2]["note"], regarding), "node-2")
        assert len(await town.events("EndpointSlice", "odd")) == 1
        # Mended, it is over.
        await town.delete(f"{SLICES}/odd")
        await town.delete(f"{SERVICES}/second")
        await one.is_content()


@pytest.mark.usefixtures("hasty")
async def test_many_malformed_objects_do_not_hammer_the_server(town):
    await town.put_node()
    for number in range(40):
        await town.put_service(f"bad-{number}", externalIPs=["172.16.1.77"])
    async with inhabitant(town.plane) as one:
        await one.is_ready()
        began, asked = time.monotonic(), one.requests
        await until(lambda: town.events("Service"), is_so=lambda found: len(found) == 40)
        assert 40 / (time.monotonic() - began) < 2 * cluster_writers.EVENTS_PER_SECOND
        assert one.requests - asked <= 42, "an attempt for each, and a look at the Node"


async def test_no_event_is_written_into_a_namespace_that_is_being_deleted(town):
    async with town.plane.connection(AGENT) as connection:
        await write_event(connection, Problem("", "it is wrong", Reference("Service", "web", "nowhere", "1")), "node-1")
        namespaces_path = "/api/v1/namespaces"
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "going"}}
        await apply(town.connection, made, f"{namespaces_path}/going")
        await town.delete(f"{namespaces_path}/going")  # nobody completes it: there are no controllers
        await write_event(connection, Problem("", "it is wrong", Reference("Service", "web", "going", "1")), "node-1")


async def test_long_texts_of_events_are_shortened(town):
    problem = Problem("", "é" * 2000, Reference("Service", "web", "default", "1"))
    async with town.plane.connection(AGENT) as connection:
        await write_event(connection, problem, "node-" * 50)
    (event,) = await town.events("Service", "web")
    assert event["note"].endswith("é...")
    assert len(event["reportingInstance"]) == 128


# Policies, which it does not enforce ------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty")
async def test_a_network_policy_is_reported_and_has_one_event(town):
    await town.put_node()
    async with inhabitant(town.plane) as one, inhabitant(town.plane) as other:
        for agent in (one, other):
            await agent.is_ready()
            await agent.is_content()
        await town.put_policy("deny")
        for agent in (one, other):
            await agent.says("1 policy is not enforced: NetworkPolicy default/deny;", area="policies")
        (event,) = await until(lambda: town.events("NetworkPolicy", "deny"))
        assert (event["type"], event["reason"], event["action"]) == ("Warning", "NotEnforced", "Ignore")
        found = await town.get(f"{POLICIES}/deny")
        assert event["regarding"] == {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "namespace": "default",
            "name": "deny",
            "uid": found["metadata"]["uid"],
        }
        await town.put_policy("other")
        await until(lambda: town.events("NetworkPolicy", "other"))
        assert len(await town.events("NetworkPolicy", "deny")) == 1
        await town.delete(POLICIES)
        for agent in (one, other):
            await agent.is_content()


async def test_a_kind_of_policy_that_is_installed_later(town, monkeypatch):
    monkeypatch.setattr(feeds, "_ASK_AGAIN", 0.2)
    await town.put_node()
    async with inhabitant(town.plane) as one:
        await one.is_ready()
        await one.is_content()
        await apply(town.connection, CLUSTER_POLICIES, f"{CRDS}/{CLUSTER_POLICIES['metadata']['name']}")
        made = {"apiVersion": f"{POLICY_GROUP}/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "deny"}}
        path = f"/apis/{POLICY_GROUP}/v1alpha2/clusternetworkpolicies/deny"

        async def is_made() -> bool:
            """The server takes a moment to know the new kind."""
            try:
                await apply(town.connection, made, path)
            except RequestRefused:
                return False
            return True

        await until(is_made)
        await one.says("1 policy is not enforced: ClusterNetworkPolicy deny;", area="policies")
        await town.delete(f"{CRDS}/{CLUSTER_POLICIES['metadata']['name']}")
        await one.is_content()


async def test_a_role_without_policies_does_not_stop_the_network(town):
    allowed = [{**rule, "resources": [r for r in rule["resources"] if "policies" not in r]} for rule in rules()]
    await town.allow([rule for rule in allowed if rule["resources"]])
    await town.put_node()
    async with inhabitant(town.plane) as one:
        await one.is_ready()
        await one.says('cannot watch resource "networkpolicies"', area="cluster source")


# What it may not, and what it cannot ------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty")
async def test_forbidden_writes(town):
    await town.allow([rule for rule in rules() if rule["verbs"] == ["list", "watch"]])
    await town.put_node()
    await town.put_service("web", externalIPs=["172.16.1.77"])
    async with inhabitant(town.plane) as one:
        await one.is_ready()
        reported = await one.says(
            "annotations and taint of this Node cannot be written: https://10.99.0.1:6443 forbids it (403)",
            'User "windlass" cannot patch resource "nodes"',
            "Events cannot be written: https://10.99.0.1:6443 forbids it (403)",
            'User "windlass" cannot create resource "events"',
            area="cluster writes",
        )
        assert "the ClusterRole of Windlass must allow it" in reported
        assert one.agent.status.ready
        await town.allow(rules())
        await until(lambda: town.events("Service", "web"))
        await until(town.annotations, is_so=lambda found: UPLINK_MAC in found)
        assert await one.agent.status.wait_until(lambda: "cluster writes" not in one.agent.view.problems, PATIENCE)


async def test_more_than_the_role_allows(town):
    await town.put_node()
    async with town.plane.connection(AGENT) as connection:
        for method, path in (
            ("GET", NODE),
            ("DELETE", NODE),
            ("PATCH", f"{NODE}/status"),
            ("DELETE", EVENTS),
            ("GET", EVENTS),
            ("POST", "/api/v1/namespaces/default/events"),
            ("GET", "/api/v1/secrets"),
        ):
            with pytest.raises(RequestRefused, match=r"forbids it \(403\)"):
                await connection.request(method, path, body=b"{}", content_type="application/merge-patch+json")


def _with(plane: ControlPlane, **changes: str) -> Reader:
    access = msgspec.structs.replace(plane.access(AGENT), **changes)
    return lambda: access


async def test_a_server_that_is_away_or_no_api_server(town):
    await town.put_node()
    for server, sentence in (
        ("https://10.99.0.1:6444", "Connection refused; does the API server run there?"),
        ("https://127.0.0.1:2379", "Connection reset by peer; does the API server run there?"),  # etcd
        ("http://127.0.0.1:2379", "Not Found (404)"),
    ):
        async with inhabitant(town.plane, _with(town.plane, server=server)) as one:
            await one.says(server, sentence, "waiting for it", area="cluster source")
            assert server in one.agent.status.waiting_for


async def test_a_refused_token(town):
    await town.put_node()
    held = {"token": "stolen"}

    def access() -> Access:
        return msgspec.structs.replace(town.plane.access(AGENT), **held)

    async with inhabitant(town.plane, access) as one:
        await one.says("does not accept the token of user windlass", "(401); is it expired", area="cluster source")
        assert "(401)" in one.agent.status.waiting_for
        held["token"] = AGENT  # it is replaced on disk
        await one.is_ready()
        await one.is_content()
        await until(town.annotations, is_so=lambda found: UPLINK_MAC in found)


async def test_an_expired_client_certificate(town, tmp_path):
    await town.put_node()
    authority = Certificate(town.plane.folder / "ca.crt", town.plane.folder / "ca.key")
    made = await asyncio.to_thread(
        lambda: certificates.issue(authority, tmp_path, "agent", subject=f"/CN={AGENT}", days=-1)
    )
    certificate, key = (file.read_text() for file in made)
    access = _with(town.plane, token="", certificate=certificate, key=key, identity="the client certificate of x")
    async with inhabitant(town.plane, access) as one:
        await one.says("does not accept the client certificate of x (401)", "is it expired", area="cluster source")


async def test_a_server_with_an_expired_certificate(town):
    await town.put_node()
    folder = town.plane.folder
    kept = {file: file.read_bytes() for file in (folder / "server.crt", folder / "server.key")}
    authority = Certificate(folder / "ca.crt", folder / "ca.key")
    try:
        await asyncio.to_thread(
            lambda: certificates.issue(authority, folder, "server", alternatives=[f"IP:{ADDRESS}"], days=-1)
        )
        await until(lambda: _answer(town.plane), is_so=lambda answer: "certificate has expired" in str(answer))
        async with inhabitant(town.plane) as one:
            await one.says(
                "https://10.99.0.1:6443: its certificate is not accepted: certificate has expired",
                "renew it, or correct the clock of this machine",
                area="cluster source",
            )
            for file, content in kept.items():
                file.write_bytes(content)
            await one.is_ready()
            await one.is_content()
    finally:
        for file, content in kept.items():
            file.write_bytes(content)
        await until(lambda: _answer(town.plane), is_so=lambda answer: answer == "ok")


async def _answer(plane: ControlPlane) -> str:
    try:
        async with plane.connection() as connection:
            return (await connection.request("GET", "/readyz")).decode()
    except Unreachable as error:
        return str(error)


async def test_a_server_that_goes_away_and_comes_back(town):
    """Nothing changes on the Node; pending writes are made when the server is back."""
    await town.put_node()
    async with inhabitant(town.plane) as one:
        await one.is_ready()
        await until(town.annotations, is_so=lambda found: UPLINK_MAC in found)
        await town.plane.stop_server()
        await one.says("does the API server run there?", "read before stays in use", area="cluster source")
        assert one.agent.status.ready
        await town.plane.start_server()
        await one.is_content()
        assert NOT_READY not in await town.taints()
