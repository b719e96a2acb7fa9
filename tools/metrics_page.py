"""The page about the agent's metrics, from their declarations."""

from __future__ import annotations

from windlass.agent.metrics import METRICS, Metric

OURS_AND_THEIRS = """
## Coming from kube-proxy

A dashboard or an alert of kube-proxy works here when its metric is replaced by the one beside it in the last column.
The histogram `windlass_network_programming_duration_seconds` has the buckets of kube-proxy's SLI and its rules: it
counts from the trigger time that the EndpointSlice controller writes, leaves out slices without one, deleted slices,
and whatever was triggered before the agent started. It ends later than kube-proxy's: when Open vSwitch has answered
the barrier behind the flows, and the host has its routes and NodePorts. Prometheus reads the figures at the address
where kube-proxy has its own (`metricsBindAddress`, by default 127.0.0.1:10249).

## What a scrape costs

Most values are read from the agent's memory. Open vSwitch is asked for its version and for the number of tracked
connections by its control socket, and the kernel by two files; no question grows with the cluster or with the number
of connections. All of that together gets one second: what has not answered by then is left out of that scrape.
Answers are used again for one second.

Standard metrics of the process are there, too: `process_cpu_seconds_total`, `process_resident_memory_bytes`,
`process_virtual_memory_bytes`, `process_start_time_seconds`, `process_open_fds`, `process_max_fds`.
"""


def page(note: str) -> str:
    lines = [
        "# Metrics",
        "",
        note,
        "What the agent of each Node tells a Prometheus, at `/metrics` of `metricsBindAddress` and of the local API.",
        "The chart has a PodMonitor, alert rules and a Grafana dashboard for them ([values](chart-values.md)); the",
        "[runbook](runbook.md#alerts) says what to do when an alert fires.",
        "",
        "| metric | type | labels | meaning | corresponds to |",
        "| --- | --- | --- | --- | --- |",
        *map(_row, METRICS.values()),
    ]
    return "\n".join(lines) + "\n" + OURS_AND_THEIRS


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.meaning} | {metric.like} |"
