"""Connections that must last through all steps of a scenario, because their endpoints keep serving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windlass.lab.fuzz import oracle, random_probes
from windlass.lab.fuzz.cluster_views import ClusterView, Document
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.eligible_endpoints import endpoints
from windlass.lab.fuzz.object_views import ServicePortView, ServiceView
from windlass.lab.fuzz.oracle import Prediction
from windlass.lab.fuzz.random_probes import History
from windlass.lab.fuzz.random_queries import QueryProbe
from windlass.lab.scenarios.objects import ProbeOutcome

MOST = 2
THROWS = 12


def chosen(dice: Dice, views: Sequence[ClusterView], services: Sequence[str], history: History) -> Iterator[Document]:
    """`views` are the cluster at each step; the connections are opened in the first step."""
    for number in range(1, MOST + 1):
        throws = (random_probes.throw(dice, views[0], services, history, patient=False) for _ in range(THROWS))
        lasting = next((throw for throw in throws if throw and _lasts(*throw, views)), None)
        if lasting:
            yield random_probes.held(views[0], number, *lasting, history)


def _lasts(asked: QueryProbe, first: Prediction, views: Sequence[ClusterView]) -> bool:
    """Whether all endpoints that may be chosen serve to the end, and the address stays with the Service."""
    query = asked.query
    if query.protocol != "TCP" or query.via or first.outcome is not ProbeOutcome.CONNECTED:
        return False
    people = [*first.backends, *([query.client.pod] if query.client.pod else [])]
    return all(
        views[0].nodes.keys() <= view.nodes.keys()
        and all(is_same_pod(views[0], view, person) for person in people)
        and first.backends <= _serving(view, asked)
        and oracle.allows(view, query, first) is True
        for view in views
    )


def is_same_pod(first: ClusterView, view: ClusterView, pod: str) -> bool:
    """Whether the Pod was not replaced: a new Pod has lost its connections."""
    return pod in first.pods and pod in view.pods and first.pods[pod].spec == view.pods[pod].spec


def _serving(view: ClusterView, asked: QueryProbe) -> frozenset[str]:
    claim = _claim(view, asked)
    if claim is None:
        return frozenset()
    found = endpoints(view, *claim, asked.query.family)
    return frozenset(endpoint.backend for endpoint in found if endpoint.stays)


def _claim(view: ClusterView, asked: QueryProbe) -> tuple[ServiceView, ServicePortView] | None:
    owners = [node for node in view.nodes.values() if asked.query.address in node.addresses]
    for node in (view.nodes[asked.entry], *owners):
        claim = oracle.claimed(view, node, asked.query)
        if claim and claim.port and claim.service.key == asked.service:
            return claim.service, claim.port
    return None
