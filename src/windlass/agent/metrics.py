"""The agent's figures for Prometheus, read from its state when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from windlass.agent.status import Status
from windlass.cluster.objects import Cluster
from windlass.cluster.policies import POLICY_KINDS
from windlass.model.nodes import NodeState
from windlass.switch.programs import Counters


class Subject(Protocol):
    status: Status

    @property
    def state(self) -> NodeState | None: ...
    @property
    def cluster(self) -> Cluster | None: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def flow_count(self) -> int: ...


def registry_for(subject: Subject) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_AgentCollector(subject))
    return registry


class _AgentCollector(Collector):
    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def collect(self) -> Iterator[Metric]:
        status, state, counters = self._subject.status, self._subject.state, self._subject.counters
        yield GaugeMetricFamily("windlass_ready", "1 when the Node's network is in place", float(status.ready))
        yield GaugeMetricFamily(
            "windlass_generation", "States of the cluster applied since the start", status.generation
        )
        yield GaugeMetricFamily("windlass_flows", "Flows of the Program in the switch", self._subject.flow_count)
        yield GaugeMetricFamily("windlass_pods", "Pods attached to the bridge", len(state.pods) if state else 0)
        yield GaugeMetricFamily("windlass_peers", "Other Nodes that can be reached", len(state.peers) if state else 0)
        problems = GaugeMetricFamily("windlass_problems", "What is wrong now, by area", labels=["area"])
        for area, sentences in status.problems.items():
            problems.add_metric([area], len(sentences))
        yield problems
        yield _policies(self._subject.cluster)
        yield CounterMetricFamily("windlass_switch_syncs", "Times the whole Program was compared", counters.syncs)
        yield CounterMetricFamily("windlass_switch_changes", "Flow and group changes sent", counters.changes_sent)
        yield CounterMetricFamily(
            "windlass_drift_healed", "Flows and groups set right after others changed them", counters.drift_healed
        )


def _policies(cluster: Cluster | None) -> Metric:
    found = Counter(policy.kind for policy in cluster.policies) if cluster else Counter[str]()
    metric = GaugeMetricFamily(
        "windlass_policies_not_enforced", "Policies of the cluster that Windlass does not enforce yet", labels=["kind"]
    )
    for kind in POLICY_KINDS:
        metric.add_metric([kind.name], found[kind.name])
    return metric
