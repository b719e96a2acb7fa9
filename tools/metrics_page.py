"""The page about the agent's metrics, from their declarations."""

from __future__ import annotations

from windlass.agent.metrics import METRICS, Metric

NOTES = """
## Migrating from kube-proxy

To use a dashboard or an alert of kube-proxy, replace each of its metrics by the one with the same entry in the last
column. The histogram `windlass_network_programming_duration_seconds` has the same buckets and rules as kube-proxy's
SLI: it starts at the trigger time that the EndpointSlice controller writes, and ignores slices without one, deleted
slices and changes that were triggered before the agent started. It ends later than kube-proxy's: when Open vSwitch
has answered the barrier after the flows, and the host has its routes and NodePorts. The default address of the
metrics (`metricsBindAddress`, 127.0.0.1:10249) is that of kube-proxy.

## The cost of a scrape

Most values are in the agent's memory. The agent asks Open vSwitch for its version and the number of tracked
connections by its control socket, and reads two files of the kernel; none of this depends on the size of the cluster
or the number of connections. A scrape waits for these answers for at most one second, and omits what has not arrived
by then. Answers are cached for one second.

The standard metrics of the process are included: `process_cpu_seconds_total`, `process_resident_memory_bytes`,
`process_virtual_memory_bytes`, `process_start_time_seconds`, `process_open_fds`, `process_max_fds`.
"""


def page(note: str) -> str:
    lines = [
        "# Metrics",
        "",
        note,
        "The metrics of each Node's agent, at `/metrics` of `metricsBindAddress` and of the local API.",
        "The chart has a PodMonitor, alert rules and a Grafana dashboard for them ([values](chart-values.md)); the",
        "[runbook](runbook.md#alerts) says what to do when an alert fires.",
        "",
        "| metric | type | labels | meaning | corresponds to |",
        "| --- | --- | --- | --- | --- |",
        *map(_row, METRICS.values()),
    ]
    return "\n".join(lines) + "\n" + NOTES


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.meaning} | {metric.like} |"
