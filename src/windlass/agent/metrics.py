"""Every metric of the agent, declared once: name, type, labels, meaning. docs/metrics.md is generated from here.

The values come from `expositions` (the agent's state, durations and counts of events) and `samples` (Open vSwitch and
the kernel, asked at each scrape).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

METRICS: dict[str, Metric] = {}  # all of them by name, in the order of the page


class MetricKind(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    like: str = ""  # the equivalent metric of kube-proxy, Antrea or Cilium
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.name in METRICS:
            raise ValueError(f"{self.name} is declared twice")
        METRICS[self.name] = self


class Reading(NamedTuple):
    """The value of a metric at one moment."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


def _gauge(name: str, meaning: str, *labels: str, like: str = "") -> Metric:
    return Metric(name, MetricKind.GAUGE, meaning, labels, like)


def _counter(name: str, meaning: str, *labels: str, like: str = "") -> Metric:
    return Metric(name, MetricKind.COUNTER, meaning, labels, like)


def _histogram(name: str, meaning: str, *labels: str, buckets: tuple[float, ...], like: str = "") -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, meaning, labels, like, buckets)


# The buckets of kube-proxy's network programming SLI: 0.25 s, 0.5 s, each second to 59, then wider up to five minutes.
SLI_BUCKETS = (0.25, 0.5, *map(float, (*range(1, 60), *range(60, 120, 5), *range(120, 301, 30))))
_SHORT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# --- the agent ---

BUILD_INFO = _gauge(
    "windlass_build_info",
    "Always 1; the labels name the versions of Windlass, of Python and of the running ovs-vswitchd (empty while that "
    "does not answer)",
    "version",
    "python",
    "openvswitch",
    like="kubernetes_build_info (kube-proxy), cilium_version",
)
READY = _gauge("windlass_ready", "1 while the Node's network is in place, else 0")
PROBLEMS = _gauge(
    "windlass_problems",
    "Problems that `windlass status` lists now, by area; docs/runbook.md explains each area",
    "area",
)
LAST_APPLIED = _gauge(
    "windlass_last_applied_timestamp_seconds",
    "Unix time at which the Node last held a new state of the cluster",
    like="kubeproxy_sync_proxy_rules_last_timestamp_seconds",
)
BEHIND = _gauge(
    "windlass_behind_seconds", "Seconds since the first change that the Node does not hold yet arrived; 0: none"
)
GENERATION = _gauge("windlass_generation", "States of the cluster applied since the agent started")

# --- how long changes take ---

PROGRAMMING = _histogram(
    "windlass_network_programming_duration_seconds",
    "Seconds from the change that triggered an update of an EndpointSlice (its annotation "
    "endpoints.kubernetes.io/last-change-trigger-time) until the switch has confirmed the new flows and "
    "the host has its items; one observation for each changed slice. Trigger times of Pods have a resolution of 1 s",
    buckets=SLI_BUCKETS,
    like="kubeproxy_network_programming_duration_seconds",
)
APPLY = _histogram(
    "windlass_apply_duration_seconds",
    "Seconds from the arrival of a change at the agent until switch and host hold it; changes that arrive "
    "together count once",
    buckets=_SHORT_BUCKETS,
    like="kubeproxy_sync_proxy_rules_duration_seconds",
)

# --- the cluster, as this Node sees it ---

PODS = _gauge("windlass_pods", "Pods attached to the bridge", like="antrea_agent_local_pod_count, cilium_endpoint")
PEERS = _gauge("windlass_peers", "Other Nodes to which this Node has a route or a tunnel", like="cilium_nodes_all_num")
SERVICES = _gauge("windlass_services", "Services that this Node serves, host ports of Pods included")
POLICIES = _gauge("windlass_policies_not_enforced", "Policies of kinds that Windlass does not enforce, by kind", "kind")
WATCH_AGE = _gauge(
    "windlass_watch_age_seconds",
    "Seconds since the API server last sent anything for this resource; a healthy watch gets a bookmark every minute",
    "resource",
)
WATCH_RESTARTS = _counter(
    "windlass_watch_restarts_total",
    "Watches that were started again, by reason: ended (the server ended it in time, as usual), expired (the server no "
    "longer had the version; everything was listed again), failed (connection lost, or refused)",
    "resource",
    "reason",
)

# --- the switch ---

FLOWS = _gauge("windlass_flows", "Flows of the agent that the switch holds", like="antrea_agent_ovs_total_flow_count")
SWITCH_CONNECTED = _gauge("windlass_switch_connected", "1 while the switch is connected and in sync, else 0")
SYNCS = _counter("windlass_switch_syncs_total", "Times that all flows were compared with the switch after a connect")
CHANGES = _counter(
    "windlass_switch_changes_total",
    "Messages sent that add, modify or delete a flow or a group",
    like="antrea_agent_ovs_flow_ops_count",
)
DRIFT = _counter("windlass_drift_healed_total", "Flows and groups restored after something else had changed them")
REJECTS_SENT = _counter(
    "windlass_rejects_sent_total", "Answers (TCP RST, ICMP unreachable) sent to clients of Services without endpoints"
)
REJECTS_SUPPRESSED = _counter(
    "windlass_rejects_suppressed_total",
    "Packets to Services without endpoints that got no answer because of the rate limit",
    like="antrea_agent_ovs_meter_packet_dropped_count",
)
DENIED_PACKETS = _counter(
    "windlass_policy_denied_packets_total",
    "Packets that policies denied, by their connection: new (it was never allowed), or existing (it was allowed "
    "before, or a Service had chosen its endpoint)",
    "connection",
    like="antrea_agent_denied_connection_count, cilium_drop_count_total",
)
DENIALS = _counter(
    "windlass_policy_denials_total",
    "Denied connections that were logged, by the rule that denied them, or by the NetworkPolicy of which no rule "
    "allowed them; the switch hands at most 10 packets a second to the log",
    "direction",
    "rule",
)
DENIALS_SUPPRESSED = _counter(
    "windlass_policy_denials_suppressed_total", "Denied packets above that limit, which are not logged"
)

FORWARDED_REFUSALS = _counter(
    "windlass_forwarded_refusals_total",
    "On Windows: clients of NodePorts whose connections the agent itself forwards, and that were not served to the "
    "end, by reason: no-endpoint, policy, pod (the switch serves Pods), unreachable (the endpoint did not accept it), "
    "evicted (the UDP client that was idle for longest, at 4,096 of one address and port), "
    "full (at 4,096 TCP connections of one address "
    "and port)",
    "reason",
)

# --- connection tracking ---

CONNTRACK = _gauge(
    "windlass_conntrack_entries",
    "Tracked connections, by table: openvswitch (of the userspace datapath), kernel (of the Node, and of the kernel "
    "datapath)",
    "table",
    like="antrea_agent_conntrack_total_connection_count, node_nf_conntrack_entries",
)
CONNTRACK_LIMIT = _gauge(
    "windlass_conntrack_entries_limit",
    "How many connections each table can hold; beyond that new ones are dropped",
    "table",
    like="antrea_agent_conntrack_max_connection_count, node_nf_conntrack_entries_limit",
)

CONNTRACK_FAILURES = _counter(
    "windlass_conntrack_failures_total",
    "Packets dropped because their connection could not be tracked, by table and reason: insert_failed (of the kernel; "
    "with its datapath also: no free port for SNAT), drop (its table is full), full (that of Open vSwitch is full)",
    "table",
    "reason",
)

SNAT_PORTS = _gauge(
    "windlass_snat_ports",
    "Ports for SNAT, by pool; each destination (address, port and protocol) has all of them. pods: Pods to the outside "
    "as the Node; services: clients of Services to endpoints outside as the Node; host-endpoints: clients of Services "
    "to endpoints on this host; gateway: clients of Services from outside as the gateway",
    "pool",
)
SNAT_PORTS_EXHAUSTED = _counter(
    "windlass_snat_ports_exhausted_total",
    "Packets of new connections dropped because no SNAT port to their destination was free, by pool. On the userspace "
    "datapath; the kernel counts them as insert_failed in windlass_conntrack_failures_total",
    "pool",
)

# --- attaching Pods ---

CNI_DURATION = _histogram(
    "windlass_cni_duration_seconds",
    "Seconds that a CNI request took, failed ones included",
    "command",
    buckets=_SHORT_BUCKETS,
)
CNI_ERRORS = _counter(
    "windlass_cni_errors_total",
    "CNI requests that failed, by command and kind of error; docs/runbook.md lists the errors",
    "command",
    "error",
)
