"""`windlass bench policy`: 1,000 policies of ten rules over 10,000 Pods, 50 of them on this Node.

The floor of the first sync is `ovs-ofctl` loading the same flows from a text file. A second one is the messages of the
agent, encoded beforehand, over a plain socket: then nothing is read, compiled or encoded. CPU times hardly depend on
what else runs on the machine. Changes are measured with a whole agent on a Node of its own; each is one object. The
floor of a Pod that comes is its one flow, encoded beforehand, over a plain socket: what the switch and the machine take
themselves.
"""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

from windlass.bench import bare_changes, bench_nodes, bridges, policy_datapaths, policy_runs, policy_states
from windlass.bench.agent_runs import in_new_process
from windlass.bench.policy_runs import PolicyChangePlan, PolicyChangeTimes, PolicyColdSync
from windlass.bench.policy_states import Size
from windlass.bench.reports import BenchReport, Figure, figure, percentiles, this_machine
from windlass.lab.sandbox.progress import Say
from windlass.program import program

SIZE = Size(namespaces=100, pods=100, local=50, policies=1_000, rules=10)
ROUNDS = 9  # the floor varies by a tenth
DATAPATH_FLOWS, PURGED_FLOWS = 500, 10_000
PLAN = PolicyChangePlan(settling=3.0, pods=500, policies=100, namespaces=20)


async def run(say: Say = print) -> BenchReport:
    """Takes about two minutes."""
    first = await _cold_sync(say)
    changes, without = await _changes(say)
    say(f"{DATAPATH_FLOWS} datapath flows: look-ups beside conjunctive matches")
    datapath = await policy_datapaths.measure(SIZE, DATAPATH_FLOWS, PURGED_FLOWS)
    rules = SIZE.policies
    return BenchReport(
        "policy",
        this_machine(),
        (
            *first,
            figure("agent-start", changes.start, "s"),
            *percentiles(f"pod-comes-{rules}-rules", changes.pod_comes, "ms", changes.one_flow),
            *percentiles(f"pod-goes-{rules}-rules", changes.pod_goes, "ms", changes.one_flow),
            *percentiles(f"policy-of-{SIZE.rules}-rules-comes", changes.policy_comes, "ms"),
            *percentiles(f"policy-of-{SIZE.rules}-rules-goes", changes.policy_goes, "ms"),
            *percentiles(f"namespace-of-{SIZE.pods}-relabelled", changes.relabelled, "ms"),
            figure("agent-cpu-of-a-pod", changes.cpu_of_pod, "ms"),
            figure("agent-cpu-of-a-policy", changes.cpu_of_policy, "ms"),
            figure("agent-cpu-of-a-namespace", changes.cpu_of_namespace, "ms"),
            figure("restart-same-state", changes.restart, "s"),
            figure("restart-same-state-changes-sent", changes.sent_at_restart, "messages"),
            figure(f"revalidation-cpu-{DATAPATH_FLOWS}-flows", datapath.lookups, "ms"),
            figure(f"revalidation-cpu-{DATAPATH_FLOWS}-flows-conjunctions", datapath.conjunctions, "ms"),
            figure(f"purge-cpu-{PURGED_FLOWS}-flows", datapath.purge, "ms"),
            figure("datapath-flow-cpu-after-purge", datapath.again, "ms"),
            figure("rss", changes.rss, "MB"),
            figure("rss-more-than-without", changes.rss - without, "MB"),
        ),
    )


async def _cold_sync(say: Say) -> list[Figure]:
    desired = program(policy_runs.state_of(policy_states.cluster(SIZE), SIZE))
    # Several subjects may ask for the same one.
    flows = list(dict.fromkeys(flow for part in desired.values() for flow in part.flows))
    ours: list[PolicyColdSync] = []
    sending: list[float] = []

    async def measure(socket: Path, number: int, theirs: str) -> None:
        sending.append(await asyncio.to_thread(bare_changes.together, str(socket), flows))
        await bridges.empty(socket)
        ours.append(await in_new_process(policy_runs.cold_sync, socket, SIZE))
        bridges.check_flows(ours[-1].flows, len(flows))
        say(
            f"{SIZE.policies} policies, round {number} of {ROUNDS}: {ours[-1].whole:.2f} s "
            f"({ours[-1].cpu:.2f} s of CPU); {theirs}, encoded messages {sending[-1]:.2f} s"
        )

    floor = await bridges.alternate(desired, ROUNDS, measure)
    whole = statistics.median(one.whole for one in ours)
    return [
        figure("first-sync", whole, "s", statistics.median(floor.seconds)),
        figure(
            "first-sync-installing",
            statistics.median(one.installing for one in ours),
            "s",
            statistics.median(floor.seconds),
        ),
        figure("first-sync-beside-encoded-messages", whole, "s", statistics.median(sending)),
        figure("first-sync-cpu", statistics.median(one.cpu for one in ours), "s"),
        figure("first-sync-compiling-cpu", statistics.median(one.compiling for one in ours), "s"),
        figure("flows", len(flows), "flows"),
    ]


async def _changes(say: Say) -> tuple[PolicyChangeTimes, float]:
    async with bench_nodes.standing() as (config, namespace):
        without = await in_new_process(policy_runs.memory_without, config, namespace)
        say(f"an agent with {SIZE.policies} policies: changes of one Pod, one policy, one namespace")
        return await in_new_process(policy_runs.changes, config, namespace, SIZE, PLAN), without
