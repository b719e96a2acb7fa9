"""The SNAT ports of translated connections, which nothing else on the Node uses."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_states import local_node, small_cluster

from windlass.model.families import Family
from windlass.model.nodes import HostConnection, TrafficMode
from windlass.model.services import Protocol
from windlass.openflow.actions import Ct
from windlass.openflow.flows import Flow
from windlass.pipeline.declarations import PortRange
from windlass.pipeline.layout import CONNTRACK_COMMIT
from windlass.pipeline.snat_ports import (
    HOST_RESERVED,
    RESERVED,
    UNRESERVED,
    SnatPorts,
    SnatRange,
    free_of_host_ports,
    largest_gap,
)
from windlass.pipeline.tracking import POD_ZONE, SNAT_ZONE
from windlass.program import program

NODE_PORTS = range(30000, 32768)
KUBERNETES_PORTS = {2379, 2380, 4789, 6081, 6443, 9100, 10249, 10250, 10256, 10257, 10259}
API_SERVER = ip_address("10.176.25.1")
V4, V6 = Family.IPV4, Family.IPV6


def members(*ranges: SnatRange) -> set[int]:
    return {port for first, last in ranges for port in range(first, last + 1)}


def matched(ranges: tuple[PortRange, ...]) -> set[int]:
    return {port for port in range(65536) for value, mask in (ports.mask for ports in ranges) if port & mask == value}


@pytest.mark.parametrize("ports", [UNRESERVED, RESERVED], ids=["unreserved", "reserved"])
def test_replies_to_every_translated_port_are_looked_up(ports: SnatPorts):
    assert members(ports.pods) <= matched(ports.pod_replies)
    assert members(ports.services) <= matched(ports.service_replies)


def test_without_a_reservation_only_ports_are_used_that_linux_does_not_give_to_the_host():
    used = matched((*UNRESERVED.pod_replies, *UNRESERVED.service_replies))
    assert not used & ({*range(32768, 61000), *NODE_PORTS} | KUBERNETES_PORTS)


def test_looked_up_ports_are_reserved_and_no_server_ports():
    used = matched((*RESERVED.pod_replies, *RESERVED.service_replies))
    assert used == members(*HOST_RESERVED)
    assert not used & ({*NODE_PORTS, *range(49152, 65536)} | KUBERNETES_PORTS)


def test_connections_from_before_the_reservation_keep_their_ports_to_themselves():
    """Both kinds are tracked in zones of their own, so no port may be of both, at any time of an upgrade."""
    assert not matched(RESERVED.pod_replies) & matched(RESERVED.service_replies)
    assert members(UNRESERVED.pods) <= matched(RESERVED.pod_replies)
    assert members(UNRESERVED.services) <= matched(RESERVED.service_replies)


def test_the_pools_are_larger_where_the_host_leaves_the_ports_alone():
    sizes = [len(members(ports)) for ports in (RESERVED.pods, RESERVED.services)]
    assert sizes == [12_288, 16_384]


@given(st.integers(1, 1000), st.integers(0, 200), st.data())
def test_the_largest_gap_is_free_and_no_other_is_larger(first: int, length: int, data: st.DataObject):
    ports = (first, first + length)
    taken = data.draw(st.sets(st.integers(*ports)))
    gap = members(largest_gap(ports, taken))
    if taken >= members(ports):
        assert gap == members(ports)
        return
    assert gap <= members(ports) - taken
    free = "".join("x" if port in taken else "." for port in range(first, first + length + 1))
    assert len(gap) == max(map(len, free.split("x")))


def commits(*held: HostConnection) -> list[Flow]:
    state = small_cluster(TrafficMode.ENCAP, V4, V6)
    state = replace(state, node=replace(state.node, host_connections=held))
    flows = [flow for part in program(state).values() for flow in part.flows]
    return [flow for flow in flows if flow.table == CONNTRACK_COMMIT.number and "the host itself" in flow.why]


@pytest.mark.parametrize(("port", "zone"), [(RESERVED.pods[0] + 100, POD_ZONE), (RESERVED.services[0] + 5, SNAT_ZONE)])
def test_no_translated_connection_gets_the_port_of_a_connection_of_the_host(port: int, zone: int):
    (flow,) = commits(HostConnection(Protocol.TCP, port, API_SERVER, 6443))
    (action,) = [action for action in flow.actions if isinstance(action, Ct)]
    assert action.zone == zone
    assert action.nat is not None
    assert action.nat.ports is not None
    assert port not in members(action.nat.ports)


def test_a_connection_of_the_host_from_another_port_changes_nothing():
    assert commits(HostConnection(Protocol.TCP, 50_000, API_SERVER, 6443)) == []


def test_a_socket_that_may_send_anywhere_keeps_its_port_in_both_families():
    ports, unconnected = RESERVED.services, HostConnection(Protocol.UDP, 40_000)
    node = replace(
        local_node(TrafficMode.ENCAP, V4, V6),
        host_connections=(unconnected, HostConnection(Protocol.UDP, 36_000, API_SERVER, 53)),
    )
    assert [(above, free) for above, _, free in free_of_host_ports(node, V6, ports)] == [(1, (40_001, ports[1]))]
    assert [(above, free) for above, _, free in free_of_host_ports(node, V4, ports)] == [
        (1, (40_001, ports[1])),
        (2, (40_001, ports[1])),
    ]
