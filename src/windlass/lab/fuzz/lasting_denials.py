"""Constant rates of connections between Pods that policies deny, also while the cluster changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import TypeVar

from windlass.lab.fuzz import random_policy_probes, random_probes
from windlass.lab.fuzz.cluster_views import ClusterView
from windlass.lab.fuzz.dice import Dice
from windlass.lab.fuzz.documents import WrittenDocument
from windlass.lab.fuzz.lasting_connections import is_same_pod
from windlass.lab.fuzz.oracle import Query
from windlass.lab.scenarios.objects import ProbeOutcome
from windlass.model.families import family_of
from windlass.policy.oracle import Judgement, PolicyPacket, judge_egress, judge_ingress
from windlass.policy.worlds import PolicyWorld

MOST, THROWS = 3, 60
PER_SECOND = 10  # a connection without an answer is open for a second
EXPECT = {"outcome": ProbeOutcome.TIMEOUT.value}

_T = TypeVar("_T")
_Judge = Callable[[PolicyWorld, PolicyPacket], Judgement]


def rated(dice: Dice, views: Sequence[ClusterView], known: set[Query]) -> Iterator[WrittenDocument]:
    """`views` are the cluster at this step and all later ones: a rate lasts until the scenario ends.

    Prefers connections that different policies deny in the course of time. Adds its connections to `known`, which are
    those that have a rate.
    """
    thrown = [random_policy_probes.throw(dice, views[0]) for _ in range(THROWS)]
    targets = {
        query: to
        for query, to, answer in filter(None, thrown)
        if answer.outcome is ProbeOutcome.TIMEOUT and query not in known and _is_between_pods(query, to, views)
    }
    reasons = {query: _reasons(query, str(to["pod"]), views) for query, to in targets.items()}
    lasting = sorted((query for query in reasons if reasons[query]), key=lambda query: -reasons[query])[:MOST]
    known.update(lasting)
    for number, query in enumerate(lasting, start=1):
        name = f"denied-{number}-{random_policy_probes.title(query, targets[query])}"
        how: WrittenDocument = {"rate": PER_SECOND, "expect": dict(EXPECT)}
        yield random_probes.written(name, query, targets[query], how, "policies deny it at any time")


def _is_between_pods(query: Query, to: WrittenDocument, views: Sequence[ClusterView]) -> bool:
    """Whether both ends are Pods with addresses of their own that exist throughout, and speak TCP or UDP."""
    ends = (query.client.pod, str(to["pod"]))
    return query.protocol in {"TCP", "UDP"} and all(
        is_same_pod(views[0], view, end) and not views[0].pods[end].spec.host_network for view in views for end in ends
    )


def _reasons(query: Query, server: str, views: Sequence[ClusterView]) -> int:
    """How many different combinations of rules deny the connection; 0 if it may be allowed at some moment.

    Each agent may know any of the changed objects of a step before the others. So a step does not allow the connection
    if one of the two directions is denied whichever of the changed objects are known.
    """
    client = views[0].pods[query.client.pod]
    source = next(address for address in client.fixed_addresses if family_of(address) is query.family)
    packet = PolicyPacket(source, query.address, query.protocol, query.port)
    names = {client.key, server}
    found: set[tuple[str, ...]] = set()
    for before, after in [(views[0], views[0]), *pairwise(views)]:
        moments = list(_between(_of_pods(before.policies, names), _of_pods(after.policies, names)))
        denials = [denial for judge in (judge_egress, judge_ingress) if (denial := _denial(judge, packet, moments))]
        if not denials:
            return 0
        found.update(*denials)
    return len(found)


def _denial(judge: _Judge, packet: PolicyPacket, moments: Sequence[PolicyWorld]) -> frozenset[tuple[str, ...]]:
    """The rules that deny the packet at each moment; empty if it is allowed at one of them."""
    judgements = [judge(world, packet) for world in moments]
    if any(judgement.allowed for judgement in judgements):
        return frozenset()
    return frozenset(judgement.rules for judgement in judgements)


# Moments during a change ------------------------------------------------------------------------------------------


def _of_pods(world: PolicyWorld, names: set[str]) -> PolicyWorld:
    """The world without all other Pods: they do not affect a connection between these."""
    pods = [pod for pod in world.pods if f"{pod.namespace}/{pod.name}" in names]
    return PolicyWorld(pods, world.namespaces, world.nodes, world.network_policies, world.cluster_network_policies)


def _between(before: PolicyWorld, after: PolicyWorld) -> Iterator[PolicyWorld]:
    """The world with any combination of the changed objects."""
    combinations = product(
        _mixtures({pod.name: pod for pod in before.pods}, {pod.name: pod for pod in after.pods}),
        _mixtures(before.namespaces, after.namespaces),
        _mixtures({one.key: one for one in before.network_policies}, {one.key: one for one in after.network_policies}),
        _mixtures(
            {one.key: one for one in before.cluster_network_policies},
            {one.key: one for one in after.cluster_network_policies},
        ),
    )
    for pods, namespaces, policies, cluster_policies in combinations:
        yield PolicyWorld(
            list(pods.values()), namespaces, after.nodes, list(policies.values()), list(cluster_policies.values())
        )


def _mixtures(before: Mapping[str, _T], after: Mapping[str, _T]) -> list[dict[str, _T]]:
    """All combinations of the objects of before and after: each may be missing where it is new or deleted."""
    mixtures: list[dict[str, _T]] = [{}]
    for name in sorted({*before, *after}):
        states = [before.get(name)]
        if after.get(name) != before.get(name):
            states.append(after.get(name))
        mixtures = [mixture if state is None else {**mixture, name: state} for mixture in mixtures for state in states]
    return mixtures
