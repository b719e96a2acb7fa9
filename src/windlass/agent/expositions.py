"""All metrics of one agent as the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from windlass.agent.measurements import Measurements
from windlass.agent.metrics import METRICS, Kind, Metric
from windlass.agent.readings import Reading, readings
from windlass.agent.samples import Probe, Samples
from windlass.agent.views import AgentView


class Exposition:
    def __init__(self, view: AgentView, probes: list[Probe]) -> None:
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


class _Collector(Collector):
    """The metrics that are read at each scrape. Those that are counted continuously are in `Measurements`."""

    def __init__(self, view: AgentView, samples: Samples) -> None:
        self._view = view
        self._samples = samples

    def describe(self) -> list[Family]:
        return []  # otherwise the registry collects once to learn the names, before there are values

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for reading in (*readings(self._view), *self._samples.readings):
            family = families.setdefault(reading.metric.name, _family(reading.metric))
            _add(family, reading)
        yield from (families[name] for name in METRICS if name in families)


def _family(metric: Metric) -> Family:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(metric.name, metric.meaning, labels=metric.labels)


def _add(family: Family, reading: Reading) -> None:
    if isinstance(family, CounterMetricFamily | GaugeMetricFamily):
        family.add_metric(reading.labels, reading.value)
