"""What is accepted from a tunnel, what may be sent to its port, and which sources the wire may use, by flows alone."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest
from journeys import TUNNEL_PORT, UPLINK_PORT, Journeys, pod
from node_states import BOTH, node_address, outside, pod_address, small_cluster
from packets import Ends, Switch, decides

from windlass.model.families import Family, IPAddress
from windlass.model.nodes import TrafficMode, TunnelType
from windlass.openflow.conditions import tunnel_source
from windlass.openflow.fields import CT_MARK, ETH_DST, ETH_SRC, ETH_TYPE, IN_PORT, LOCAL_PORT, UDP, VLAN_VID, Field, mac
from windlass.pipeline.layout import L3_FORWARDING
from windlass.pipeline.packet_marks import SOURCE
from windlass.pipeline.tracking import CT_SERVICE
from windlass.program import OwnerKind, part, program

NODE_MAC = mac("02:00:0a:b0:19:0b")
POD_1 = pod(1)
TUNNELS = [mode for mode in TrafficMode if mode is not TrafficMode.NO_ENCAP]


def from_tunnel(outer: IPAddress, source: IPAddress, to: IPAddress) -> dict[Field, int]:
    return {**Ends(source, 1234, to, 53, UDP).fields, IN_PORT: TUNNEL_PORT, tunnel_source(outer).field: int(outer)}


@pytest.mark.parametrize("mode", TUNNELS)
@pytest.mark.parametrize("outer", BOTH)
@pytest.mark.parametrize("inner", BOTH)
def test_a_peer_sends_from_its_own_addresses_by_either_underlay(mode, outer, inner):
    switch = Switch(program(small_cluster(mode, *BOTH)))
    here, theirs, others = (pod_address(node, 1, inner) for node in (1, 3, 2))
    end = node_address(3, 26, outer)
    for source, to, passes in (
        (theirs, here, True),
        (node_address(3, 26, inner), here, True),
        (others, here, False),
        (here, here, False),
        (outside(1, inner), here, False),
        (theirs, others, False),
        (theirs, node_address(1, 25, inner), False),
    ):
        assert bool(switch.send(from_tunnel(end, source, to)).out) == passes, (source, to)
    assert not switch.send(from_tunnel(outside(1, outer), theirs, here)).out
    assert not switch.send(from_tunnel(end, theirs, here) | {VLAN_VID: 0x1064}).out


def test_packets_of_a_removed_peer_are_dropped():
    state = small_cluster(TrafficMode.ENCAP, *BOTH)
    gone = replace(state, peers={"node-2": state.peers["node-2"]})
    packet = from_tunnel(node_address(3, 26, Family.IPV4), *(pod_address(node, 1, Family.IPV4) for node in (3, 1)))
    assert Switch(program(state)).send(packet).out
    assert not Switch(program(gone)).send(packet).out
    others = [owner for owner in program(state) if owner.kind is not OwnerKind.PEER]
    assert all(part(state, owner) == part(gone, owner) for owner in others)


@pytest.mark.parametrize("kind", TunnelType)
@pytest.mark.parametrize("mode", TrafficMode)
@pytest.mark.parametrize("family", BOTH)
def test_nothing_leaves_the_pipeline_for_a_tunnels_port(mode, kind, family):
    """From every kind of port, and by every Service."""
    state = small_cluster(mode, *BOTH)
    state = replace(state, node=replace(state.node, tunnel=kind))
    flows = [flow for owned in program(state).values() for flow in owned.flows]
    for port, closed in ((kind.udp_port, mode is not TrafficMode.NO_ENCAP), (53, False)):
        for to in (node_address(1, 25, family), node_address(1, 27, family), node_address(2, 25, family)):
            for origin in SOURCE.names:
                for mark in (0, CT_SERVICE.value << CT_SERVICE.bits.low):
                    fields = Ends(outside(1, family), 1234, to, port, UDP).fields
                    fields |= {SOURCE.bits.field: origin, CT_MARK: mark, IN_PORT: 99}
                    decided = decides((flow for flow in flows if flow.table == L3_FORWARDING.number), fields)
                    if closed:
                        assert decided is not None
                        assert decided.actions == (), (to, origin, mark)
        reached = Journeys(state).send(
            POD_1, Ends(pod_address(1, 1, family), 1234, node_address(2, 25, family), port, UDP)
        )
        assert (reached.place is None) == closed


@pytest.mark.parametrize("mode", TrafficMode)
@pytest.mark.parametrize("family", BOTH)
def test_tunnelled_packets_go_straight_to_the_host(mode, family):
    state = small_cluster(mode, *BOTH)
    named = Ends(outside(1, family), 1234, node_address(1, 25, family), 6081, UDP)
    trip = Switch(program(state)).send({**named.fields, IN_PORT: UPLINK_PORT, ETH_DST: NODE_MAC})
    assert (trip.tracked, [port for port, _ in trip.out]) == (0, [LOCAL_PORT])


@pytest.mark.parametrize("mode", TrafficMode)
@pytest.mark.parametrize("family", BOTH)
def test_only_frames_for_this_node_are_accepted_from_the_uplink(mode, family):
    switch = Switch(program(small_cluster(mode, *BOTH)))
    to_node = Ends(outside(1, family), 1234, node_address(1, 25, family), 53, UDP)
    for to, out in (
        (NODE_MAC, [LOCAL_PORT]),
        (mac("ff:ff:ff:ff:ff:ff"), [LOCAL_PORT]),
        (mac("33:33:00:00:00:01"), [LOCAL_PORT]),
        (mac("02:00:0a:b0:19:0c"), []),
    ):
        frame = {IN_PORT: UPLINK_PORT, ETH_DST: to}
        assert [port for port, _ in switch.send({**to_node.fields, **frame}).out] == out
        assert [port for port, _ in switch.send({ETH_TYPE: 0x0806, **frame}).out] == out
        assert [port for port, _ in switch.send({**to_node.fields, **frame, VLAN_VID: 0x1064}).out] == out


@pytest.mark.parametrize("mode", TrafficMode)
@pytest.mark.parametrize("family", BOTH)
def test_packets_from_the_wire_with_local_sources_are_dropped(mode, family):
    switch = Switch(program(small_cluster(mode, *BOTH)))
    here = pod_address(1, 1, family)
    own = [pod_address(1, 2, family), node_address(1, 25, family)]
    tunnelled = [pod_address(3, 1, family)] if mode is TrafficMode.ENCAP else []
    for source in (*own, *tunnelled):
        named = Ends(source, 1234, here, 53, UDP)
        assert not switch.send({**named.fields, IN_PORT: UPLINK_PORT, ETH_DST: NODE_MAC}).out, source
    named = Ends(outside(1, family), 1234, here, 53, UDP)
    assert switch.send({**named.fields, IN_PORT: UPLINK_PORT, ETH_DST: NODE_MAC}).out


@pytest.mark.parametrize(
    "address", ["169.254.169.110", "169.254.169.112", "240.1.2.3", "fd00:169:254:169::111", "4000::1"]
)
def test_packets_of_pods_to_the_hosts_virtual_addresses_are_dropped(address):
    to = ip_address(address)
    net = Journeys(small_cluster(TrafficMode.ENCAP, *BOTH))
    assert net.send(POD_1, Ends(pod_address(1, 1, Family(to.version)), 1234, to, 30080)).dropped


def test_packets_of_pods_with_vlan_tags_are_dropped():
    state = small_cluster(TrafficMode.ENCAP, *BOTH)
    source, to = (pod_address(1, number, Family.IPV4) for number in (1, 2))
    frame = {IN_PORT: POD_1.port, ETH_SRC: mac(state.pods["c1"].mac)}
    honest = {**Ends(source, 1234, to, 53, UDP).fields, **frame}
    assert Switch(program(state)).send(honest).out
    assert not Switch(program(state)).send(honest | {VLAN_VID: 0x1000}).out
