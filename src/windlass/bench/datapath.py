"""`windlass bench datapath`: what a packet costs in the switch: datapath passes, ct actions and megaflows.

Counted, not timed, so that it is independent of the machine's load: one real connection of each case is followed
through a running lab, then a thousand are made, and the megaflows that the switch holds for them are counted.

`first` is a connection's first packet and `established` a later one, on the Node where they enter; `round-trip` is an
established packet and its reply on all Nodes. The floor of a Service's figure is the same without the Service, in the
same run: Pod to Pod, or Node to Pod. That of policies is Pod to Pod without them. The floor of the megaflows is their
number after half of the connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from windlass.bench import lab_clusters
from windlass.bench.reports import BenchReport, Figure, figure, this_machine
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.probing.dialers import SocketAddress
from windlass.lab.probing.packets import TCP
from windlass.lab.probing.traffic import ProbeTraffic, Traffic
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.progress import Say
from windlass.lab.scenarios import targets
from windlass.lab.scenarios.directives import Probe
from windlass.lab.scenarios.objects import ProbeOutcome
from windlass.lab.tracing import journeys
from windlass.lab.tracing.journeys import Journey
from windlass.lab.tracing.megaflows import Phase

CONNECTIONS = 1000
NODE = "node-1"  # where all packets enter
CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDRs: [172.16.1.0/24]},
     status: {addresses: [{type: InternalIP, address: 10.176.25.11}]}}
  - {apiVersion: v1, kind: Node, metadata: {name: node-2}, spec: {podCIDRs: [172.16.2.0/24]},
     status: {addresses: [{type: InternalIP, address: 10.176.25.12}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: client}, spec: {nodeName: node-1}}
  - {apiVersion: v1, kind: Pod, metadata: {name: near, labels: {app: near}},
     spec: {nodeName: node-1, containers: [{ports: [{containerPort: 8080}]}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: far, labels: {app: far}},
     spec: {nodeName: node-2, containers: [{ports: [{containerPort: 8080}]}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: policed-client, labels: {app: policed-client}},
     spec: {nodeName: node-1}}
  - {apiVersion: v1, kind: Pod, metadata: {name: policed, labels: {app: policed}},
     spec: {nodeName: node-1, containers: [{ports: [{containerPort: 8080}]}]}}
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: egress},
     spec: {podSelector: {matchLabels: {app: policed-client}}, policyTypes: [Egress],
       egress: [{to: [{podSelector: {matchLabels: {app: policed}}}], ports: [{port: 8080}]}]}}
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: ingress},
     spec: {podSelector: {matchLabels: {app: policed}},
       ingress: [{from: [{podSelector: {matchLabels: {app: policed-client}}}], ports: [{port: 8080}]}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: near}, spec: {type: NodePort, clusterIP: 10.96.0.11,
     selector: {app: near}, ports: [{port: 80, targetPort: 8080, nodePort: 30011}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: far}, spec: {type: NodePort, clusterIP: 10.96.0.12,
     selector: {app: far}, ports: [{port: 80, targetPort: 8080, nodePort: 30012}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: near-kept}, spec: {type: NodePort, clusterIP: 10.96.0.21,
     externalTrafficPolicy: Local, selector: {app: near}, ports: [{port: 80, targetPort: 8080, nodePort: 30021}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: far-kept}, spec: {type: NodePort, clusterIP: 10.96.0.22,
     externalTrafficPolicy: Local, selector: {app: far}, ports: [{port: 80, targetPort: 8080, nodePort: 30022}]}}
  - {apiVersion: windlass.dev/v1alpha1, kind: ExternalHost, metadata: {name: outside},
     spec: {addresses: [10.176.26.36], ports: [{port: 80}]}}
"""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    source: str  # as in a Probe
    target: str
    floor: str = ""  # the case without a Service or policies
    answered: bool = True

    @property
    def manifest(self) -> str:
        outcome = ProbeOutcome.CONNECTED if self.answered else ProbeOutcome.TIMEOUT
        return (
            f"apiVersion: windlass.dev/v1alpha1\nkind: Probe\nmetadata: {{name: {self.name}}}\n"
            f"spec: {{from: {{{self.source}}}, to: {{{self.target}}}, expect: {{outcome: {outcome.value}}}}}\n"
        )


def node_port(service: str) -> str:
    return f"nodePort: default/{service}, port: 80, node: {NODE}"


POD, HOST, OUTSIDE = "pod: default/client", f"node: {NODE}", "externalHost: outside"
CASES = (
    Case("pod-to-pod-local", POD, "pod: default/near, port: 8080"),
    Case("pod-to-pod-remote", POD, "pod: default/far, port: 8080"),
    # Egress policies select the client, and ingress policies the other Pod.
    Case("pod-to-pod-policies", "pod: default/policed-client", "pod: default/policed, port: 8080", "pod-to-pod-local"),
    Case("pod-to-outside", POD, "address: 10.176.26.36, port: 80", "pod-to-pod-local"),
    Case("node-to-pod-local", HOST, "pod: default/near, port: 8080"),
    Case("node-to-pod-remote", HOST, "pod: default/far, port: 8080"),
    Case("pod-to-clusterip-local", POD, "service: default/near, port: 80", "pod-to-pod-local"),
    Case("pod-to-clusterip-remote", POD, "service: default/far, port: 80", "pod-to-pod-remote"),
    Case("node-to-clusterip-local", HOST, "service: default/near, port: 80", "node-to-pod-local"),
    Case("node-to-clusterip-remote", HOST, "service: default/far, port: 80", "node-to-pod-remote"),
    Case("outside-to-nodeport-cluster-local", OUTSIDE, node_port("near"), "pod-to-pod-local"),
    Case("outside-to-nodeport-cluster-remote", OUTSIDE, node_port("far"), "pod-to-pod-remote"),
    Case("outside-to-nodeport-local-local", OUTSIDE, node_port("near-kept"), "pod-to-pod-local"),
    # Policy Local, and no endpoint on this Node: the packet is dropped.
    Case("outside-to-nodeport-local-remote", OUTSIDE, node_port("far-kept"), answered=False),
    Case("pod-to-nodeport-local", POD, node_port("near"), "pod-to-pod-local"),
    Case("pod-to-nodeport-remote", POD, node_port("far"), "pod-to-pod-remote"),
)

# The most that a case may cost. Policies cost no pass and no ct. From outside: as much as Antrea's Pod to ClusterIP,
# measured on the same switch.
_POLICIES = {"first-passes": 2, "first-ct": 2, "established-passes": 2, "established-ct": 1}
_TO_CLUSTER_IP = {"first-passes": 4, "first-ct": 2, "established-passes": 2, "established-ct": 1}
_TO_NODE_PORT = {"first-passes": 5, "first-ct": 3}
BARS: Mapping[str, Mapping[str, int]] = {
    case.name: most
    for case in CASES
    for kind, most in (
        ("pod-to-pod-policies", _POLICIES),
        ("pod-to-clusterip", _TO_CLUSTER_IP),
        ("outside-to-nodeport", _TO_NODE_PORT),
    )
    if case.name.startswith(kind)
}


async def run(say: Say = print) -> BenchReport:
    """Takes about a minute. Says also whether each bar is met."""
    figures = await _figures(say)
    for sentence in judged(figures):
        say(sentence)
    return BenchReport("datapath", this_machine(), tuple(figures))


def judged(figures: list[Figure]) -> Iterator[str]:
    """A sentence for each bar."""
    values = {each.name: each.value for each in figures}
    for case, most in BARS.items():
        met = all(values[f"{case}-{name}"] <= limit for name, limit in most.items())
        text = ", ".join(f"{name} {values[f'{case}-{name}']:.0f} of {limit}" for name, limit in most.items())
        yield f"bar {'met' if met else 'MISSED'}: {case}: {text} at most"
    grown = [each.name for each in figures if each.unit == "megaflows" and each.value > (each.floor or 0)]
    text = ", ".join(grown) or "they grow in no case"
    yield f"bar {'MISSED' if grown else 'met'}: megaflows when connections double from {CONNECTIONS // 2}: {text}"


async def _figures(say: Say) -> list[Figure]:
    scenario = lab_clusters.scenario_of("datapath", "---\n".join((CLUSTER, *(case.manifest for case in CASES))))
    probes = {probe.name: probe for step in scenario.steps for probe in step.probes}
    followed: dict[str, Journey] = {}
    figures: list[Figure] = []
    async with lab_clusters.standing(scenario) as cluster:
        for case in CASES:
            say(f"{case.name}: following one connection, making {CONNECTIONS}")
            followed[case.name] = await journeys.follow(cluster, probes[case.name])
            figures += _of_case(case, followed)
            if case.answered:
                figures.append(await _megaflows(case, cluster, probes[case.name]))
    return figures


# ---- one packet


def _of_case(case: Case, followed: Mapping[str, Journey]) -> Iterator[Figure]:
    floors = _costs(followed[case.floor]) if case.floor else {}
    for name, value in _costs(followed[case.name]).items():
        unit = "passes" if name.endswith("passes") else "ct"
        yield figure(f"{case.name}-{name}", value, unit, floors.get(name))


def _costs(journey: Journey) -> dict[str, int]:
    costs: dict[str, int] = {}
    for phase in (Phase.FIRST, Phase.ESTABLISHED):
        if phase in journey.paths:
            entry = journey.paths[phase].visits[0]
            costs |= {f"{phase.value}-passes": len(entry.passes), f"{phase.value}-ct": entry.ct}
    round_trip = [journey.paths[phase] for phase in (Phase.ESTABLISHED, Phase.REPLY) if phase in journey.paths]
    if round_trip:
        visits = [visit for way in round_trip for visit in way.visits]
        costs["round-trip-passes"] = sum(len(visit.passes) for visit in visits)
        costs["round-trip-ct"] = sum(visit.ct for visit in visits)
    return costs


# ---- many connections


async def _megaflows(case: Case, cluster: RunningCluster, probe: Probe) -> Figure:
    """Megaflows of this case alone, on the Node where its packets enter."""
    await journeys.flush_megaflows(cluster, NODE)
    counts = []
    for _ in range(2):
        await _connect(case, cluster, probe, CONNECTIONS // 2)
        # Only those of TCP: Pods and hosts send ARP and neighbour discovery at any time, through tunnels as well.
        counts.append(sum(flow.protocol == TCP for flow in await journeys.cached_megaflows(cluster, NODE)))
    return figure(f"{case.name}-megaflows-per-{CONNECTIONS}-connections", counts[1], "megaflows", counts[0])


async def _connect(case: Case, cluster: RunningCluster, probe: Probe, connections: int) -> None:
    to = targets.resolve(probe, cluster.desired, cluster.addresses)
    flow = ProbeTraffic(
        cluster.namespace_of(probe.spec.source), probe.spec.protocol, SocketAddress(to.address, to.port), connections
    )
    seen = await Traffic(cluster.arrivals).observe(flow)
    failed = [attempt for attempt in seen.attempts if attempt.outcome is not ProbeOutcome.CONNECTED]
    if failed:
        raise LabError(
            f"{case.name}: {len(failed)} of {connections} connections failed, so there is nothing to count; "
            "`windlass lab run scenarios/services` shows what is wrong"
        )
