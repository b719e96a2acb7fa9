"""Durations and counts of what happens on this Node, kept until somebody scrapes them."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from windlass.agent import metrics
from windlass.agent.metrics import Metric
from windlass.cni.errors import Code
from windlass.cni.requests import UNKNOWN

MOST_PENDING = 10_000  # trigger times to remember while the switch is away


class Measurements:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._programming = _histogram(metrics.PROGRAMMING, registry)
        self._apply = _histogram(metrics.APPLY, registry)
        self._cni_duration = _histogram(metrics.CNI_DURATION, registry)
        errors = metrics.CNI_ERRORS
        self._cni_errors = Counter(errors.name, errors.meaning, errors.labels, registry=registry)
        self._pending: list[float] = []  # when what is not applied yet was triggered

    def heard(self, triggered: Iterable[float]) -> None:
        """Of changes with these trigger times (seconds since the epoch), which are to be applied now."""
        self._pending += triggered
        del self._pending[MOST_PENDING:]

    def applied(self, seconds: float) -> None:
        """Everything heard is in the switch and on the host, this long after the first news of it."""
        now = time.time()
        for when in self._pending:
            self._programming.observe(max(0.0, now - when))  # two machines' clocks may differ
        self._pending.clear()
        self._apply.observe(seconds)

    def cni_request(self, command: str, seconds: float, error: str = "") -> None:
        self._cni_duration.labels(command).observe(seconds)
        if error:
            self._cni_errors.labels(command, error).inc()

    def cni_refusal(self, code: Code) -> None:
        """Of a request that could not even be read."""
        self._cni_errors.labels(UNKNOWN, code.name.lower()).inc()


def _histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.meaning, metric.labels, registry=registry, buckets=metric.buckets)
