"""The metrics that come from the agent's own state, read at the moment of a scrape."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import windlass
from windlass.agent import metrics
from windlass.agent.areas import Area
from windlass.agent.metrics import Metric
from windlass.agent.views import AgentView
from windlass.cluster.policies import POLICY_KINDS, policies_of
from windlass.cluster.sources import WatchHealth


class Reading(NamedTuple):
    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


def readings(view: AgentView) -> Iterator[Reading]:
    status, state = view.status, view.state
    yield Reading(metrics.READY, float(status.ready))
    yield Reading(metrics.LAST_APPLIED, status.updated.timestamp())
    yield Reading(metrics.BEHIND, status.behind_seconds)
    yield Reading(metrics.GENERATION, status.generation)
    yield Reading(metrics.PODS, len(state.pods) if state else 0)
    yield Reading(metrics.PEERS, len(state.peers) if state else 0)
    yield Reading(metrics.SERVICES, len(state.services) if state else 0)
    problems = view.problems
    for area in Area:
        yield Reading(metrics.PROBLEMS, len(problems.get(area, ())), (area,))
    policies = Counter(policy.kind for policy in policies_of(view.cluster)) if view.cluster else Counter[str]()
    for kind in POLICY_KINDS:
        yield Reading(metrics.POLICIES, policies[kind.name], (kind.name,))
    yield from _watches(view.watches)
    yield from _switch(view)


def build_info(openvswitch: str) -> Reading:
    return Reading(metrics.BUILD_INFO, 1, (windlass.__version__, platform.python_version(), openvswitch))


def _watches(watches: Sequence[WatchHealth]) -> Iterator[Reading]:
    for watch in watches:
        if watch.age is not None:
            yield Reading(metrics.WATCH_AGE, watch.age, (watch.resource,))
        for reason, count in watch.restarts.items():
            yield Reading(metrics.WATCH_RESTARTS, count, (watch.resource, reason))


def _switch(view: AgentView) -> Iterator[Reading]:
    counters = view.counters
    yield Reading(metrics.FLOWS, view.flow_count)
    yield Reading(metrics.SWITCH_CONNECTED, float(view.switch_connected))
    yield Reading(metrics.SYNCS, counters.syncs)
    yield Reading(metrics.CHANGES, counters.changes_sent)
    yield Reading(metrics.DRIFT, counters.drift_healed)
    yield Reading(metrics.REJECTS_SENT, view.rejects.sent)
    yield Reading(metrics.REJECTS_SUPPRESSED, view.rejects.suppressed)
    for (direction, rule), count in view.denials.counted.items():
        yield Reading(metrics.DENIALS, count, (direction, rule))
    yield Reading(metrics.DENIALS_SUPPRESSED, view.denials.suppressed)
