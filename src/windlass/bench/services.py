"""`windlass bench services`: install 10,000 Services in a switch, then change one endpoint at a time.

The floor of the first is `ovs-ofctl` loading the same flows and groups from text files. The second is measured with a
whole agent on a Node of its own; each change is one EndpointSlice. Its floor is the resulting message, encoded
beforehand, over a plain socket: what the switch and the machine take themselves.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from windlass.agent.serving import Serving
from windlass.bench import bench_nodes, bridges, service_runs
from windlass.bench import service_states as states
from windlass.bench.agent_runs import in_new_process
from windlass.bench.reports import BenchReport, Figure, figure, percentiles, this_machine
from windlass.bench.service_runs import ServiceChangePlan, ServiceChangeTimes, ServiceColdSync
from windlass.cluster.sources import ClusterChange
from windlass.lab.sandbox.progress import Say
from windlass.model.nodes import NodeState
from windlass.program import Program, program

MANY, FEW = 10_000, 100  # Services
ENDPOINTS = 10  # per Service
ROUNDS = 5
PLAN = ServiceChangePlan(settling=3.0, count=1000, gap=0.005)


async def run(say: Say = print) -> BenchReport:
    """Takes about two minutes."""
    many = await _changes(say, MANY)
    few = await _changes(say, FEW)
    return BenchReport(
        "services",
        this_machine(),
        (
            *await _cold_sync(say),
            figure(f"agent-start-{MANY}x{ENDPOINTS}", many.start, "s"),
            *percentiles(f"one-change-{MANY}", many.alone, "ms", many.alone_floor),
            *percentiles(f"one-change-{MANY}-5ms-apart", many.apart, "ms", many.apart_floor),
            *percentiles(f"one-change-{FEW}", few.alone, "ms", few.alone_floor),
            *percentiles(f"one-change-{FEW}-5ms-apart", few.apart, "ms", few.apart_floor),
            figure("rss", many.rss, "MB"),
            figure("rss-peak", many.peak, "MB"),
        ),
    )


# ---- a cold sync


async def _cold_sync(say: Say) -> list[Figure]:
    desired = _program(MANY)
    flows = sum(len(part.flows) for part in desired.values())
    ours: list[ServiceColdSync] = []

    async def measure(socket: Path, number: int, theirs: str) -> None:
        ours.append(await in_new_process(service_runs.cold_sync, socket, MANY, ENDPOINTS))
        bridges.check_flows(ours[-1].flows, flows)
        say(f"{MANY} Services, round {number} of {ROUNDS}: {ours[-1].whole:.2f} s; {theirs}")

    floor = await bridges.alternate(desired, ROUNDS, measure)
    return [
        figure(
            f"cold-sync-{MANY}x{ENDPOINTS}",
            statistics.median(sync.whole for sync in ours),
            "s",
            statistics.median(floor.seconds),
        ),
        figure("cold-sync-serving", statistics.median(sync.serving for sync in ours), "s"),
        figure("cold-sync-working-out", statistics.median(sync.working_out for sync in ours), "s"),
        figure("cold-sync-encoding", statistics.median(sync.encoding for sync in ours), "s"),
        figure("flows", flows, "flows"),
        figure("groups", sum(len(part.groups) for part in desired.values()), "groups"),
    ]


def _program(services: int) -> Program:
    serving = Serving()
    for _ in serving.following(ClusterChange(states.cluster(services, ENDPOINTS)), states.SERVING_NODE):
        pass
    return program(NodeState(states.LOCAL_NODE, services=serving.services))


# ---- one change


async def _changes(say: Say, services: int) -> ServiceChangeTimes:
    async with bench_nodes.standing() as (config, namespace):
        say(f"an agent with {services} Services: {2 * PLAN.count} changes of one endpoint")
        return await in_new_process(service_runs.changes, config, namespace, services, ENDPOINTS, PLAN)
