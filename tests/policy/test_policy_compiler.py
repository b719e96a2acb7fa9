"""The compiler agrees with the oracle on every packet, and incremental changes give the same as a fresh start."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from policy_worlds import (
    OUTSIDE,
    OWN_NODE,
    PORTS,
    comings_and_goings,
    compiled,
    histories,
    machine_addresses,
    pod_key,
    tell,
    worlds,
)
from windlass.model.families import IPAddress
from windlass.model.policies import NO_CLASS, Direction
from windlass.model.port_sets import contains
from windlass.model.prefixes import prefix_of
from windlass.model.services import Protocol
from windlass.pipeline.policy_lookups import permitted_ports
from windlass.policy.compiler import DirectionCompiler, PolicyCompiler
from windlass.policy.node_policies import CompiledPolicies
from windlass.policy.oracle import PolicyPacket, judge_egress, judge_ingress
from windlass.policy.subjects import RuleOutcome
from windlass.policy.worlds import PolicyPod, PolicyWorld

TRAFFIC = (*(("TCP", port) for port in PORTS), ("UDP", 80), ("UDP", 81), ("SCTP", 80), ("ICMP", None))


def compiled_verdict(direction: DirectionCompiler, pod: PolicyPod, peer: IPAddress, traffic: tuple) -> bool:
    protocol, port = traffic
    allowed = direction.allowed(pod_key(pod), peer)
    return contains(allowed, Protocol[protocol] if port is not None else None, port)


@given(worlds)
@settings(max_examples=300)
def test_the_compiler_and_the_oracle_agree_on_every_packet(world: PolicyWorld):
    compiler = compiled(world)
    own_node = next(node for node in world.nodes if node.name == OWN_NODE)
    for pod in world.pods:
        for peer in (*machine_addresses(world), *OUTSIDE):
            own = next(address for address in pod.addresses if address.version == peer.version)
            for traffic in TRAFFIC:
                out = PolicyPacket(own, peer, *traffic)
                expected = judge_egress(world, out)
                assert compiled_verdict(compiler.egress, pod, peer, traffic) == expected.allowed, (out, expected)
                if peer in own_node.addresses:
                    continue  # the pipeline admits a Pod's own Node before it looks up policies
                into = PolicyPacket(peer, own, *traffic)
                expected = judge_ingress(world, into)
                assert compiled_verdict(compiler.ingress, pod, peer, traffic) == expected.allowed, (into, expected)


@given(worlds)
@settings(max_examples=150)
def test_the_lookups_of_the_switch_give_the_verdicts_of_the_oracle(world: PolicyWorld):
    compiler = PolicyCompiler(OWN_NODE)
    tell(compiler, PolicyWorld(), world)
    policies = CompiledPolicies(compiler)
    policies.settle()
    own_node = next(node for node in world.nodes if node.name == OWN_NODE)
    for pod in world.pods:
        for peer in (*machine_addresses(world), *OUTSIDE):
            own = next(address for address in pod.addresses if address.version == peer.version)
            out = permitted_ports(policies.policies, Direction.EGRESS, pod_key(pod), peer)
            into = permitted_ports(policies.policies, Direction.INGRESS, pod_key(pod), peer)
            for protocol, port in TRAFFIC:
                number = Protocol[protocol] if port is not None else None
                packet = PolicyPacket(own, peer, protocol, port)
                assert contains(out, number, port) == judge_egress(world, packet).allowed, packet
                if peer in own_node.addresses:
                    continue  # the pipeline admits a Pod's own Node before it looks up policies
                packet = PolicyPacket(peer, own, protocol, port)
                assert contains(into, number, port) == judge_ingress(world, packet).allowed, packet


@given(worlds)
@settings(max_examples=150)
def test_a_packet_is_counted_for_a_rule_that_the_oracle_names(world: PolicyWorld):
    compiler = compiled(world, counts_rules=True)
    for pod in world.pods:
        for peer in (*machine_addresses(world), *OUTSIDE):
            own = next(address for address in pod.addresses if address.version == peer.version)
            for protocol, port in TRAFFIC:
                judged = judge_egress(world, PolicyPacket(own, peer, protocol, port))
                counted = counting(compiler.egress, pod, peer, Protocol[protocol] if port is not None else None, port)
                if counted is None:
                    continue  # no policy selects the Pod, or it reaches itself
                assert counted.allows == judged.allowed
                # The rules of an unknown tier deny together, so no single rule is named.
                if counted.rule and "[" in counted.rule.name and any("[" in rule for rule in judged.rules):
                    assert counted.rule.name in judged.rules


def counting(
    direction: DirectionCompiler, pod: PolicyPod, peer: IPAddress, protocol: Protocol | None, port: int | None
) -> RuleOutcome | None:
    """What the switch counts such a packet for."""
    policy = direction.pods.get(pod_key(pod))
    if policy is None or peer in pod.addresses:
        return None
    by_rule = direction.verdicts[policy.subject].by_rule
    parts = by_rule.get(direction.peers.class_of(prefix_of(peer)).number, by_rule[NO_CLASS])
    (found,) = (one for one in parts if contains(one.ports, protocol, port))
    return found


@given(histories(4) | comings_and_goings(12), st.booleans())
@settings(max_examples=400)
def test_incremental_changes_give_the_same_tables_as_a_fresh_start(history: list[PolicyWorld], counts_rules: bool):
    compiler = PolicyCompiler(OWN_NODE, counts_rules=counts_rules)
    before = PolicyWorld()
    for after in history:
        tell(compiler, before, after)
        compiler.settle()
        before = after
    fresh = compiled(history[-1], counts_rules=counts_rules)
    for kept, anew in ((compiler.egress, fresh.egress), (compiler.ingress, fresh.ingress)):
        assert kept.pods == anew.pods
        assert kept.verdicts == anew.verdicts
        assert kept.entries == anew.entries


@given(histories(3), st.booleans())
@settings(max_examples=200)
def test_a_change_lists_everything_that_differs(history: list[PolicyWorld], counts_rules: bool):
    compiler = PolicyCompiler(OWN_NODE, counts_rules=counts_rules)
    before = PolicyWorld()
    for after in history:
        kept = [
            (
                dict(one.pods),
                {s: (v.default, dict(v.by_class), dict(v.by_rule)) for s, v in one.verdicts.items()},
                dict(one.entries),
            )
            for one in (compiler.egress, compiler.ingress)
        ]
        tell(compiler, before, after)
        changes = compiler.settle()
        before = after
        for (pods, verdicts, entries), one, change in zip(
            kept, (compiler.egress, compiler.ingress), changes.values(), strict=True
        ):
            now = {s: (v.default, v.by_class, v.by_rule) for s, v in one.verdicts.items()}
            assert {key for key, _ in pods.items() ^ one.pods.items()} <= change.pods
            assert {s for s in verdicts.keys() | now.keys() if verdicts.get(s) != now.get(s)} <= change.subjects
            assert {key for key, _ in entries.items() ^ one.entries.items()} <= set(change.entries)
