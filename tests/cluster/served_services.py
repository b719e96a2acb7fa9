"""Services of the tests, as a Node serves them."""

from __future__ import annotations

from api_objects import HTTP, NODE, service

from windlass.cluster.catalogues import Catalogue
from windlass.cluster.changes import EVERYTHING, ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.objects import EndpointSlice, Service
from windlass.cluster.services import serve
from windlass.model.services import Endpoint, Frontend, ServedPort, ServedService
from windlass.nodes.states import run_to_end

NODE_PORT = HTTP | {"nodePort": 30080}
BALANCED = {"type": "LoadBalancer", "ports": [NODE_PORT]}
DRAINING = {"ready": False, "serving": True, "terminating": True}


def port(*slices: EndpointSlice, **spec: object) -> ServedPort:
    """The only port of a Service with these slices, which must have no problems."""
    served, problems = serve(service(**spec), slices, NODE)
    assert problems == []
    assert served is not None
    [only] = served.ports
    return only


def used(endpoints: tuple[Endpoint, ...]) -> list[str]:
    return [f"{one.address}:{one.port}" for one in endpoints]


def served(one: Service, *slices: EndpointSlice, node=NODE) -> ServedService:
    """The Service as it is served, which must have no problems."""
    found, problems = serve(one, slices, node)
    assert problems == []
    assert found is not None
    return found


def served_with_problems(one: Service, *, node=NODE) -> tuple[ServedService, list[str]]:
    found, problems = serve(one, [], node)
    assert found is not None
    assert {problem.where for problem in problems} <= {"Service default/web"}
    return found, [problem.sentence for problem in problems]


def frontends(one: ServedService, number: int = 0) -> list[Frontend]:
    return list(one.ports[number].frontends)


def frontend_names(one: ServedService) -> list[str]:
    """address:port; "node" stands for the addresses of the Node."""
    return [f"{frontend.address or 'node'}:{frontend.port}" for port in one.ports for frontend in port.frontends]


def follow(catalogue: Catalogue, cluster: Cluster, node: ServingNode, changes: ChangeSet = EVERYTHING) -> set[str]:
    """Bring the catalogue up to this cluster. Returns the keys of the Services that changed."""
    return run_to_end(catalogue.following(cluster, node, changes))
