"""The measurements of `windlass bench policy`. Each runs in a new process, so that nothing else is in its memory."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from windlass.agent.agents import Agent
from windlass.agent.slices import run_in_slices
from windlass.agent.switching import ProgrammedSwitch
from windlass.bench import agent_runs, bare_agents, bare_changes
from windlass.bench import policy_states as states
from windlass.bench.bare_agents import Events
from windlass.bench.policy_states import Size
from windlass.bench.service_states import LOCAL_NODE
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import APIObject
from windlass.host.linux import namespaces
from windlass.lab.sandbox.labs import LabError
from windlass.model.nodes import NodeState
from windlass.nodes.config import Config
from windlass.nodes.policies import FollowedPolicies
from windlass.program import OwnerKind


class PolicyColdSync(Struct, frozen=True):
    flows: int  # that the switch holds afterwards
    whole: float  # seconds
    cpu: float  # seconds of CPU of this process
    compiling: float  # seconds of CPU before anything is sent
    installing: float  # seconds after that


class PolicyChangePlan(Struct, frozen=True):
    settling: float  # seconds after the start in which the agent checks everything again, and saves its state
    pods: int  # changes of each kind
    policies: int
    namespaces: int


class PolicyChangeTimes(Struct, frozen=True):
    """Milliseconds from each event until the switch has confirmed the result."""

    start: float  # seconds until everything was in the switch and the Node was ready
    pod_comes: list[float]
    pod_goes: list[float]
    one_flow: list[float]  # the floor of these two
    policy_comes: list[float]
    policy_goes: list[float]
    relabelled: list[float]
    cpu_of_pod: float  # the mean for one change; hardly depends on what else runs on the machine
    cpu_of_policy: float
    cpu_of_namespace: float
    restart: float  # seconds of a new agent with the same state
    sent_at_restart: int
    rss: float  # MB, with all Pods and policies


def cold_sync(socket: Path, size: Size) -> PolicyColdSync:
    """From decoded objects until the switch has confirmed all flows."""
    bare_agents.configure_process()
    return asyncio.run(_cold_sync(socket, size))


def changes(config: Config, namespace: str, size: Size, plan: PolicyChangePlan) -> PolicyChangeTimes:
    """A whole agent in the Node's namespace, with a source that reports one changed object at a time."""
    bare_agents.configure_process()
    with namespaces.entered(namespaces.path_of(namespace)):
        return asyncio.run(_changes(config, size, plan))


def memory_without(config: Config, namespace: str) -> float:
    """MB of an agent of a Node without Pods or policies."""
    bare_agents.configure_process()
    with namespaces.entered(namespaces.path_of(namespace)):
        return asyncio.run(_memory_without(config))


def state_of(cluster: Cluster, size: Size) -> NodeState:
    policies = FollowedPolicies(states.NODE)
    for _ in policies.following(cluster):
        pass
    pods = states.attached_pods(size)
    policies.settle(LOCAL_NODE, pods)
    return NodeState(LOCAL_NODE, pods=pods, policies=policies.policies)


# ---- the first sync


async def _cold_sync(socket: Path, size: Size) -> PolicyColdSync:
    cluster, pods = states.cluster(size), states.attached_pods(size)
    problems: list[object] = []
    policies = FollowedPolicies(states.NODE)
    switch = ProgrammedSwitch(str(socket), lambda _, found: problems.extend(found), problems.append)
    gc.collect()
    async with asyncio.TaskGroup() as tasks:
        began, cpu = time.perf_counter(), time.process_time()
        await run_in_slices(policies.following(cluster))
        policies.settle(LOCAL_NODE, pods)
        compiled, compiled_at = time.process_time(), time.perf_counter()
        switch.update(NodeState(LOCAL_NODE, pods=pods, policies=policies.policies), ())
        await switch.start(tasks)
        ended, used = time.perf_counter(), time.process_time()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    if problems or policies.problems:
        raise LabError(f"the figures are invalid, because there are problems: {[*problems, *policies.problems][0]}")
    return PolicyColdSync(switch.flow_count, ended - began, used - cpu, compiled - cpu, ended - compiled_at)


# ---- changes


async def _changes(config: Config, size: Size, plan: PolicyChangePlan) -> PolicyChangeTimes:
    events = Events(states.cluster(size))
    async with agent_runs.running(config, events) as (agent, start):
        timed = _TimedChanges(agent, events)
        await asyncio.sleep(plan.settling)
        cpu = [time.process_time()]
        came, went = await timed.come_and_go("peer_pods", [_newcomer(number, size) for number in range(plan.pods)])
        cpu.append(time.process_time())
        more = [states.policy(size.policies + number, size) for number in range(plan.policies)]
        policy_came, policy_went = await timed.come_and_go("network_policies", more)
        cpu.append(time.process_time())
        relabelled = [await timed.relabel(number) for number in range(2 * plan.namespaces)]
        cpu.append(time.process_time())
        memory = agent_runs.rss()
        installed = agent.view.switch.program.items()
        messages = bare_changes.flow_messages(
            (flow for owner, part in installed if owner.kind is OwnerKind.POLICY_PEER for flow in part.flows),
            plan.pods,
        )
        _check(agent, size)
    floor = bare_changes.alone(str(config.openflow_socket), messages)  # after the agent, which would revert changes
    async with agent_runs.running(config, Events(events.cluster)) as (again, restart):
        sent = again.view.switch.counters.changes_sent
    return PolicyChangeTimes(
        start=start,
        pod_comes=came,
        pod_goes=went,
        one_flow=floor,
        policy_comes=policy_came,
        policy_goes=policy_went,
        relabelled=relabelled,
        cpu_of_pod=1000 * (cpu[1] - cpu[0]) / (2 * plan.pods),
        cpu_of_policy=1000 * (cpu[2] - cpu[1]) / (2 * plan.policies),
        cpu_of_namespace=1000 * (cpu[3] - cpu[2]) / (2 * plan.namespaces),
        restart=restart,
        sent_at_restart=sent,
        rss=memory,
    )


def _check(agent: Agent, size: Size) -> None:
    if agent.view.problems:
        raise LabError(f"the figures are invalid, because the agent has problems: {agent.view.problems}")
    peers = sum(owner.kind is OwnerKind.POLICY_PEER for owner in agent.view.switch.program)
    if peers < size.namespaces * size.pods:
        raise LabError(f"the figures are invalid: the switch has flows for {peers} peers of policies only")


def _newcomer(number: int, size: Size) -> APIObject:
    """A Pod in the namespace that a rule of every policy names."""
    return states.other_pod(0, size.pods + number, size)


class _TimedChanges:
    def __init__(self, agent: Agent, events: Events) -> None:
        self._agent = agent
        self._events = events

    async def come_and_go(self, member: str, objects: Sequence[APIObject]) -> tuple[list[float], list[float]]:
        came = [await self._change(member, {one.key: one}) for one in objects]
        return came, [await self._change(member, {one.key: None}) for one in objects]

    async def relabel(self, number: int) -> float:
        """The namespace of the group loses the label that the rules ask for, or gets it back."""
        has_label = number % 2
        labels = {} if has_label else {"team": "none"}
        return await self._change("namespaces", {states.GROUP: states.namespace(states.GROUP, **labels)})

    async def _change(self, member: str, changed: Mapping[str, APIObject | None]) -> float:
        began = time.perf_counter()
        await bare_agents.confirmed(self._agent, self._events.publish(member, changed))
        return 1000 * (time.perf_counter() - began)


async def _memory_without(config: Config) -> float:
    async with agent_runs.running(config, Events(states.cluster(Size(1, 0, 0, 0, 0)))):
        return agent_runs.rss()
