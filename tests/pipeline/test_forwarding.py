"""Which tables a packet passes, and by which port it leaves, as far as no connection state is needed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from ipaddress import ip_address

import pytest
from node_states import BOTH, small_cluster
from packets import decides, decisions, way
from program_flows import flows_of

from windlass.model.families import Family
from windlass.model.nodes import TrafficMode
from windlass.openflow.actions import Output, Set
from windlass.openflow.fields import (
    CT_MARK,
    CT_STATE,
    ETH_DST,
    ETH_TYPE,
    IN_PORT,
    IP_FRAG,
    IP_PROTO,
    IPV4_DST,
    IPV6_DST,
    LOCAL_PORT,
    TCP,
    TCP_DST,
    TUN_IPV4_DST,
    Field,
    mac,
)
from windlass.openflow.flows import Flow
from windlass.pipeline.layout import CONNTRACK_COMMIT, CONNTRACK_STATE, L3_FORWARDING
from windlass.pipeline.packet_marks import FROM_POD, FROM_TUNNEL, FROM_UPLINK, OUT_PORT, SNAT, SOURCE
from windlass.pipeline.reserved import GATEWAY_SNAT_PORTS
from windlass.pipeline.routing import is_direct, tunnel_end
from windlass.pipeline.snat_ports import RESERVED, UNRESERVED
from windlass.program import program

TUNNEL, GATEWAY, UPLINK = 1, 2, 3
NEW, ESTABLISHED, INVALID = 0x21, 0x22, 0x30
FROM_WIRE = {IN_PORT: UPLINK, ETH_DST: mac("02:00:0a:b0:19:0b")}


@cache
def flows(mode: TrafficMode) -> list[Flow]:
    return [flow for _, flow in flows_of(program(small_cluster(mode, *BOTH)))]


def to(address: str, **more: int) -> dict[Field, int]:
    where = ip_address(address)
    if where.version == 4:
        return {ETH_TYPE: 0x0800, IPV4_DST: int(where), IP_PROTO: TCP, IP_FRAG: 0}
    return {ETH_TYPE: 0x86DD, IPV6_DST: int(where), IP_PROTO: TCP, IP_FRAG: 0}


def forwarded(mode: TrafficMode, address: str, source: int = FROM_POD.value) -> Flow | None:
    table = [flow for flow in flows(mode) if flow.table == L3_FORWARDING.number]
    return decides(table, to(address) | {SOURCE.bits.field: source})


def out_port(flow: Flow | None) -> int | None:
    """The port that the flow chooses; None if it drops the packet."""
    for action in flow.actions if flow else ():
        if isinstance(action, Set) and action.term.field is OUT_PORT.bits.field:
            return action.term.value
    return None


NEAR, FAR = "172.16.2.9", "172.16.3.9"
NEAR_6, FAR_6 = "fd00:172:16:2::9", "fd00:172:16:3::9"


@pytest.mark.parametrize(
    ("mode", "address", "port"),
    [
        (TrafficMode.ENCAP, NEAR, TUNNEL),
        (TrafficMode.ENCAP, FAR, TUNNEL),
        (TrafficMode.ENCAP, NEAR_6, TUNNEL),
        (TrafficMode.NO_ENCAP, NEAR, GATEWAY),
        (TrafficMode.NO_ENCAP, FAR, GATEWAY),
        (TrafficMode.NO_ENCAP, FAR_6, GATEWAY),
        (TrafficMode.HYBRID, NEAR, GATEWAY),
        (TrafficMode.HYBRID, FAR, TUNNEL),
        (TrafficMode.HYBRID, NEAR_6, GATEWAY),
        (TrafficMode.HYBRID, FAR_6, TUNNEL),
    ],
)
def test_how_a_peers_pods_are_reached(mode, address, port):
    assert out_port(forwarded(mode, address)) == port


@pytest.mark.parametrize("mode", TrafficMode)
@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("172.16.1.10", 11),  # a local Pod
        ("fd00:172:16:1::b", 12),
        ("172.16.1.1", GATEWAY),  # the gateway
        ("10.176.25.11", GATEWAY),  # the Node IP
        ("10.176.27.11", GATEWAY),  # its second NIC
        ("fd00:10:176:25::11", GATEWAY),
        ("172.16.1.250", None),  # no Pod
        ("fd00:172:16:1::250", None),
        ("224.0.0.251", None),  # multicast, broadcast
        ("ff02::fb", None),
        ("255.255.255.255", None),
    ],
)
def test_where_an_address_is(mode, address, port):
    flow = forwarded(mode, address)
    assert out_port(flow) == port
    assert flow is not None
    assert SNAT.set() not in flow.actions


@pytest.mark.parametrize("mode", TrafficMode)
@pytest.mark.parametrize("address", ["192.0.2.80", "10.176.25.12", "2001:db8:192::80", "fd00:10:176:26::13"])
def test_only_pods_leave_as_their_node(mode, address):
    """Other Nodes are outside of the Pod network as well."""
    flow = forwarded(mode, address)
    assert flow is not None
    assert SNAT.set() in flow.actions
    assert out_port(flow) == GATEWAY
    for source in (FROM_TUNNEL, FROM_UPLINK):
        other = forwarded(mode, address, source.value)
        assert other is not None
        assert other.actions == ()


def test_a_packet_that_needs_snat_never_leaves_untranslated():
    """Untracked packets cannot be translated."""
    table = [flow for flow in flows(TrafficMode.ENCAP) if flow.table == CONNTRACK_COMMIT.number]
    snat = {SNAT.bits.field: SNAT.bits(1).value}
    untracked = decides(table, to("192.0.2.80") | snat | {CT_STATE: 0})
    assert untracked is not None
    assert untracked.actions == ()


@pytest.mark.parametrize("mode", TrafficMode)
def test_packets_of_the_host_leave_by_the_wire_unchanged(mode):
    out = decides(flows_in(mode, 0), to("192.0.2.80") | {IN_PORT: LOCAL_PORT})
    assert out is not None
    assert out.actions == (Output(UPLINK),)


@pytest.mark.parametrize("mode", TrafficMode)
@pytest.mark.parametrize("port", [22, 6443, 10250, 0x2FFF, 0x7000, 30080, 0xC000, 60999])
def test_connections_of_the_host_are_not_tracked(mode, port):
    """On ports that no Service has."""
    packet = to("10.176.25.11") | FROM_WIRE | {TCP_DST: port}
    assert way(flows(mode), packet) == ["Classifier", "Uplink", "NodePortFilter"]


@pytest.mark.parametrize("port", [*RESERVED.pods, *UNRESERVED.pods])
def test_possible_replies_to_pods_are_looked_up(port):
    packet = to("10.176.25.11") | FROM_WIRE | {TCP_DST: port}
    assert way(flows(TrafficMode.ENCAP), packet) == ["Classifier", "Uplink", "UnSNAT", "Conntrack"]


@pytest.mark.parametrize("port", [*RESERVED.services, *UNRESERVED.services])
def test_possible_replies_to_clients_of_services_are_looked_up(port):
    """In the zone of translated sources, before the zone of all connections."""
    packet = to("10.176.25.11") | FROM_WIRE | {TCP_DST: port}
    assert way(flows(TrafficMode.ENCAP), packet) == ["Classifier", "Uplink", "UnSNAT"]


@pytest.mark.parametrize("state", [NEW, ESTABLISHED, INVALID])
def test_packets_that_are_no_reply_go_to_the_host(state):
    """Also in a state that is dropped elsewhere: the host's connections are not tracked, so any state is possible."""
    packet = to("10.176.25.11") | {SOURCE.bits.field: FROM_UPLINK.value, CT_STATE: state, CT_MARK: 0}
    *_, (_, flow) = decisions(flows(TrafficMode.ENCAP), packet, CONNTRACK_STATE.number)
    assert flow is not None
    assert flow.actions == (Output(LOCAL_PORT),)


def test_snat_ports_of_the_gateway_are_many_and_not_ephemeral():
    """200 connections a second to a NodePort use 24,000 ports in the two minutes for which a kernel keeps them."""
    value, mask = GATEWAY_SNAT_PORTS.mask
    ports = range(GATEWAY_SNAT_PORTS[0], GATEWAY_SNAT_PORTS[1] + 1)
    assert len(ports) > 120 * 200
    assert all(port & mask == value for port in ports)
    assert not any(port & mask == value for port in range(32768, 65536))


@pytest.mark.parametrize(
    ("mode", "met"),
    [
        (TrafficMode.ENCAP, ["Classifier", "Uplink"]),  # the host decides what to do with it
        (TrafficMode.NO_ENCAP, ["Classifier", "Uplink", "UnSNAT", "Conntrack"]),
        (TrafficMode.HYBRID, ["Classifier", "Uplink", "UnSNAT", "Conntrack"]),
    ],
)
def test_packets_from_the_wire_to_pods(mode, met):
    """Design note 003: straight to the Pod, if Pod traffic is not tunnelled."""
    assert way(flows(mode), to("172.16.1.10") | FROM_WIRE | {TCP_DST: 80}) == met


def test_one_tunnel_carries_both_families():
    state = small_cluster(TrafficMode.ENCAP, *BOTH)
    flow = forwarded(TrafficMode.ENCAP, FAR_6)
    assert flow is not None
    assert Set(TUN_IPV4_DST(int(ip_address("10.176.26.13")))) in flow.actions
    only_ipv6 = replace(state.peers["node-3"], addresses={Family.IPV6: ip_address("fd00:10:176:26::13")})
    assert tunnel_end(state.node, only_ipv6) == ip_address("fd00:10:176:26::13")


def test_hybrid_without_an_address_of_the_family_is_a_tunnel():
    state = small_cluster(TrafficMode.HYBRID, *BOTH)
    near = replace(state.peers["node-2"], addresses={Family.IPV4: ip_address("10.176.25.12")})
    assert is_direct(state.node, near, Family.IPV4)
    assert not is_direct(state.node, near, Family.IPV6)


def flows_in(mode: TrafficMode, table: int) -> list[Flow]:
    return [flow for flow in flows(mode) if flow.table == table]
