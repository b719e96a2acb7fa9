"""How many packets the rules of policies have decided about, from the counters of the switch; for the local API.

The counters are read only when a client asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from windlass.agent.views import AgentView
from windlass.model.nodes import LocalNode, NodeState
from windlass.model.policies import NO_CLASS, Direction, PolicySubject
from windlass.openflow.wire.flows import Key, encode
from windlass.pipeline.policies import TABLES, flows_by_rule, subject_flows
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.counters import PacketCount, PolicyCounter, counter_of, peers_by_class


async def counters(view: AgentView, pod: str | None) -> list[PolicyCounter]:
    """The counters of one Pod or of all that are not 0, ordered by Pod."""
    found: list[PolicyCounter] = []
    for direction in Direction:
        tables = TABLES[direction]
        packets = await view.switch.requests.packets_by_flow(tables.verdict.number)
        if view.state and any(subject.by_rule for subject in view.state.policies.subjects.values()):
            packets |= await view.switch.requests.packets_by_flow(tables.ports.number)
        compiler, state = view.switch.denials.compiler, view.state
        if compiler is not None and state is not None:
            found += counters_of(state, compiler, direction, packets, pod)
    return sorted(found, key=lambda one: (one.pods, one.direction, -one.packets))


def counters_of(
    state: NodeState, compiler: PolicyCompiler, direction: Direction, packets: Mapping[Key, int], pod: str | None = None
) -> Iterator[PolicyCounter]:
    """Without Pods and peers that the compiler no longer has: it reads a change before the state has it."""
    pods, peers = _pods_by_subject(compiler, direction), peers_by_class(compiler, direction)
    known = {NO_CLASS, *compiler.of(direction).peers.classes}
    for subject in state.policies.subjects.values():
        if (sharing := pods.get(subject.number)) and pod in {None, *sharing}:
            for count in _counts(state.node, subject, packets):
                if count.peer_class in known:
                    yield counter_of(compiler, subject, sharing, peers.get(count.peer_class, ()), count)


def _counts(node: LocalNode, subject: PolicySubject, packets: Mapping[Key, int]) -> Iterator[PacketCount]:
    """Those that are not 0."""
    for peer_class, flow in zip((NO_CLASS, *subject.verdicts), subject_flows(subject), strict=True):
        if count := packets.get(encode(flow).key, 0):
            of_rules = flows_by_rule(node, subject, peer_class) if peer_class in subject.by_rule else ()
            by_rule = [sum(packets.get(encode(one).key, 0) for one in flows) for flows in of_rules]
            yield PacketCount(peer_class, count, by_rule)


def _pods_by_subject(compiler: PolicyCompiler, direction: Direction) -> dict[int, list[str]]:
    pods: dict[int, list[str]] = {}
    for key, policy in sorted(compiler.of(direction).pods.items()):
        pods.setdefault(policy.subject, []).append(key)
    return pods
