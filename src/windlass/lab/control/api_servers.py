"""The cluster's objects on a real API server: written there, watched by the agents, slices by the real controller."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from ipaddress import ip_interface
from typing import TYPE_CHECKING

import msgspec

from windlass.cluster.kubernetes.connections import APIConnection, RequestRefused, Unreachable
from windlass.cluster.kubernetes.roles import rules
from windlass.cluster.kubernetes.servers import APIServer
from windlass.cluster.objects import PROXY_NAME_LABEL
from windlass.cluster.sources import SourceAway
from windlass.lab.control import api_objects, endpoint_slices
from windlass.lab.control.control_planes import ADMINISTRATOR, AGENT, ControlPlane, apply, url_at
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.desired_states import DesiredState
from windlass.lab.scenarios.segments import UPLINK, Machine, Nic
from windlass.model.families import Family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from windlass.cluster.clusters import Cluster
    from windlass.lab.control.api_objects import Published
    from windlass.lab.sandbox.labs import Lab
    from windlass.lab.scenarios.desired_states import Addresses
    from windlass.lab.scenarios.objects import LabNode

SECONDS_FOR_SLICES = seconds(30.0)
SIDE_BY_SIDE = 20  # writes
# On a wire of its own, which the router joins to the others; no scenario has these addresses.
ADDRESSES = (ip_interface("100.64.0.10/24"), ip_interface("fd00:100:64::10/64"))
_GROUP = "rbac.authorization.k8s.io"
_GONE, _CANNOT_BE_CHANGED = 404, 422

# Of an endpoint: its Service, address, whether it is ready, serving, terminating, and its Node.
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
        self._desired: tuple[DesiredState, Addresses] = DesiredState(), {}
        self._is_away = False
        self._is_settled = True  # has the controller seen what was published?
        self._settling = asyncio.Lock()

    async def start(self) -> None:
        await self._plane.start()
        await self._plane.start_controllers()
        self._connection = await self._plane.connection().__aenter__()
        await _allow(self._connection)

    def options(self, node: LabNode) -> Mapping[str, object]:
        """By the family that the Node has: the kubeconfig names one address only."""
        address = ADDRESSES[0] if Family.IPV4 in node.addresses else ADDRESSES[1]
        return {"kubeconfig": str(self._plane.kubeconfig(AGENT)), "apiServer": url_at(address.ip)}

    async def publish(self, desired: DesiredState, addresses: Addresses) -> None:
        by_kind = api_objects.published(desired, addresses)
        wanted = {one.path: one for listed in by_kind.values() for one in listed}
        self._desired, self._is_settled = (desired, dict(addresses)), False
        for path in [path for path in self._published if path not in wanted]:
            await self._delete(path)
            del self._published[path]
        for listed in by_kind.values():
            new = [one for one in listed if self._published.get(one.path) != one]
            for first in range(0, len(new), SIDE_BY_SIDE):
                await asyncio.gather(*map(self._put, new[first : first + SIDE_BY_SIDE]))
        self._published = wanted

    async def revision(self, node: str) -> str | None:
        """Of the state as it is after all that was published, and after the controller has seen it."""
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
        """Until the controller's slices are those that the lab's own would have made: the real one must agree."""
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
            raise LabError(f"the EndpointSlices are not those that were expected: {some}") from None

    async def _put(self, one: Published) -> None:
        try:
            try:
                await self._apply(one, is_new=one.path not in self._published)
            except RequestRefused as error:
                if error.code != _CANNOT_BE_CHANGED or one.path not in self._published:
                    raise
                await self._delete(one.path)  # what cannot be changed is made anew, as by kubectl replace --force
                await self._apply(one, is_new=True)
            if one.status:
                body = msgspec.json.encode({"status": one.status})
                path = f"{one.path}/status"
                await self._open.request("PATCH", path, body=body, content_type="application/merge-patch+json")
            if one.is_going:
                await self._open.request("DELETE", one.path, {"gracePeriodSeconds": "3600"})
        except (RequestRefused, Unreachable) as error:
            raise LabError(f"{one.path}: {error}") from None

    async def _apply(self, one: Published, *, is_new: bool) -> None:
        if is_new and one.at_first:
            await apply(self._open, one.at_first, one.path)
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
        """Read afresh: what is written before is in it."""
        try:
            async with aclosing(self._source(node).changes()) as changes:
                return (await anext(changes)).cluster
        except SourceAway as error:
            raise LabError(str(error)) from None

    def _expected(self) -> set[_Endpoint]:
        desired, addresses = self._desired
        found: set[_Endpoint] = set()
        for one in endpoint_slices.slices(desired, addresses):
            decoded = msgspec.convert(one, _Slice)
            service = desired.services.get(
                f"{decoded.metadata.namespace}/{decoded.metadata.labels[endpoint_slices.SERVICE_LABEL]}"
            )
            # The agents do not ask for what is for DNS only, or for another proxy.
            if service and not service.headless and PROXY_NAME_LABEL not in service.metadata.labels:
                found |= decoded.endpoints_of(service.key)
        return found


class _SliceMetadata(msgspec.Struct):
    namespace: str
    labels: dict[str, str]


class _Conditions(msgspec.Struct):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _SliceEndpoint(msgspec.Struct, rename="camel"):
    addresses: list[str]
    conditions: _Conditions
    node_name: str = ""


class _Slice(msgspec.Struct):
    metadata: _SliceMetadata
    endpoints: list[_SliceEndpoint]

    def endpoints_of(self, service: str) -> set[_Endpoint]:
        return {
            (service, one.addresses[0], bool(c.ready), bool(c.serving), bool(c.terminating), one.node_name)
            for one in self.endpoints
            for c in [one.conditions]
        }


def _endpoints(cluster: Cluster) -> set[_Endpoint]:
    """Those that the controller made; a scenario's own slices are as it wrote them."""
    found: set[_Endpoint] = set()
    for one in cluster.slices.values():
        labels = one.metadata.labels or {}
        if labels.get("endpointslice.kubernetes.io/managed-by") == "endpointslice-controller.k8s.io":
            service = f"{one.metadata.namespace}/{labels.get(endpoint_slices.SERVICE_LABEL)}"
            for endpoint in one.endpoints or ():
                c = endpoint.conditions
                state = (bool(c and c.ready), bool(c and c.serving), bool(c and c.terminating))
                found.add((service, (endpoint.addresses or ("",))[0], *state, endpoint.node_name or ""))
    return found


async def _allow(connection: APIConnection) -> None:
    """The agents may do what the product's role says, and no more."""
    named: dict[str, object] = {"apiVersion": f"{_GROUP}/v1", "metadata": {"name": AGENT}}
    role = named | {"kind": "ClusterRole", "rules": rules()}
    binding = named | {
        "kind": "ClusterRoleBinding",
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": AGENT}],
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": AGENT},
    }
    await apply(connection, role, f"/apis/{_GROUP}/v1/clusterroles/{AGENT}")
    await apply(connection, binding, f"/apis/{_GROUP}/v1/clusterrolebindings/{AGENT}")
