"""How many packets the rules of policies have decided about, from the counters of the switch; for the local API.

The counters are read only when a client asks for them.
"""

from __future__ import annotations

from windlass.agent.views import AgentView
from windlass.model.policies import NO_CLASS, Direction
from windlass.openflow.wire.flows import encode
from windlass.pipeline.policies import TABLES, subject_flows
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.counters import PolicyCounter, counter_of


async def counters(view: AgentView, pod: str | None) -> list[PolicyCounter]:
    """Of one Pod or of all: the counters that are not 0, ordered by Pod."""
    found: list[PolicyCounter] = []
    for direction in Direction:
        packets = await view.switch.packets_by_flow(TABLES[direction].verdict.number)
        compiler, state = view.switch.denials.compiler, view.state
        if compiler is None or state is None:
            continue
        pods = _pods_by_subject(compiler, direction)
        for subject in state.policies.subjects.values():
            # No Pods: the subject is of the other direction, or its policies are just being changed.
            if (sharing := pods.get(subject.number)) and pod in {None, *sharing}:
                counted = (packets.get(encode(flow).key, 0) for flow in subject_flows(subject))
                for number, count in zip((NO_CLASS, *subject.verdicts), counted, strict=True):
                    if count:
                        found.append(counter_of(compiler, subject, sharing, number, count))
    return sorted(found, key=lambda one: (one.pods, one.direction, -one.packets))


def _pods_by_subject(compiler: PolicyCompiler, direction: Direction) -> dict[int, list[str]]:
    pods: dict[int, list[str]] = {}
    for key, policy in sorted(compiler.of(direction).pods.items()):
        pods.setdefault(policy.subject, []).append(key)
    return pods
