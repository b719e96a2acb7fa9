"""Each table declares what its flows may match, set and lead to; every Program keeps to that."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from node_states import BOTH, in_user_space, node_states, over_sctp, serving_cluster, with_policies
from table_statements import unused, violations

from windlass.cli.render import state_of
from windlass.lab.scenarios.scenario_files import find
from windlass.model.nodes import HostConnection, NodeState, OperatingSystem, TrafficMode
from windlass.model.services import Endpoint, Protocol
from windlass.openflow.actions import Ct, Goto, Learn, LearnLoad, LearnMatch, Set, ToController
from windlass.openflow.fields import ETH_SRC, IPV4_DST
from windlass.pipeline.layout import (
    CLASSIFIER,
    CONNTRACK_COMMIT,
    L3_FORWARDING,
    LAYOUT,
    NODE_PORT_FILTER,
    SESSION_AFFINITY,
    UPLINK,
)
from windlass.pipeline.packet_marks import ENDPOINT, HAIRPIN
from windlass.pipeline.priorities import NORMAL
from windlass.pipeline.reserved import REJECT
from windlass.pipeline.tracking import CT_SERVICE, SNAT_ZONE
from windlass.program import Owner, OwnerKind, Part, program

SCENARIOS = Path(__file__).parents[2] / "scenarios"


@given(st.sampled_from(OperatingSystem).flatmap(node_states))
@settings(max_examples=60)
def test_flows_do_only_what_their_table_declares(state):
    assert list(violations(LAYOUT, program(state))) == []


@pytest.mark.parametrize("found", find(SCENARIOS), ids=lambda found: found.name)
def test_the_nodes_of_a_scenario_keep_to_the_declarations(found):
    for _, desired in found.read().states():
        for name in desired.nodes:
            assert list(violations(LAYOUT, program(state_of(desired, name)))) == []


def test_tables_declare_no_more_than_flows_need():
    states = [state for mode in TrafficMode for state in variants(serving_cluster(mode, *BOTH))]
    assert list(unused(LAYOUT, map(program, states))) == []


def variants(state: NodeState) -> list[NodeState]:
    """The same Node with each datapath, with a Service of very many endpoints, and with a connection of the host."""
    web = state.services["default/web"]
    of_host = HostConnection(Protocol.TCP, 0x8001, IPv4Address("192.0.2.1"), 6443)
    many = tuple(Endpoint.at(IPv4Address(0x0A000000 + number), 80) for number in range(600))
    crowded = structs.replace(web, ports=tuple(structs.replace(port, endpoints=many) for port in web.ports[:1]))
    return [
        replace(state, services={**state.services, web.key: crowded}),
        replace(state, node=replace(state.node, host_connections=(of_host,))),
        over_sctp(state),
        with_policies(state),
        with_policies(over_sctp(state)),
        in_user_space(state, Protocol.UDP),
        replace(state, node=replace(state.node, os=OperatingSystem.WINDOWS)),
    ]


@pytest.mark.parametrize(
    ("flow", "sentence"),
    [
        (UPLINK.flow(NORMAL, ETH_SRC(1)).drop(why="test"), "table Uplink, flow 200 (test): it matches eth_src"),
        (UPLINK.flow(NORMAL, HAIRPIN).drop(why="test"), "table Uplink, flow 200 (test): it matches hairpin"),
        (UPLINK.flow(150).drop(why="test"), "table Uplink, flow 150 (test): it has priority 150"),
        (
            L3_FORWARDING.flow(NORMAL).then(Set(IPV4_DST(1)), why="test"),
            "table L3Forwarding, flow 200 (test): it sets ip_dst",
        ),
        (
            CLASSIFIER.flow(NORMAL).then(Ct(SNAT_ZONE), why="test"),
            "table Classifier, flow 200 (test): it tracks connections in zone 65521",
        ),
        (
            CONNTRACK_COMMIT.flow(NORMAL).then(Ct(SNAT_ZONE, sets=(CT_SERVICE.set(),)), why="test"),
            "table ConntrackCommit, flow 200 (test): it sets ct-service",
        ),
        (
            NODE_PORT_FILTER.flow(NORMAL).then(Goto(L3_FORWARDING.number), why="test"),
            "table NodePortFilter, flow 200 (test): it leads to table L3Forwarding",
        ),
        (
            CLASSIFIER.flow(NORMAL).then(ToController(b"hello"), why="test"),
            "table Classifier, flow 200 (test): it gives the agent the reason b'hello'",
        ),
        (
            CLASSIFIER.flow(NORMAL).then(ToController(REJECT, meter=99), why="test"),
            "table Classifier, flow 200 (test): it uses meter 99",
        ),
        (
            CLASSIFIER.flow(NORMAL).then(
                Learn(
                    SESSION_AFFINITY.number,
                    NORMAL,
                    0,
                    (LearnMatch(ETH_SRC.whole, ETH_SRC.whole), LearnLoad(ENDPOINT.bits, 1)),
                ),
                why="test",
            ),
            "table SessionAffinity, flow 200 (test): it matches eth_src",
        ),
    ],
)
def test_a_flow_that_does_otherwise_is_named_with_its_table_and_field(flow, sentence):
    assert "\n".join(violations(LAYOUT, {Owner(OwnerKind.NODE, "node-1"): Part((flow,))})) == sentence
