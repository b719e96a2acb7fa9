"""Connections that last or repeat through all steps of a scenario, to Services that can answer at any time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from windlass.lab.fuzz import oracle, random_probes
from windlass.lab.fuzz.cluster_views import ClusterView
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.documents import WrittenDocument
from windlass.lab.fuzz.eligible_endpoints import endpoints
from windlass.lab.fuzz.oracle import Client, Prediction, Query
from windlass.lab.fuzz.random_probes import History
from windlass.lab.fuzz.random_queries import QueryProbe
from windlass.lab.scenarios.objects import ProbeOutcome

MOST_HELD, HELD_THROWS = 2, 12
MOST_RATED, RATED_THROWS = 3, 100

# Connections that are held ---------------------------------------------------------------------------------------


def held(
    dice: Dice, views: Sequence[ClusterView], services: Sequence[str], history: History
) -> Iterator[WrittenDocument]:
    """`views` are the cluster at each step; the connections are opened in the first step."""
    for number in range(1, MOST_HELD + 1):
        throws = (random_probes.throw(dice, views[0], services, history, patient=False) for _ in range(HELD_THROWS))
        lasting = next((throw for throw in throws if throw and _lasts(*throw, views)), None)
        if lasting:
            yield random_probes.held(views[0], number, *lasting, history)


def _lasts(asked: QueryProbe, first: Prediction, views: Sequence[ClusterView]) -> bool:
    """Whether all endpoints that may be chosen serve to the end, and the address stays with the Service."""
    query = asked.query
    if query.protocol != "TCP" or query.via or first.outcome is not ProbeOutcome.CONNECTED:
        return False
    pods = [*first.backends, *([query.client.pod] if query.client.pod else [])]
    return all(
        views[0].nodes.keys() <= view.nodes.keys()
        and all(is_same_pod(views[0], view, pod) for pod in pods)
        and first.backends <= _serving(view, asked)
        and oracle.allows(view, query, first) is True
        for view in views
    )


def is_same_pod(first: ClusterView, view: ClusterView, pod: str) -> bool:
    """Whether the Pod was not replaced: a new Pod has lost its connections."""
    return pod in first.pods and pod in view.pods and first.pods[pod].spec == view.pods[pod].spec


def _serving(view: ClusterView, asked: QueryProbe) -> frozenset[str]:
    """The backends that keep their connections to this port of the Service."""
    owners = [node for node in view.nodes.values() if asked.query.address in node.all_addresses]
    for node in (view.nodes[asked.entry], *owners):
        claim = oracle.claimed(view, node, asked.query)
        if claim and claim.port and claim.service.key == asked.service:
            found = endpoints(view, claim.service, claim.port, asked.query.family)
            return frozenset(endpoint.backend for endpoint in found if endpoint.stays)
    return frozenset()


# New connections at a constant rate ------------------------------------------------------------------------------


def rated(
    dice: Dice, views: Sequence[ClusterView], services: Sequence[str], history: History
) -> Iterator[WrittenDocument]:
    """A constant rate of new connections, none of which may fail while an endpoint can answer."""
    for number in range(1, MOST_RATED + 1):
        throws = (random_probes.throw(dice, views[0], services, history, patient=False) for _ in range(RATED_THROWS))
        served = next((thrown for thrown in throws if thrown and _is_served(thrown[0].query, views)), None)
        if served:
            yield random_probes.rated(number, served[0])


def _is_served(query: Query, views: Sequence[ClusterView]) -> bool:
    """Whether at each step an endpoint exists that may be selected both before and after the step.

    Excluded are: addresses that the underlay routes to another Node for a later probe; session affinity, because these
    connections would create an affinity entry at an unpredictable moment; and endpoints that start in a step which also
    writes them into a slice by hand, because the lab publishes the slice before the Pod answers.
    """
    if query.protocol != "TCP" or query.via:
        return False
    if not all(_stays(query.client, views[0], view) for view in views):
        return False
    answers = [oracle.predict(view, query) for view in views]
    found = [a for a in answers if a and a.outcome is ProbeOutcome.CONNECTED and not a.sticky]
    if len(found) < len(views):
        return False
    if any(oracle.allows(view, query, answer) is not True for view in views for answer in found):
        return False  # while the cluster changes, a Node may have the policies of before and the endpoints of after
    choices = [(view, answer.backends) for view, answer in zip(views, found, strict=True)]
    return all(
        any(backend in after and _is_same(first, then, backend) for backend in before)
        and not any(_starts_in_a_written_slice(first, then, backend) for backend in after)
        for (first, before), (then, after) in pairwise(choices)
    )


def _stays(client: Client, first: ClusterView, view: ClusterView) -> bool:
    """Whether the client and all Nodes stay: connections of a removed Node break."""
    return first.nodes.keys() <= view.nodes.keys() and (not client.pod or is_same_pod(first, view, client.pod))


def _is_same(first: ClusterView, then: ClusterView, backend: str) -> bool:
    return is_same_pod(first, then, backend) if backend in first.pods else backend not in then.pods


def _starts_in_a_written_slice(first: ClusterView, then: ClusterView, backend: str) -> bool:
    """No two Pods of a random cluster have a port in common, so a port identifies the slice of a Pod."""
    if backend not in then.pods or is_same_pod(first, then, backend):
        return False
    ports = {port.container_port for port in then.pods[backend].ports}
    return any(port.port in ports for one in then.slices for port in one.ports or ())
