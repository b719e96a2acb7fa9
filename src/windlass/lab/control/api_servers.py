"""Publishes the objects of a scenario on a real API server; the agents watch it, its controller makes the slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from ipaddress import ip_interface

import msgspec

from windlass.cluster.clusters import Cluster
from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused, Unreachable
from windlass.cluster.kubernetes.roles import rules
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.objects import EndpointConditions, EndpointSlice
from windlass.cluster.sources import ClusterChange, SourceAway
from windlass.lab.control import api_objects, endpoint_slices
from windlass.lab.control.api_objects import Published
from windlass.lab.control.control_planes import ADMINISTRATOR, AGENT, ControlPlane, apply, url_at
from windlass.lab.control.definitions import CLUSTER_NETWORK_POLICIES, define
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.desired_states import DesiredState, PodAddresses
from windlass.lab.scenarios.objects import LabNode
from windlass.lab.scenarios.segments import UPLINK, Machine, Nic
from windlass.model.families import Family
from windlass.nodes.policies import FollowedPolicies
from windlass.nodes.states import run_to_end

SECONDS_FOR_SLICES = seconds(30.0)
CONCURRENT_WRITES = 20
# On its own network segment; no scenario uses these addresses.
ADDRESSES = (ip_interface("100.64.0.10/24"), ip_interface("fd00:100:64::10/64"))
_CONTROLLER = "endpointslice-controller.k8s.io"
_GROUP = "rbac.authorization.k8s.io"
_GONE, _CANNOT_BE_CHANGED = 404, 422

# Service, address, ready, serving, terminating, Node
_Endpoint = tuple[str, str, bool, bool, bool, str]


class RealAPIServer:
    """A Publisher."""

    machines = (Machine("control", "plane", (Nic(UPLINK, ADDRESSES),)),)

    def __init__(self, lab: Lab) -> None:
        (machine,) = self.machines
        namespace = lab.namespace(machine.kind, machine.name)
        self._plane = ControlPlane(namespace, lab.folder / "control-plane", [one.ip for one in ADDRESSES])
        self._connection: APIConnection | None = None
        self._published: dict[str, Published] = {}
        self._desired: tuple[DesiredState, PodAddresses] = DesiredState(), {}
        self._is_away = False
        self._is_settled = True  # whether the controller has processed what was published
        self._settling = asyncio.Lock()

    async def start(self) -> None:
        await self._plane.start()
        await self._plane.start_controllers()
        self._connection = await self._plane.connection().__aenter__()
        await _allow(self._connection)
        await define(self._connection, CLUSTER_NETWORK_POLICIES)

    def options(self, node: LabNode) -> Mapping[str, object]:
        """The server's address of the Node's family: the kubeconfig has only one address."""
        address = ADDRESSES[0] if Family.IPV4 in node.addresses else ADDRESSES[1]
        return {"kubeconfig": str(self._plane.kubeconfig(AGENT)), "apiServer": url_at(address.ip)}

    async def publish(self, desired: DesiredState, addresses: PodAddresses) -> None:
        by_kind = api_objects.published(desired, addresses)
        wanted = {one.path: one for listed in by_kind.values() for one in listed}
        self._desired, self._is_settled = (desired, dict(addresses)), False
        for path in [path for path in self._published if path not in wanted]:
            await self._delete(path)
            del self._published[path]
        for listed in by_kind.values():
            new = [one for one in listed if self._published.get(one.path) != one]
            for first in range(0, len(new), CONCURRENT_WRITES):
                await asyncio.gather(*map(self._put, new[first : first + CONCURRENT_WRITES]))
        self._published = wanted

    async def revision(self, node: str) -> str | None:
        """The revision after everything was published and processed by the controller."""
        if self._is_away:
            return None
        async with self._settling:
            if not self._is_settled:
                await self._settle(node)
                self._is_settled = True
        return (await self._cluster(node)).revision

    async def act(self, verb: str) -> None:
        self._is_away = verb == "stopAPIServer"
        await (self._plane.stop_server() if self._is_away else self._plane.start_server())

    async def end(self) -> None:
        if self._connection:
            await self._connection.__aexit__(None, None, None)
        await self._plane.end()

    # Details ------------------------------------------------------------------------------------------------------

    async def _settle(self, node: str) -> None:
        """Waits until the controller's slices equal those that the lab itself would make."""
        expected, found = self._expected(), set[_Endpoint]()
        try:
            async with asyncio.timeout(SECONDS_FOR_SLICES), aclosing(self._source(node).changes()) as changes:
                async for change in changes:
                    if (found := _endpoints(change.cluster)) == expected:
                        return
        except SourceAway as error:
            raise LabError(str(error)) from None
        except TimeoutError:
            some = "; ".join(map(str, sorted(expected ^ found)[:5]))
            raise LabError(f"the EndpointSlices of the controller differ from the expected ones: {some}") from None

    async def _put(self, one: Published) -> None:
        try:
            try:
                await self._apply(one, is_new=one.path not in self._published)
            except RequestRefused as error:
                if error.code != _CANNOT_BE_CHANGED or one.path not in self._published:
                    raise
                # An immutable field changed: delete and create the object, like kubectl replace --force.
                await self._delete(one.path)
                await self._apply(one, is_new=True)
            if one.status:
                body = msgspec.json.encode({"status": one.status})
                path = f"{one.path}/status"
                await self._open.request("PATCH", path, body=body, content_type="application/merge-patch+json")
            if one.is_terminating:
                await self._open.request("DELETE", one.path, {"gracePeriodSeconds": "3600"})
        except (RequestRefused, Unreachable) as error:
            raise LabError(f"{one.path}: {error}") from None

    async def _apply(self, one: Published, *, is_new: bool) -> None:
        if is_new and one.created_as:
            await apply(self._open, one.created_as, one.path)
        await apply(self._open, one.document, one.path)

    async def _delete(self, path: str) -> None:
        try:
            await self._open.request("DELETE", path, {"gracePeriodSeconds": "0"})
        except Unreachable as error:
            raise LabError(f"{path}: {error}") from None
        except RequestRefused as error:
            if error.code != _GONE:
                raise LabError(f"{path}: {error}") from None

    @property
    def _open(self) -> APIConnection:
        if self._connection is None:
            raise LabError("the API server is not started")
        return self._connection

    def _source(self, node: str) -> APIServer:
        return APIServer(lambda: self._plane.access(ADMINISTRATOR), node, self._plane.socket_factory)

    async def _cluster(self, node: str) -> Cluster:
        """Reads the whole cluster again, so that it contains all earlier writes, and the Pods that policies select."""
        source = self._source(node)
        try:
            async with aclosing(source.changes()) as changes:
                read = [(await anext(changes)).cluster]
                policies = FollowedPolicies(node)
                run_to_end(policies.following(read[0]))
                reading = asyncio.create_task(_read_on(changes, read))
                await source.find_pods(policies.namespaces)
                reading.cancel()
                await asyncio.wait((reading,))
                return read[-1]
        except SourceAway as error:
            raise LabError(str(error)) from None

    def _expected(self) -> set[_Endpoint]:
        desired, addresses = self._desired
        found: set[_Endpoint] = set()
        for one in endpoint_slices.slices(desired, addresses):
            decoded = msgspec.convert(one, EndpointSlice)
            service = desired.services.get(_service_of(decoded))
            # The agents do not watch headless Services, or those of another proxy.
            if service and service.is_served:
                found |= _endpoints_of(decoded)
        return found


async def _read_on(changes: AsyncIterator[ClusterChange], read: list[Cluster]) -> None:
    async for change in changes:
        read.append(change.cluster)  # noqa: PERF401 - the caller looks at it in between


def _endpoints(cluster: Cluster) -> set[_Endpoint]:
    """The endpoints in the slices of the controller, without slices that the scenario wrote."""
    found: set[_Endpoint] = set()
    for one in cluster.slices.values():
        if (one.metadata.labels or {}).get("endpointslice.kubernetes.io/managed-by") == _CONTROLLER:
            found |= _endpoints_of(one)
    return found


def _endpoints_of(one: EndpointSlice) -> set[_Endpoint]:
    found: set[_Endpoint] = set()
    for endpoint in one.endpoints or ():
        c = endpoint.conditions or EndpointConditions()
        state = (bool(c.ready), bool(c.serving), bool(c.terminating))
        found.add((_service_of(one), (endpoint.addresses or ("",))[0], *state, endpoint.node_name or ""))
    return found


def _service_of(one: EndpointSlice) -> str:
    return f"{one.metadata.namespace}/{(one.metadata.labels or {}).get(endpoint_slices.SERVICE_LABEL)}"


async def _allow(connection: APIConnection) -> None:
    """Gives the agents exactly the permissions of the product's ClusterRole."""
    named: dict[str, object] = {"apiVersion": f"{_GROUP}/v1", "metadata": {"name": AGENT}}
    role = named | {"kind": "ClusterRole", "rules": rules()}
    binding = named | {
        "kind": "ClusterRoleBinding",
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": AGENT}],
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": AGENT},
    }
    await apply(connection, role, f"/apis/{_GROUP}/v1/clusterroles/{AGENT}")
    await apply(connection, binding, f"/apis/{_GROUP}/v1/clusterrolebindings/{AGENT}")
