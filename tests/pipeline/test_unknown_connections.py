"""TCP connections that the userspace datapath does not know any more: ovs-vswitchd was restarted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from journeys import TUNNEL, Journeys
from node_states import small_cluster
from packets import ACK, Ends
from service_cases import POD_1, Known

from windlass.model.families import Family, IPAddress
from windlass.model.nodes import TrafficMode
from windlass.model.policies import Direction, NodePolicies, PodPolicies, PodPolicy, PolicySubject
from windlass.model.port_sets import NO_PORTS
from windlass.openflow.fields import TCP
from windlass.program import program

AT = Known(Family.IPV4)
CLUSTER = small_cluster(TrafficMode.ENCAP, Family.IPV4)
STATE = replace(CLUSTER, node=replace(CLUSTER.node, userspace=True))
FAR_GATEWAY = next(peer for peer in STATE.peers.values() if AT.far_pod in peer.pod_cidrs[Family.IPV4]).gateway(
    Family.IPV4
)
PORTS = [
    pytest.param(AT.far_pod, 40000, 8080, id="from a Pod"),
    pytest.param(AT.far_pod, 40000, 50051, id="from a Pod, to a high port"),
    pytest.param(FAR_GATEWAY, 2000, 8080, id="from a NodePort, to a low port"),
    pytest.param(FAR_GATEWAY, 2000, 50051, id="from a NodePort, to a high port"),
]


def isolating(direction: Direction) -> NodePolicies:
    """web-1 may not open connections, or nothing may connect to it."""
    subjects = {PolicySubject.key_of(direction, 1): PolicySubject(direction, 1, NO_PORTS, {})}
    return NodePolicies(pods={"default/web-1": PodPolicies(**{direction.value: PodPolicy(1)})}, subjects=subjects)


def after_a_restart(policies: NodePolicies, asked: Ends) -> Journeys:
    journeys = Journeys(replace(STATE, policies=policies))
    journeys.send(TUNNEL, asked, ACK)
    return journeys


@pytest.mark.parametrize(("client", "port", "server_port"), PORTS)
def test_replies_of_a_server_that_may_open_no_connections_pass(client: IPAddress, port: int, server_port: int):
    asked = Ends(client, port, AT.pod_1, server_port, TCP)
    journeys = after_a_restart(isolating(Direction.EGRESS), asked)
    assert journeys.send(POD_1, asked.back, ACK).place == TUNNEL


@pytest.mark.parametrize(("client", "port", "server_port"), PORTS)
def test_a_later_policy_cuts_both_directions(client: IPAddress, port: int, server_port: int):
    asked = Ends(client, port, AT.pod_1, server_port, TCP)
    journeys = after_a_restart(NodePolicies(), asked)
    assert journeys.send(POD_1, asked.back, ACK).place == TUNNEL
    journeys.switch.hold(program(replace(STATE, policies=isolating(Direction.INGRESS))))
    assert journeys.send(TUNNEL, asked, ACK).place is None
    assert journeys.send(POD_1, asked.back, ACK).place is None


@pytest.mark.parametrize("port", [80, 8080])
def test_a_server_that_sends_first_does_not_become_the_client(port: int):
    asked = Ends(AT.far_pod, 40000, AT.pod_1, port, TCP)
    journeys = Journeys(STATE)
    assert journeys.send(POD_1, asked.back, ACK).place == TUNNEL
    assert journeys.send(TUNNEL, asked, ACK).place == POD_1
    assert journeys.send(POD_1, asked.back, ACK).place == TUNNEL
    journeys.switch.hold(program(replace(STATE, policies=isolating(Direction.INGRESS))))
    assert journeys.send(TUNNEL, asked, ACK).place is None
    assert journeys.send(POD_1, asked.back, ACK).place is None
