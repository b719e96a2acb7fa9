"""Which packets the agent gets to reject, and which meter limits them."""

from __future__ import annotations

from node_states import BOTH, small_cluster

from windlass.model.families import Family
from windlass.model.nodes import NodeState, OperatingSystem, TrafficMode
from windlass.openflow.actions import ToController
from windlass.pipeline.layout import SERVICE_REJECT
from windlass.program import program


def limits(state: NodeState) -> tuple[set[int], set[int]]:
    """The meters that flows use, and those that are declared in the Program."""
    parts = program(state).values()
    sent = [
        action for part in parts for flow in part.flows for action in flow.actions if isinstance(action, ToController)
    ]
    return {action.meter for action in sent}, {meter.identity for part in parts for meter in part.meters}


def test_every_packet_to_the_agent_is_limited_by_an_existing_meter():
    named, there = limits(small_cluster(TrafficMode.ENCAP, *BOTH))
    assert named == there
    assert 0 not in named


def test_windows_has_no_meters():
    assert limits(small_cluster(TrafficMode.ENCAP, Family.IPV4, os=OperatingSystem.WINDOWS)) == ({0}, set())


def test_the_flows_of_service_reject():
    """One for each share of the Pods by address, one for the host, one for all others."""
    parts = program(small_cluster(TrafficMode.ENCAP, Family.IPV4)).values()
    flows = [flow for part in parts for flow in part.flows if flow.table == SERVICE_REJECT.number]
    assert len(flows) == 16 + 2 + 1  # and the miss of the table, which no IP packet meets
    assert len({flow.match for flow in flows}) == len(flows)
