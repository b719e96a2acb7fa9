"""The source of the cluster against a real kube-apiserver with etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress

import msgspec
import pytest
import pytest_asyncio
from api_servers import Listener

from control_planes import needs, running_control_plane
from windlass.cluster.changes import EVERYTHING, ChangeSet
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused
from windlass.cluster.kubernetes.roles import rules
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.objects import EndpointSlice, Service
from windlass.cluster.sources import ClusterChange, SourceAway
from windlass.lab.control.control_planes import ADMINISTRATOR, AGENT, SERVICE_NETWORKS, ControlPlane, apply

pytestmark = needs("etcd", "kube-apiserver", "kube-controller-manager")
SERVICES, SLICES = "/api/v1/namespaces/default/services", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control_plane(tmp_path_factory) -> AsyncIterator[ControlPlane]:
    """One server for all tests, because it is slow to start."""
    async with running_control_plane(tmp_path_factory.mktemp("cp")) as plane:
        yield plane


def source(plane: ControlPlane, user: str = ADMINISTRATOR) -> APIServer:
    return APIServer(lambda: plane.access(user), "node-1", plane.socket_factory)


async def until(listener: Listener, condition: Callable[[ClusterChange], object]) -> ClusterChange:
    change = await listener.hear()
    while not condition(change):
        change = await listener.hear()
    return change


async def put(connection: APIConnection, path: str, document: dict[str, object]) -> None:
    name = document["metadata"]["name"]  # type: ignore[index]
    await apply(connection, document, f"{path}/{name}")


def node(name: str, cidr: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"podCIDRs": [cidr]}}


def service(name: str, **spec: object) -> dict[str, object]:
    ports = [{"name": "http", "port": 80}]
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports} | spec}


def pod(name: str, node_name: str, app: str = "web") -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
        "spec": {"nodeName": node_name, "containers": [{"name": "c", "image": "none"}]},
    }


def endpoint_slice(name: str, *addresses: str) -> dict[str, object]:
    labels = {"kubernetes.io/service-name": "web"}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address]} for address in addresses],
        "ports": [{"name": "http", "port": 8080}],
    }


async def test_changes_heartbeats_and_restarts_of_a_real_server(control_plane):
    async with control_plane.connection() as connection, aclosing(source(control_plane).changes()) as changes:
        listener = Listener(changes)
        first = await listener.hear()
        assert first.changes == EVERYTHING
        assert "default" in first.cluster.namespaces
        if not first.cluster.services:  # a server that has just started creates its own Service with a delay
            first = await until(listener, lambda change: change.cluster.services)
        assert set(first.cluster.services) == {"default/kubernetes"}
        (cidr,) = first.cluster.service_cidrs.values()
        assert cidr.spec.cidrs == SERVICE_NETWORKS

        # Objects come and change; of Pods only those of this Node are reported.
        await put(connection, "/api/v1/nodes", node("node-1", "172.16.1.0/24"))
        await put(connection, "/api/v1/nodes", node("node-2", "172.16.2.0/24"))
        change = await until(listener, lambda change: len(change.cluster.nodes) == 2)
        assert change.cluster.nodes["node-1"].pod_cidrs == ("172.16.1.0/24",)
        await put(connection, "/api/v1/namespaces/default/pods", pod("elsewhere", "node-2"))
        await put(connection, "/api/v1/namespaces/default/pods", pod("here", "node-1"))
        change = await until(listener, lambda change: change.cluster.pods)
        assert set(change.cluster.pods) == {"default/here"}
        await put(connection, SERVICES, service("web", clusterIP="10.96.0.10"))
        change = await until(listener, lambda change: "default/web" in change.cluster.services)
        assert change.changes == ChangeSet.of({Service: {"default/web"}})
        assert change.cluster.services["default/web"].spec.cluster_ips == ("10.96.0.10",)
        await put(connection, SLICES, endpoint_slice("web-1", "172.16.1.5"))
        before = await until(listener, lambda change: change.cluster.slices.get("default/web-1"))

        # A heartbeat is not reported: the next change is that of the slice after it.
        beat = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m"}]}}
        body = msgspec.json.encode(beat)
        await connection.request(
            "PATCH", "/api/v1/nodes/node-1/status", body=body, content_type="application/merge-patch+json"
        )
        await put(connection, SLICES, endpoint_slice("web-1", "172.16.1.6"))
        change = await listener.hear()
        assert change.changes == ChangeSet.of({EndpointSlice: {"default/web-1"}})
        assert change.cluster.nodes is before.cluster.nodes

        # While the server is away only the problems change; when it is back, the difference is reported.
        await control_plane.stop_server()
        away = await until(listener, lambda change: change.cluster.problems)
        assert away.cluster.slices is change.cluster.slices
        assert "does the API server run there?" in str(away.cluster.problems[0])
        await control_plane.start_server()
        await put(connection, SLICES, endpoint_slice("web-1", "172.16.1.7"))
        back = await until(
            listener,
            lambda change: not change.cluster.problems and "172.16.1.7" in str(change.cluster.slices["default/web-1"]),
        )
        assert back.cluster.nodes is before.cluster.nodes
        assert back.cluster.services["default/web"] is change.cluster.services["default/web"]
        assert set(back.cluster.pods) == {"default/here"}

        # A new reader of the same state has the same revision.
        async with aclosing(source(control_plane).changes()) as later:
            assert (await Listener(later).hear()).cluster.revision == back.cluster.revision


async def test_the_rules_of_the_role_are_enough_and_allow_no_more(control_plane):
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": AGENT}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "windlass"}
    api = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "windlass"}}
    path = "/apis/rbac.authorization.k8s.io/v1"
    following = source(control_plane, AGENT)
    with pytest.raises(SourceAway, match=r'forbids it \(403\): .*User "windlass" cannot (list|watch) resource'):
        await Listener(following.changes()).hear()
    async with control_plane.connection() as connection:
        await put(connection, f"{path}/clusterroles", {**api, "kind": "ClusterRole", "rules": rules()})
        binding = {**api, "kind": "ClusterRoleBinding", "subjects": [user], "roleRef": role}
        await put(connection, f"{path}/clusterrolebindings", binding)
    while True:
        with suppress(SourceAway):  # a new role takes effect with a delay
            async with aclosing(following.changes()) as changes:
                await until(Listener(changes), lambda change: change.cluster.services)
                break
    async with control_plane.connection(AGENT) as connection:
        with pytest.raises(RequestRefused, match="forbids it"):
            await connection.request("GET", "/api/v1/secrets")


async def test_slices_of_the_real_controller(control_plane):
    await control_plane.start_controllers()
    async with control_plane.connection() as connection, aclosing(source(control_plane).changes()) as changes:
        listener = Listener(changes)
        await listener.hear()
        await put(connection, "/api/v1/nodes", node("node-1", "172.16.1.0/24"))
        await put(connection, SERVICES, service("shop", selector={"app": "shop"}))
        await put(connection, "/api/v1/namespaces/default/pods", pod("shop-0", "node-1", "shop"))
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "podIP": "172.16.1.9", "podIPs": [{"ip": "172.16.1.9"}], "conditions": [ready]}
        await connection.request(
            "PATCH",
            "/api/v1/namespaces/default/pods/shop-0/status",
            body=msgspec.json.encode({"status": status}),
            content_type="application/strategic-merge-patch+json",
        )
        change = await until(listener, lambda change: "172.16.1.9" in str(dict(change.cluster.slices)))
    (found,) = [
        one for one in change.cluster.slices.values() if one.metadata.labels["kubernetes.io/service-name"] == "shop"
    ]
    assert found.endpoints[0].conditions.ready is True
    assert found.endpoints[0].node_name == "node-1"


async def test_a_change_arrives_alone_by_the_same_watch(control_plane):
    """With a thousand slices present, none is listed again."""
    followed = source(control_plane)
    async with control_plane.connection() as connection, aclosing(followed.changes()) as changes:
        for first in range(0, 1000, 50):
            await asyncio.gather(
                *(
                    put(
                        connection,
                        SLICES,
                        endpoint_slice(f"many-{number}", f"172.16.{number // 250}.{number % 250 + 1}"),
                    )
                    for number in range(first, first + 50)
                )
            )
        listener = Listener(changes)
        await listener.hear()
        for number in range(50):
            writing = asyncio.create_task(put(connection, SLICES, endpoint_slice("many-7", f"172.17.0.{number + 1}")))
            change = await listener.hear()
            await writing
            assert change.changes == ChangeSet.of({EndpointSlice: {"default/many-7"}})
        (restarts,) = [sum(one.restarts.values()) for one in followed.watches if one.resource == "endpointslices"]
        assert restarts == 0
