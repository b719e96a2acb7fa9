"""The areas under which the agent reports problems: in `windlass status`, in its log and in its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from windlass.cluster.objects import Problem


class Area(StrEnum):
    """Each has a section of its name in docs/runbook.md; a test checks this."""

    NODE = "node"  # this Node's identity and its NIC
    CLUSTER = "cluster"  # the other Nodes
    CLUSTER_SOURCE = "cluster source"  # where the cluster's state comes from
    CLUSTER_WRITES = "cluster writes"  # what the agent writes into the cluster
    LAST_KNOWN_GOOD = "last known good"  # the cluster's state on disk
    SERVICES = "services"
    GROUP_NUMBERS = "group numbers"  # the numbers of groups of Services, kept on disk
    SERVICE_CIDRS = "service CIDRs"
    SWITCH = "switch"  # Open vSwitch: away, or it refused flows
    DATAPATH = "datapath"  # flows that the datapath cannot carry out
    CONNECTIONS = "connections"  # conntrack entries that could not be removed
    OPEN_CONNECTIONS = "open connections"  # conntrack entries that could not be compared with policies
    SNAT_PORTS = "SNAT ports"  # connections that found no free port
    PORTS = "ports"  # the ports of Pods on the bridge
    POD_PORTS = "lost ports"  # the records of Pod ports on disk, and making lost ports again
    LATE_PORTS = "late ports"  # ports of Pods on Windows, whose interface appears after CNI ADD
    TUNNEL_ROUTES = "tunnel routes"
    UPLINK = "uplink"  # the NIC's addresses and routes, and their record on disk
    HOST = "host"  # addresses, routes, settings, nftables
    HEALTH_CHECKS = "health checks"
    METRICS = "metrics"
    POLICIES = "policies"  # policies, or parts of them, that cannot be used
    REPLACED_POLICIES = "replaced policies"  # policies of kinds that are not enforced


# Called with all problems that an area has now.
Report = Callable[[Area, Iterable[str | Problem]], object]
