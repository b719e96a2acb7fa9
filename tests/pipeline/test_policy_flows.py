"""The flows of policies agree with the oracle: packets through the model of a switch that holds the Program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packets import ACK, FRAGMENT, SYN, SYN_ACK, Ends, Switch, decides
from program_flows import changed_owners

from policy_worlds import OUTSIDE, OWN_NODE, PORTS, pod_key, tell, worlds
from windlass.model.families import Family, IPAddress
from windlass.model.nodes import (
    AttachedPod,
    LocalNode,
    NodeState,
    OperatingSystem,
    Peer,
    TrafficMode,
    TunnelType,
    mac_for,
)
from windlass.model.policies import DENY_UNTIL_KNOWN, Direction, NodePolicies, digest_of
from windlass.model.port_sets import ports, union
from windlass.model.services import Protocol
from windlass.openflow.conditions import ip, tunnel_source
from windlass.openflow.fields import (
    CT_MARK,
    CT_STATE,
    ETH_DST,
    ETH_SRC,
    ETH_TYPE,
    IN_PORT,
    IP_FRAG,
    IP_PROTO,
    IPV6_FRAGMENT,
    SCTP,
    TCP,
    TCP_FLAGS,
    UDP,
    mac,
)
from windlass.openflow.ofctl import flow_text
from windlass.pipeline.declarations import onward
from windlass.pipeline.layout import INGRESS_PORTS
from windlass.pipeline.packet_marks import PORT_SET
from windlass.pipeline.policies import TABLES, counted_denials, flows, masks, port_flows
from windlass.pipeline.reserved import VIRTUAL_MAC
from windlass.pipeline.tracking import CT_DENIED
from windlass.policy.compiler import PolicyCompiler
from windlass.policy.node_policies import CompiledPolicies
from windlass.policy.oracle import PolicyPacket, judge
from windlass.policy.worlds import PolicyPod, PolicyWorld
from windlass.program import NOTHING, Owner, OwnerKind, part, program

TUNNEL, GATEWAY, UPLINK = 1, 2, 3
UPLINK_MAC = "02:00:00:00:00:01"
CLIENT_PORT = 40000
PROTOCOLS = {"TCP": TCP, "UDP": UDP}
SETS = int(os.environ.get("WINDLASS_POLICY_SETS", "120"))  # random sets of policies through the model of the switch

NODE = LocalNode(
    name=OWN_NODE,
    mode=TrafficMode.NO_ENCAP,
    tunnel=TunnelType.GENEVE,
    os=OperatingSystem.LINUX,
    addresses={Family.IPV4: ip_interface("192.168.0.1/24"), Family.IPV6: ip_interface("2001:db8::1/64")},
    pod_cidrs={Family.IPV4: ip_network("10.1.0.0/24"), Family.IPV6: ip_network("fd00:1::/64")},
    uplink_mac=UPLINK_MAC,
)

PEER = Peer(
    "node-2",
    {Family.IPV4: ip_address("192.168.0.2"), Family.IPV6: ip_address("2001:db8::2")},
    {Family.IPV4: ip_network("10.2.0.0/24"), Family.IPV6: ip_network("fd00:2::/64")},
)


def attached(pod: PolicyPod) -> AttachedPod:
    number = 10 + int(pod.name.removeprefix("pod-"))
    return AttachedPod(pod.namespace, pod.name, pod.name, pod.name, number, mac_for(pod.addresses[0]), pod.addresses)


def own_pods(world: PolicyWorld) -> list[PolicyPod]:
    return [pod for pod in world.pods if pod.node == OWN_NODE]


def state_of(world: PolicyWorld, policies: NodePolicies, mode: TrafficMode = NODE.mode) -> NodeState:
    pods = {pod.name: attached(pod) for pod in own_pods(world)}
    return NodeState(replace(NODE, mode=mode), peers={PEER.name: PEER}, pods=pods, policies=policies)


def settled(compiled: CompiledPolicies) -> NodePolicies:
    compiled.settle()
    return compiled.policies


def compiled_state(world: PolicyWorld, *, counts_rules: bool = False, mode: TrafficMode = NODE.mode) -> NodeState:
    compiler = PolicyCompiler(OWN_NODE, counts_rules=counts_rules)
    tell(compiler, PolicyWorld(), world)
    return state_of(world, settled(CompiledPolicies(compiler)), mode)


def on_two_nodes(world: PolicyWorld) -> PolicyWorld:
    """One of the three Pods is on the other Node."""
    addresses = tuple(cidr.network_address + 4 for cidr in PEER.pod_cidrs.values())
    moved = (replace(pod, node=PEER.name, addresses=addresses) for pod in world.pods if pod.name == "pod-2")
    return replace(world, pods=(*(pod for pod in world.pods if pod.name != "pod-2"), *moved))


def enters(world: PolicyWorld, named: Ends, mode: TrafficMode) -> dict:
    """The fields of the packet that say where it comes from: a Pod, the host, the tunnel, or the wire."""
    for pod in map(attached, own_pods(world)):
        if named.source in pod.addresses:
            return {IN_PORT: pod.ofport, ETH_SRC: mac(pod.mac), ETH_DST: VIRTUAL_MAC}
    if any(named.source == address.ip for address in NODE.addresses.values()):
        return {IN_PORT: GATEWAY, ETH_SRC: mac(NODE.gateway_mac), ETH_DST: VIRTUAL_MAC}
    if mode is TrafficMode.ENCAP and any(named.source in cidr for cidr in PEER.pod_cidrs.values()):
        outer = PEER.addresses[Family.IPV4]
        return {IN_PORT: TUNNEL, tunnel_source(outer).field: int(outer), ETH_DST: VIRTUAL_MAC}
    return {IN_PORT: UPLINK, ETH_SRC: 2, ETH_DST: mac(UPLINK_MAC)}


def passes(switch: Switch, world: PolicyWorld, named: Ends, flags: int = SYN, mode: TrafficMode = NODE.mode) -> bool:
    trip = switch.send({**named.fields, TCP_FLAGS: flags, **enters(world, named, mode)})
    return bool(trip.out)


def questions(world: PolicyWorld) -> Iterator[tuple[IPAddress, IPAddress]]:
    """Source and destination. Not a Pod and itself: that takes a Service. One of them is a Pod of this Node."""
    pods = [address for pod in own_pods(world) for address in pod.addresses]
    remote = [address for pod in world.pods if pod.node != OWN_NODE for address in pod.addresses]
    others = [*remote, *(address for node in world.nodes for address in node.addresses), *OUTSIDE]
    for one in pods:
        for other in (*pods, *others):
            if one.version == other.version and not any({one, other} <= set(pod.addresses) for pod in world.pods):
                yield one, other
                if other not in pods:
                    yield other, one


@given(
    worlds | worlds.map(on_two_nodes),
    st.sampled_from(PORTS),
    st.sampled_from(sorted(PROTOCOLS)),
    st.sampled_from(TrafficMode),
    st.booleans(),
)
@settings(max_examples=SETS)
def test_a_packet_passes_the_switch_where_the_oracle_allows_it(
    world: PolicyWorld, port: int, protocol: str, mode: TrafficMode, counts_rules: bool
):
    flows = program(compiled_state(world, counts_rules=counts_rules, mode=mode))
    own = [address for pod in own_pods(world) for address in pod.addresses]
    for source, destination in questions(world):
        if mode is not TrafficMode.NO_ENCAP and source in (*OUTSIDE, *PEER.addresses.values()):
            continue  # no such packet comes from the wire to the address of a Pod
        switch = Switch(flows)
        expected = judge(world, PolicyPacket(source, destination, protocol, port))
        # The policies of a Pod are enforced on its Node.
        allowed = (source not in own or expected.egress.allowed) and (
            destination not in own or expected.ingress.allowed
        )
        named = Ends(source, CLIENT_PORT, destination, port, PROTOCOLS[protocol])
        assert passes(switch, world, named, mode=mode) == allowed, (named, expected)
        if allowed and destination in own:
            assert passes(switch, world, named.back, SYN_ACK, mode), f"reply to {named}"


def test_the_policies_of_a_pod_come_before_the_flows_that_forward_its_packets():
    """An empty switch gets the flows one by one in this order, and must not be open meanwhile."""
    world = PolicyWorld(pods=(PolicyPod("x", "pod-0", OWN_NODE, (ip_interface("10.1.0.9").ip,)),))
    state = state_of(world, NodePolicies(pods={pod_key(world.pods[0]): DENY_UNTIL_KNOWN}))
    policing = {table.number for of_direction in TABLES.values() for table in of_direction}
    of_pod = [flow.table in policing for flow in part(state, Owner(OwnerKind.POD, "pod-0")).flows]
    assert of_pod == sorted(of_pod, reverse=True)
    assert {*of_pod} == {True, False}


@given(st.lists(worlds, min_size=2, max_size=3), st.booleans())
@settings(max_examples=60)
def test_the_flows_of_changed_owners_are_all_that_changes(history: list[PolicyWorld], counts_rules: bool):
    compiler = PolicyCompiler(OWN_NODE, counts_rules=counts_rules)
    compiled = CompiledPolicies(compiler)
    before, state = PolicyWorld(), NodeState(NODE)
    kept = dict(program(state))
    for after in history:
        tell(compiler, before, after)
        later = state_of(after, settled(compiled))
        for owner in changed_owners(state, later):
            owned = part(later, owner)
            if owned == NOTHING:
                kept.pop(owner, None)
            else:
                kept[owner] = owned
        before, state = after, later
    assert kept == program(state)
    fresh = compiled_state(history[-1], counts_rules=counts_rules)
    flows = {flow for owned in kept.values() for flow in owned.flows}
    assert flows == {flow for owned in program(fresh).values() for flow in owned.flows}


def test_a_pod_whose_labels_are_not_known_yet_may_do_nothing_but_answer_its_node():
    world = PolicyWorld(pods=(PolicyPod("x", "pod-0", OWN_NODE, (ip_interface("10.1.0.9").ip,)),))
    policies = NodePolicies(pods={pod_key(world.pods[0]): DENY_UNTIL_KNOWN})
    switch = Switch(program(state_of(world, policies)))
    pod, host, outside = world.pods[0].addresses[0], NODE.addresses[Family.IPV4].ip, OUTSIDE[0]
    assert not passes(switch, world, Ends(pod, CLIENT_PORT, outside, 80))
    assert not passes(switch, world, Ends(outside, CLIENT_PORT, pod, 80))
    assert passes(switch, world, probe := Ends(host, CLIENT_PORT, pod, 80))
    assert passes(switch, world, probe.back, SYN_ACK)


def test_a_new_denial_cuts_an_established_connection_in_both_directions_and_an_allowance_brings_it_back():
    client, server = (PolicyPod("x", f"pod-{n}", OWN_NODE, (ip_interface(f"10.1.0.{n + 8}").ip,)) for n in (0, 1))
    world = PolicyWorld(pods=(client, server), namespaces={"x": {}})
    named = Ends(client.addresses[0], CLIENT_PORT, server.addresses[0], 80)
    open_state = state_of(world, NodePolicies())
    closed = replace(open_state, policies=NodePolicies(pods={pod_key(server): DENY_UNTIL_KNOWN}))
    switch = Switch(program(open_state))
    assert passes(switch, world, named)
    assert passes(switch, world, named.back, SYN_ACK)
    switch.hold(program(closed))
    assert not passes(switch, world, named, ACK)
    assert not passes(switch, world, named.back, ACK), "the server may not go on, either"
    switch.hold(program(open_state))
    assert passes(switch, world, named, ACK)
    assert passes(switch, world, named.back, ACK)


def test_flows_for_fragments_name_their_protocol_which_a_switch_asks_for():
    rendered = map(flow_text, port_flows(NODE, Direction.INGRESS, ports(Protocol.TCP, 80, 81)))
    of_fragments = [text for text in rendered if "ip_frag" in text]
    assert len(of_fragments) == 6
    assert all(",tcp," in text or ",tcp6," in text or ",ip_proto=44," in text for text in of_fragments)


UNTRACKED, FIRST, ESTABLISHED = 0, 0x21, 0x22  # of ct_state
ICMP = 1


@pytest.mark.parametrize(
    ("family", "protocol", "state", "denied_before", "passes"),
    [
        (Family.IPV4, UDP, ESTABLISHED, False, True),
        (Family.IPV4, UDP, ESTABLISHED, True, False),
        (Family.IPV4, UDP, FIRST, False, False),
        (Family.IPV4, TCP, ESTABLISHED, False, True),
        (Family.IPV4, TCP, FIRST, False, True),
        (Family.IPV4, SCTP, UNTRACKED, False, False),
        (Family.IPV4, ICMP, ESTABLISHED, False, False),
        (Family.IPV6, IPV6_FRAGMENT, ESTABLISHED, False, True),
        (Family.IPV6, IPV6_FRAGMENT, ESTABLISHED, True, False),
        (Family.IPV6, IPV6_FRAGMENT, FIRST, False, False),
    ],
    ids=[
        "established",
        "denied by a later policy",
        "shows no port, and begins a connection",
        "of a protocol of which all ports are allowed",
        "that begins a connection of that protocol",
        "that connection tracking does not know",
        "of a protocol without ports, which is not allowed",
        "established, and shows no protocol",
        "denied by a later policy, and shows no protocol",
        "shows no protocol, and begins a connection",
    ],
)
def test_fragments_pass_only_if_their_port_does_not_matter_or_an_earlier_packet_showed_it(
    family: Family, protocol: int, state: int, denied_before: bool, passes: bool
):
    allowed = union((ports(Protocol.TCP), ports(Protocol.UDP, 0, 999), ports(Protocol.SCTP, 0, 4999)))
    fragment = {ETH_TYPE: ip(family).value, IP_PROTO: protocol, IP_FRAG: FRAGMENT, CT_STATE: state}
    fragment |= {CT_MARK: CT_DENIED.set().term.value if denied_before else 0}
    fragment |= {term.field: term.value for term in PORT_SET.is_(digest_of(allowed))}
    flow = decides(port_flows(NODE, Direction.INGRESS, allowed), fragment)
    assert (flow is not None and flow.actions == (onward(INGRESS_PORTS),)) == passes


@pytest.mark.parametrize("system", OperatingSystem)
def test_denied_packets_of_new_connections_are_counted_on_each_datapath(system: OperatingSystem):
    node = replace(NODE, os=system)
    packet = {ETH_TYPE: ip(Family.IPV4).value, IP_PROTO: TCP, CT_STATE: 0x21, CT_MARK: 0}  # new and tracked
    flow = decides([*flows(node)], packet)
    assert flow is not None
    assert flow in counted_denials(node).values()


@pytest.mark.parametrize(("first", "last"), [(1, 65535), (80, 80), (80, 90), (1, 1), (32768, 65535), (1000, 1999)])
def test_masks_cover_a_range_of_ports_exactly(first: int, last: int):
    covered = [port for value, mask in masks(first, last) for port in range(value, value + (0xFFFF & ~mask) + 1)]
    assert covered == [*range(first, last + 1)]
