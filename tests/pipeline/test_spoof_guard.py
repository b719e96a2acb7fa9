"""A Pod sends from its own addresses or not at all: MAC, IPv4, IPv6, ARP and Neighbour Discovery."""

from __future__ import annotations

from ipaddress import IPv6Network

from hypothesis import given, settings
from hypothesis import strategies as st
from node_states import BOTH, node_states, small_cluster
from packets import Packet, way
from program_flows import flows_of

from windlass.model.families import Family, family_of
from windlass.model.nodes import AttachedPod, NodeState, TrafficMode
from windlass.openflow.fields import (
    ARP_OP,
    ARP_SHA,
    ARP_SPA,
    ARP_TPA,
    ETH_SRC,
    ETH_TYPE,
    ICMPV6,
    ICMPV6_TYPE,
    IN_PORT,
    IP_PROTO,
    IPV4_DST,
    IPV4_SRC,
    IPV6_DST,
    IPV6_SRC,
    ND_SLL,
    ND_TARGET,
    TCP,
    Field,
    mac,
)
from windlass.pipeline.layout import CLASSIFIER, SPOOF_GUARD
from windlass.program import program

LINK_LOCAL = IPv6Network("fe80::/10")
EVIL_MAC = mac("0a:58:66:66:66:66")
STRANGERS = {Family.IPV4: 0xC6336407, Family.IPV6: int(IPv6Network("2001:db8:bad::/64")[7])}


@given(state=node_states().filter(lambda state: state.pods), data=st.data())
@settings(max_examples=30)
def test_only_packets_with_the_pods_own_addresses_pass(state, data):
    guards = [flow for _, flow in flows_of(program(state)) if flow.table in {CLASSIFIER.number, SPOOF_GUARD.number}]
    pod = data.draw(st.sampled_from(list(state.pods.values())))
    for packet in data.draw(st.lists(sent_by(pod, state), min_size=8, max_size=12)):
        assert way(guards, packet) == ["Classifier", "SpoofGuard", *expected(packet, pod, state)]


def expected(packet: Packet, pod: AttachedPod, state: NodeState) -> list[str]:
    """The rule, stated independently of the flows: the table after the spoof guard, or None for a drop."""
    own = {family_of(address): int(address) for address in pod.addresses if family_of(address) in state.node.families}
    if packet[ETH_SRC] != mac(pod.mac):
        return []
    if ARP_OP in packet:
        asks = (packet[ARP_OP], packet[ARP_SHA]) == (1, mac(pod.mac))
        as_itself = packet[ARP_SPA] == own.get(Family.IPV4)
        announces = packet[ARP_TPA] == own.get(Family.IPV4)
        return ["ARPResponder"] if asks and as_itself and not announces else []
    if ICMPV6_TYPE in packet and 133 <= packet[ICMPV6_TYPE] <= 137:
        asks = packet[ICMPV6_TYPE] == 135 and packet[ND_SLL] == mac(pod.mac)
        link_local = packet[IPV6_SRC] >> 118 == int(LINK_LOCAL.network_address) >> 118
        as_itself = Family.IPV6 in own and (packet[IPV6_SRC] == own[Family.IPV6] or link_local)
        announces = packet[ND_TARGET] == own.get(Family.IPV6)
        return ["ARPResponder"] if asks and as_itself and not announces else []
    for family, field in ((Family.IPV4, IPV4_SRC), (Family.IPV6, IPV6_SRC)):
        if field in packet and packet[field] == own.get(family):
            return ["UnSNAT"]
    return []


@st.composite
def sent_by(draw: st.DrawFn, pod: AttachedPod, state: NodeState) -> dict[Field, int]:
    """What a Pod may try: a valid packet in which up to two fields are not its own."""
    packet = draw(honest(pod))
    macs = st.sampled_from([mac(pod.mac), mac(state.node.gateway_mac), EVIL_MAC])
    everybody = [address for other in state.pods.values() for address in other.addresses]
    everybody += [state.node.gateway(family) for family in state.node.families]

    def addresses(family: Family) -> st.SearchStrategy[int]:
        known = [int(address) for address in everybody if family_of(address) is family]
        return st.sampled_from([*known, STRANGERS[family], 0])

    link_local = st.integers(1, 9).map(lambda host: int(LINK_LOCAL[host]))
    lies = {
        ETH_SRC: macs,
        ARP_SHA: macs,
        ND_SLL: macs,
        ARP_OP: st.integers(1, 2),
        ICMPV6_TYPE: st.integers(133, 137),
        IPV4_SRC: addresses(Family.IPV4),
        ARP_SPA: addresses(Family.IPV4),
        ARP_TPA: addresses(Family.IPV4),
        IPV6_SRC: addresses(Family.IPV6) | link_local,
        ND_TARGET: addresses(Family.IPV6),
    }
    possible = sorted((field for field in lies if field in packet), key=lambda field: field.order)
    for field in draw(st.lists(st.sampled_from(possible), max_size=2, unique=True)):
        packet[field] = draw(lies[field])
    return packet


@st.composite
def honest(draw: st.DrawFn, pod: AttachedPod) -> dict[Field, int]:
    """What the Pod's own network stack sends, in a family in which the Pod has an address."""
    address = draw(st.sampled_from(pod.addresses))
    packet = {IN_PORT: pod.ofport, ETH_SRC: mac(pod.mac)}
    if family_of(address) is Family.IPV4:
        asks = {
            ETH_TYPE: 0x0806,
            ARP_OP: 1,
            ARP_SHA: mac(pod.mac),
            ARP_SPA: int(address),
            ARP_TPA: STRANGERS[Family.IPV4],
        }
        talks = {ETH_TYPE: 0x0800, IP_PROTO: TCP, IPV4_SRC: int(address), IPV4_DST: STRANGERS[Family.IPV4]}
    else:
        ipv6 = {ETH_TYPE: 0x86DD, IPV6_SRC: int(address), IPV6_DST: STRANGERS[Family.IPV6]}
        nd = {IP_PROTO: ICMPV6, ICMPV6_TYPE: 135, ND_SLL: mac(pod.mac), ND_TARGET: STRANGERS[Family.IPV6]}
        asks, talks = ipv6 | nd, ipv6 | {IP_PROTO: TCP}
    return packet | draw(st.sampled_from([asks, talks, {ETH_TYPE: 0x88CC}]))


def test_packets_from_a_port_without_a_pod_are_dropped():
    flows = [flow for _, flow in flows_of(program(small_cluster(TrafficMode.ENCAP, *BOTH)))]
    assert way(flows, {IN_PORT: 99, ETH_SRC: EVIL_MAC, ETH_TYPE: 0x0800, IPV4_SRC: STRANGERS[Family.IPV4]}) == [
        "Classifier"
    ]
