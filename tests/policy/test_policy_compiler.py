"""The compiler agrees with the oracle on every packet, and incremental changes give the same as a fresh start."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from policy_worlds import OUTSIDE, OWN_NODE, PORTS, compiled, machine_addresses, pod_key, tell, worlds
from windlass.host.forwarded_clients import admitted_ports
from windlass.model.families import IPAddress
from windlass.model.port_sets import contains
from windlass.model.services import Protocol
from windlass.policy.compiler import DirectionCompiler, PolicyCompiler
from windlass.policy.node_policies import CompiledPolicies
from windlass.policy.oracle import PolicyPacket, PolicyPod, PolicyWorld, judge_egress, judge_ingress

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
def test_clients_of_forwarded_connections_are_judged_as_by_the_oracle(world: PolicyWorld):
    compiler = PolicyCompiler(OWN_NODE)
    tell(compiler, PolicyWorld(), world)
    policies = CompiledPolicies(compiler)
    policies.settle()
    own_node = next(node for node in world.nodes if node.name == OWN_NODE)
    for pod in world.pods:
        for client in (*machine_addresses(world), *OUTSIDE):
            if client in (*pod.addresses, *own_node.addresses):
                continue  # neither is a client from outside
            own = next(address for address in pod.addresses if address.version == client.version)
            admitted = admitted_ports(policies.policies, pod_key(pod), client)
            for protocol, port in TRAFFIC:
                packet = PolicyPacket(client, own, protocol, port)
                allowed = contains(admitted, Protocol[protocol] if port is not None else None, port)
                assert allowed == judge_ingress(world, packet).allowed, packet


@given(st.lists(worlds, min_size=2, max_size=4))
@settings(max_examples=100)
def test_incremental_changes_give_the_same_tables_as_a_fresh_start(history: list[PolicyWorld]):
    compiler = PolicyCompiler(OWN_NODE)
    before = PolicyWorld()
    for after in history:
        tell(compiler, before, after)
        compiler.settle()
        before = after
    fresh = compiled(history[-1])
    for kept, anew in ((compiler.egress, fresh.egress), (compiler.ingress, fresh.ingress)):
        assert kept.pods == anew.pods
        assert kept.verdicts == anew.verdicts
        assert kept.entries == anew.entries


@given(st.lists(worlds, min_size=2, max_size=3))
@settings(max_examples=100)
def test_a_change_lists_everything_that_differs(history: list[PolicyWorld]):
    compiler = PolicyCompiler(OWN_NODE)
    before = PolicyWorld()
    for after in history:
        kept = [
            (dict(one.pods), {s: (v.default, dict(v.by_class)) for s, v in one.verdicts.items()}, dict(one.entries))
            for one in (compiler.egress, compiler.ingress)
        ]
        tell(compiler, before, after)
        changes = compiler.settle()
        before = after
        for (pods, verdicts, entries), one, change in zip(
            kept, (compiler.egress, compiler.ingress), changes.values(), strict=True
        ):
            now = {s: (v.default, v.by_class) for s, v in one.verdicts.items()}
            assert {key for key, _ in pods.items() ^ one.pods.items()} <= change.pods
            assert {s for s in verdicts.keys() | now.keys() if verdicts.get(s) != now.get(s)} <= change.subjects
            assert {key for key, _ in entries.items() ^ one.entries.items()} <= change.entries
