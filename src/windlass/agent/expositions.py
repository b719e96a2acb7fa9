"""All metrics of one agent as the text that Prometheus reads.

Most are read from the agent's state or sampled at each scrape. Durations and counts of events are kept until then.
"""

from __future__ import annotations

import time
from collections import Counter as TallyCounter
from collections.abc import Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from windlass.agent import metrics
from windlass.agent.areas import Area
from windlass.agent.metrics import METRICS, Metric, MetricKind, Reading
from windlass.agent.samples import Sampler, Samples
from windlass.agent.views import AgentView
from windlass.cluster.policies import POLICY_KINDS, policies_of
from windlass.cni.errors import Code
from windlass.cni.requests import UNKNOWN


class Exposition:
    def __init__(self, view: AgentView, probes: list[Sampler]) -> None:
        # It would add a timestamp to each counter and histogram, which doubles the size of the response.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.measurements = Measurements(self.registry)
        self._samples = Samples(probes)
        self.registry.register(_Collector(view, self._samples))
        ProcessCollector(registry=self.registry)

    async def text(self) -> bytes:
        await self._samples.refresh()
        return generate_latest(self.registry)


class Measurements:
    """Durations and counts of what happens on this Node."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(metric: Metric) -> Histogram:
            return Histogram(metric.name, metric.meaning, metric.labels, registry=registry, buckets=metric.buckets)

        self._programming = histogram(metrics.PROGRAMMING)
        self._apply = histogram(metrics.APPLY)
        self._cni_duration = histogram(metrics.CNI_DURATION)
        errors = metrics.CNI_ERRORS
        self._cni_errors = Counter(errors.name, errors.meaning, errors.labels, registry=registry)

    def applied(self, triggered: Iterable[float], seconds: float) -> None:
        """Changes are in the switch and on the host, this long after the first of them was received.

        `triggered`: when their causes occurred, in seconds since the epoch.
        """
        now = time.time()
        for when in triggered:
            self._programming.observe(max(0.0, now - when))  # two machines' clocks may differ
        self._apply.observe(seconds)

    def cni_request(self, command: str, seconds: float, error: str = "") -> None:
        self._cni_duration.labels(command).observe(seconds)
        if error:
            self._cni_errors.labels(command, error).inc()

    def cni_refusal(self, code: Code) -> None:
        """Count a CNI request that could not be parsed."""
        self._cni_errors.labels(UNKNOWN, code.name.lower()).inc()


class _Collector(Collector):
    """The metrics that are read at each scrape."""

    def __init__(self, view: AgentView, samples: Samples) -> None:
        self._view = view
        self._samples = samples

    def describe(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        return []  # otherwise the registry collects once to learn the names, before there are values

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for metric, value, labels in (*_of_agent(self._view), *_of_switch(self._view), *self._samples.readings):
            kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            family = families.setdefault(metric.name, kind(metric.name, metric.meaning, labels=metric.labels))
            family.add_metric(labels, value)
        yield from (families[name] for name in METRICS if name in families)


def _of_agent(view: AgentView) -> Iterator[Reading]:
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
    policies = TallyCounter(policy.kind for policy in policies_of(view.cluster)) if view.cluster else {}
    for kind in POLICY_KINDS:
        yield Reading(metrics.POLICIES, policies.get(kind.name, 0), (kind.name,))
    for watch in view.news.source.watches:
        if watch.age is not None:
            yield Reading(metrics.WATCH_AGE, watch.age, (watch.resource,))
        for reason, count in watch.restarts.items():
            yield Reading(metrics.WATCH_RESTARTS, count, (watch.resource, reason))


def _of_switch(view: AgentView) -> Iterator[Reading]:
    switch = view.switch
    yield Reading(metrics.FLOWS, switch.flow_count)
    yield Reading(metrics.SWITCH_CONNECTED, float(switch.is_started and not switch.trouble))
    yield Reading(metrics.SYNCS, switch.counters.syncs)
    yield Reading(metrics.CHANGES, switch.counters.changes_sent)
    yield Reading(metrics.DRIFT, switch.counters.drift_healed)
    yield Reading(metrics.REJECTS_SENT, switch.rejections.sent)
    yield Reading(metrics.REJECTS_SUPPRESSED, switch.rejections.suppressed)
    for (direction, rule), count in switch.denials.counted.items():
        yield Reading(metrics.DENIALS, count, (direction, rule))
    yield Reading(metrics.DENIALS_SUPPRESSED, switch.denials.suppressed)
