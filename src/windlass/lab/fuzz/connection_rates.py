"""A constant rate of new connections while the cluster changes: none may fail while an endpoint can answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from windlass.lab.fuzz import oracle, random_probes
from windlass.lab.fuzz.cluster_views import ClusterView, Document
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.held_connections import is_same_pod
from windlass.lab.fuzz.oracle import Client, Query
from windlass.lab.fuzz.random_probes import History
from windlass.lab.scenarios.objects import ProbeOutcome

MOST = 3
THROWS = 100


def chosen(dice: Dice, views: Sequence[ClusterView], services: Sequence[str], history: History) -> Iterator[Document]:
    """`views` are the cluster at each step."""
    for number in range(1, MOST + 1):
        throws = (random_probes.throw(dice, views[0], services, history, patient=False) for _ in range(THROWS))
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
    if not all(answer and answer.outcome is ProbeOutcome.CONNECTED and not answer.sticky for answer in answers):
        return False
    given = [answer for answer in answers if answer]
    if any(oracle.allows(view, query, answer) is not True for view in views for answer in given):
        return False  # while the cluster changes, a Node may have the policies of before and the endpoints of after
    choices = [(view, answer.backends) for view, answer in zip(views, answers, strict=True) if answer]
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
    """No two Pods of a random cluster have a port in common, so a port tells whose slice it is."""
    if backend not in then.pods or is_same_pod(first, then, backend):
        return False
    ports = {port.container_port for port in then.pods[backend].ports}
    return any(port.port in ports for one in then.slices for port in one.ports or ())
