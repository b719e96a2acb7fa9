"""Connectivity judges all traffic at once, and agrees with the oracle on each packet and its rules."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import product

from hypothesis import given

from policy_worlds import OUTSIDE, machine_addresses, worlds
from windlass.model.port_sets import ALL_PORTS, contains, union
from windlass.model.services import Protocol
from windlass.policy.connectivity import Connectivity, End, EndKind, Relation, Verdict, relations
from windlass.policy.oracle import PolicyPacket, judge
from windlass.policy.worlds import PolicyWorld

PROTOCOLS = {"TCP": Protocol.TCP, "UDP": Protocol.UDP, "SCTP": Protocol.SCTP, "ICMP": None}


PACKETS = (("TCP", 80), ("TCP", 82), ("UDP", 79), ("ICMP", None))


def packets(source: End, destination: End):
    for protocol, port in PACKETS:
        yield PolicyPacket(source.address, destination.address, protocol, port)


def pairs(ends):
    """Pairs of one family that policies affect."""
    for source, destination in product(ends, ends):
        is_judged = EndKind.POD in {source.kind, destination.kind}
        if is_judged and source.address.version == destination.address.version:
            yield source, destination


def verdict_on(verdicts: tuple[Verdict, ...], packet: PolicyPacket) -> Verdict:
    [found] = [v for v in verdicts if contains(v.ports, PROTOCOLS[packet.protocol], packet.port)]
    return found


@given(worlds)
def test_verdicts_agree_with_the_oracle_on_each_packet(world: PolicyWorld):
    connectivity = Connectivity(world)
    ends = [*connectivity.ends, *map(connectivity.end_at, OUTSIDE)]
    for source, destination in pairs(ends):
        verdicts = connectivity.between(source, destination)
        assert union(v.ports for v in verdicts) == ALL_PORTS
        for packet in packets(source, destination):
            assert verdict_on(verdicts, packet).allowed == judge(world, packet).allowed, packet


@given(worlds)
def test_replicas_of_a_workload_are_judged_as_two_pods(world: PolicyWorld):
    """The addresses of the two are in the same networks of the rules."""
    one, other, *_ = world.pods
    two = replace(world, pods=(one, replace(one, name="replica", addresses=other.addresses)))
    connectivity = Connectivity(replace(world, pods=(replace(one, is_workload=True),)))
    for end, address in zip(connectivity.machines({4, 6})[:2], other.addresses, strict=True):
        assert relations(end, end) == (Relation.ITSELF, Relation.REPLICA)
        verdicts = connectivity.between(end, end, Relation.REPLICA)
        for protocol, port in PACKETS:
            packet = PolicyPacket(end.address, address, protocol, port)
            assert verdict_on(verdicts, packet).allowed == judge(two, packet).allowed, packet


@given(worlds)
def test_verdicts_name_the_rules_that_the_oracle_names(world: PolicyWorld):
    connectivity = Connectivity(world)
    for source, destination in pairs(connectivity.ends):
        verdicts = connectivity.between(source, destination)
        for packet in packets(source, destination):
            judged, verdict = judge(world, packet).egress, verdict_on(verdicts, packet)
            if any("[" in rule for rule in judged.rules) and (verdict.allowed or not judged.allowed):
                said = set(verdict.egress)
                # The rules of an unknown tier deny together, so no single rule is named.
                assert said == set(judged.rules) or not any("[" in rule for rule in said)


@given(worlds)
def test_the_address_of_a_network_is_in_no_longer_prefix(world: PolicyWorld):
    connectivity = Connectivity(world)
    networks = [end for end in connectivity.ends if end.kind is EndKind.NETWORK]
    machines = set(machine_addresses(world))
    assert not machines & {end.address for end in networks}
    for end in networks:
        longest = max(
            (ip_network(other.name) for other in networks if end.address in ip_network(other.name)), key=len_of
        )
        assert str(longest) == end.name


def len_of(network: IPv4Network | IPv6Network) -> int:
    return network.prefixlen
