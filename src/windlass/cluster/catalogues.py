"""All Services as one Node serves them, updated from one Cluster to the next with work for the changes only. Pure.

`services` decides how a Service is served, and `claims` if another one claims the same frontend. A host port of a Pod
is served as a Service with that Pod as its one endpoint: see `host_ports`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

from windlass.cluster import host_ports, objects, tunnel_ports
from windlass.cluster.changes import EVERYTHING, ChangeSet
from windlass.cluster.claims import FrontendClaims
from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.objects import EndpointSlice, Pod, Problem
from windlass.cluster.services import serve
from windlass.model.services import ServedService

SERVICE_LABEL = "kubernetes.io/service-name"
_SLICE = 20  # Services to work on before other tasks run: about a millisecond


class Catalogue:
    """The Services as they are served; `following` updates them to a Cluster."""

    def __init__(self) -> None:
        self.services: dict[str, ServedService] = {}  # by namespace/name
        self._problems: dict[str, list[Problem]] = {}
        self._listed: tuple[Problem, ...] | None = ()  # all problems, sorted; None: must be rebuilt
        self._cluster = Cluster()
        self._node: ServingNode | None = None
        self._slices = SlicesByService()
        self._claims = FrontendClaims()
        self._node_addresses: dict[bytes, str] = {}  # the Node of each address
        self._at_tunnel_port: set[str] = set()  # the Services that depend on them

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The same object as long as no problem is added, removed or changed."""
        if self._listed is None:
            self._listed = tuple(problem for key in sorted(self._problems) for problem in self._problems[key])
        return self._listed

    def following(
        self, cluster: Cluster, node: ServingNode, changes: ChangeSet = EVERYTHING
    ) -> Generator[None, None, set[str]]:
        """The keys of all Services that are now served in another way, or no longer.

        It works in slices, between which the caller can do other work, and must run to its end. With EVERYTHING all
        objects are compared by identity, which takes time in proportion to the cluster.
        """
        changed = changes.keys_between(objects.Service, self._cluster.services, cluster.services)
        changed = changed | self._slices.follow(cluster.slices, changes)
        pods = changes.keys_between(Pod, self._cluster.pods, cluster.pods)
        if cluster.nodes is not self._cluster.nodes:
            addresses = tunnel_ports.addresses_of(cluster.nodes)
            if addresses != self._node_addresses:
                self._node_addresses = addresses
                changed |= self._at_tunnel_port
        self._cluster = cluster
        if node != self._node:
            self._node = node
            changed |= cluster.services.keys()
            pods = cluster.pods.keys()
        changed |= set(map(host_ports.key_of, pods))
        decided: dict[str, tuple[ServedService | None, list[Problem]]] = {}
        for key in sorted(changed):  # probably the order in memory, which is faster
            decided[key] = self._decide(key, node)
            if not len(decided) % _SLICE:
                yield
        others = self._claims.settle({key: service for key, (service, _) in decided.items()}, self._order)
        decided |= {key: self._decide(key, node) for key in others}
        entered: set[str] = set()
        for number, (key, (service, problems)) in enumerate(decided.items(), start=1):
            if self._enter(key, service, problems):
                entered.add(key)
            if not number % _SLICE:
                yield
        return entered

    def _decide(self, key: str, node: ServingNode) -> tuple[ServedService | None, list[Problem]]:
        service, problems = self._serve(key, node)
        self._at_tunnel_port.discard(key)
        if service and node.tunnel_port and tunnel_ports.uses(service, node.tunnel_port):
            self._at_tunnel_port.add(key)
            service, sentences = tunnel_ports.without(service, node.tunnel_port, self._node_addresses)
            if one := self._object(key):
                problems = problems + [Problem.of(one, sentence) for sentence in sentences]
        return service, problems

    def _serve(self, key: str, node: ServingNode) -> tuple[ServedService | None, list[Problem]]:
        match self._object(key):
            case objects.Service() as service:
                return serve(service, self._slices.of(key), node)
            case Pod() as pod:
                return host_ports.serve(pod, node)
            case None:
                return None, []

    def _object(self, key: str) -> objects.Service | Pod | None:
        pod = host_ports.pod_of(key)
        return self._cluster.pods.get(pod) if pod else self._cluster.services.get(key)

    def _order(self, key: str) -> tuple[float, str]:
        """The sort key: time of creation; the name if there is none, as in manifests."""
        one = self._object(key)
        created = one.metadata.creation_timestamp if one else None
        return created.timestamp() if created else float("inf"), key

    def _enter(self, key: str, service: ServedService | None, problems: list[Problem]) -> bool:
        before = self.services.pop(key, None)
        problems_before = self._problems.pop(key, [])
        if service and (one := self._object(key)):
            service, conflicts = self._claims.granted(service)
            problems = problems + [Problem.of(one, sentence) for sentence in conflicts]
            self.services[key] = service
        if problems:
            self._problems[key] = problems
        if problems != problems_before:
            self._listed = None
        return service != before


class SlicesByService:
    """Which EndpointSlices belong to which Service."""

    def __init__(self) -> None:
        self._slices: Mapping[str, EndpointSlice] = {}
        self._by_service: dict[str, tuple[EndpointSlice, ...]] = {}

    def of(self, service: str) -> tuple[EndpointSlice, ...]:
        return self._by_service.get(service, ())

    def follow(self, slices: Mapping[str, EndpointSlice], changes: ChangeSet = EVERYTHING) -> set[str]:
        """The keys of the Services of which a slice has changed."""
        gone: dict[str, set[int]] = {}
        come: dict[str, list[EndpointSlice]] = {}
        for key in changes.keys_between(EndpointSlice, self._slices, slices):
            old, new = self._slices.get(key), slices.get(key)
            if old and (service := service_of(old)):
                gone.setdefault(service, set()).add(id(old))
            if new and (service := service_of(new)):
                come.setdefault(service, []).append(new)
        changed = gone.keys() | come.keys()
        for service in changed:
            kept = [one for one in self._by_service.pop(service, ()) if id(one) not in gone.get(service, ())]
            # Sorted by name: the result must not depend on the order in which slices came.
            if now := sorted((*kept, *come.get(service, ())), key=lambda one: one.metadata.name):
                self._by_service[service] = tuple(now)
        self._slices = slices
        return changed


def service_of(one: EndpointSlice) -> str | None:
    name = (one.metadata.labels or {}).get(SERVICE_LABEL)
    return f"{one.metadata.namespace or 'default'}/{name}" if name else None
