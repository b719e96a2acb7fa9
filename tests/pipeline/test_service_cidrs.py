"""Packets of Pods to ClusterIPs that the switch does not translate: they must not return as packets of the Node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_network

import pytest
from journeys import BEHIND_THE_GATEWAY, Journeys
from node_states import cluster_ip, service_port, small_cluster
from service_cases import POD_1, POD_2, Known, elsewhere, here, on_cluster_ip

from windlass.model.families import Family
from windlass.model.nodes import NodeState, OperatingSystem, TrafficMode
from windlass.model.policies import DENY_UNTIL_KNOWN, NodePolicies
from windlass.model.services import Frontend, Reach, ServedService
from windlass.program import program

SYSTEMS = [(OperatingSystem.LINUX, Family.IPV4), (OperatingSystem.LINUX, Family.IPV6)]
SYSTEMS += [(OperatingSystem.WINDOWS, Family.IPV4)]


def web(at: Known) -> ServedService:
    """Its endpoint is a Pod on this Node."""
    port = service_port(1, (on_cluster_ip(at),), (here(at.pod_2),), at.family)
    return ServedService("default", "web", (port,), (at.service,))


def detour(at: Known) -> ServedService:
    """Its endpoint is the ClusterIP of the other Service."""
    frontend = Frontend(Reach.CLUSTER_IP, cluster_ip(66, at.family), 80, local_only=False)
    port = service_port(2, (frontend,), (elsewhere(at.service, 80),), at.family)
    return ServedService("default", "detour", (port,), ())


def node_with(
    at: Known, os: OperatingSystem, services: Iterable[ServedService], *, is_range_known: bool = True
) -> NodeState:
    state = small_cluster(TrafficMode.ENCAP, at.family, os=os)
    node = replace(state.node, service_cidrs=BEHIND_THE_GATEWAY[at.family][:is_range_known])
    return replace(state, node=node, services={service.key: service for service in services})


@pytest.mark.parametrize("is_range_known", [True, False])
@pytest.mark.parametrize(("os", "family"), SYSTEMS)
def test_a_client_that_policies_deny_reaches_no_pod_by_a_service_in_front_of_its_service(
    os: OperatingSystem, family: Family, is_range_known: bool
):
    at = Known(family)
    denied = NodePolicies(pods={"default/web-2": DENY_UNTIL_KNOWN})
    state = node_with(at, os, (web(at), detour(at)), is_range_known=is_range_known)
    journeys = Journeys(replace(state, policies=denied))
    for address in (at.service, cluster_ip(66, family)):
        assert journeys.send(POD_1, at.asks(POD_1, address, 80)).place is None, address


@pytest.mark.parametrize(("os", "family"), SYSTEMS)
def test_a_client_that_connects_before_its_node_has_the_service_is_served_later_as_itself(
    os: OperatingSystem, family: Family
):
    at = Known(family)
    journeys, asked = Journeys(node_with(at, os, ())), at.asks(POD_1, at.service, 80)
    assert journeys.send(POD_1, asked).dropped
    journeys.switch.hold(program(node_with(at, os, (web(at),))))
    assert (served := journeys.converse(POD_1, asked)).place == POD_2
    assert served.client == at.pod_1


def test_the_ranges_of_cluster_ips_of_other_families_and_of_the_pods_do_no_harm():
    state = small_cluster(TrafficMode.ENCAP, Family.IPV4)
    pods = state.node.pod_cidrs[Family.IPV4]
    at, overlapping = Known(Family.IPV4), replace(state.node, service_cidrs=(ip_network("fd00:10:96::/64"), pods))
    journeys = Journeys(replace(state, node=overlapping))
    assert journeys.converse(POD_1, at.asks(POD_1, at.pod_2, 80)).place == POD_2
