"""Durations and counts of what happens on this Node, kept until they are scraped."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from windlass.agent import metrics
from windlass.agent.metrics import Metric
from windlass.cni.errors import Code
from windlass.cni.requests import UNKNOWN


class Measurements:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._programming = _histogram(metrics.PROGRAMMING, registry)
        self._apply = _histogram(metrics.APPLY, registry)
        self._cni_duration = _histogram(metrics.CNI_DURATION, registry)
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
        """Of a request that could not be parsed."""
        self._cni_errors.labels(UNKNOWN, code.name.lower()).inc()


def _histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.meaning, metric.labels, registry=registry, buckets=metric.buckets)
