"""Which open connections policies deny."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from node_states import BOTH, small_cluster

from windlass.model.nodes import NodeState, TrafficMode
from windlass.model.policies import Direction, NodePolicies, PeerEntry, PodPolicies, PodPolicy, PolicySubject
from windlass.model.port_sets import ALL_PORTS, NO_PORTS, ports
from windlass.model.services import Protocol
from windlass.openflow.conntrack_dumps import TrackedConnection
from windlass.pipeline.denied_connections import is_marked, judge

WEB, OTHER = "172.16.1.10", "172.16.1.11"  # Pods of this Node: only web-1 has policies
FRIEND, STRANGER, OUTSIDE = "172.16.2.10", "172.16.2.11", "192.0.2.1"
GATEWAY, NODE_IP = "172.16.1.1", "10.176.25.11"
DENIED, SERVICE = 1 << 7, 1 << 5
DNS = ports(Protocol.UDP, 53, 53)
FRIENDS = 7


def policed(*, itself: tuple[tuple[tuple[int, int, int], object], ...] = ()) -> NodeState:
    """web-1 may exchange UDP 53 with its friend, and nothing else."""
    subjects = {
        PolicySubject.key_of(direction, 1): PolicySubject(direction, 1, NO_PORTS, {FRIENDS: DNS})
        for direction in Direction
    }
    friend = PeerEntry((4, 0xAC10020A, 32), FRIENDS, FRIENDS)
    of_web = PodPolicies(PodPolicy(1, itself), PodPolicy(1, itself))
    policies = NodePolicies(pods={"default/web-1": of_web}, subjects=subjects, peers={f"{FRIEND}/32": friend})
    return replace(small_cluster(TrafficMode.ENCAP, *BOTH), policies=policies)


def connection(client: str, server: str, port: int = 53, mark: int = 0) -> TrackedConnection:
    return TrackedConnection(client, 40000, server, port, server, port, client, 40000, mark)


def is_denied(state: NodeState, one: TrackedConnection) -> bool:
    ((judged, denied),) = judge(state, [one])
    assert judged is one
    return denied


@pytest.mark.parametrize(
    ("client", "server", "port", "expected"),
    [
        (WEB, FRIEND, 53, False),
        (WEB, FRIEND, 54, True),
        (WEB, STRANGER, 53, True),
        (WEB, OUTSIDE, 53, True),
        (FRIEND, WEB, 53, False),
        (FRIEND, WEB, 54, True),
        (STRANGER, WEB, 53, True),
        (OTHER, WEB, 53, True),
        (WEB, OTHER, 53, True),
        (OTHER, STRANGER, 53, False),
        (STRANGER, OTHER, 53, False),
        (GATEWAY, WEB, 53, False),  # the own Node
        (NODE_IP, WEB, 53, False),
    ],
)
def test_a_connection_is_judged_by_the_policies_of_both_ends(
    client: str, server: str, port: int, expected: bool
) -> None:
    assert is_denied(policed(), connection(client, server, port)) is expected
    assert is_denied(policed(), connection(client, server, port, DENIED | SERVICE)) is expected, (
        "whatever its mark says"
    )


def test_a_service_connection_is_judged_by_its_endpoint() -> None:
    assert not is_denied(policed(), TrackedConnection(WEB, 40000, "10.96.0.10", 5300, FRIEND, 53, WEB, 40000, SERVICE))


@pytest.mark.parametrize(("allowed", "expected"), [(ALL_PORTS, False), (NO_PORTS, True)])
def test_a_pod_that_reaches_itself_is_judged_by_what_policies_say_about_that(allowed: object, expected: bool) -> None:
    to_itself = TrackedConnection(WEB, 40000, "10.96.0.10", 53, WEB, 53, WEB, 40000, SERVICE)
    assert is_denied(policed(itself=(((4, 0xAC10010A, 32), allowed),)), to_itself) is expected


def test_a_connection_is_judged_by_its_protocol() -> None:
    assert is_denied(policed(), msgspec.structs.replace(connection(WEB, FRIEND), protocol=Protocol.TCP))


def test_without_policies_nothing_is_denied() -> None:
    assert not is_denied(replace(policed(), policies=NodePolicies()), connection(STRANGER, WEB))


def test_a_mark_is_read_among_others() -> None:
    assert is_marked(connection(WEB, FRIEND, mark=DENIED | SERVICE))
    assert not is_marked(connection(WEB, FRIEND, mark=SERVICE))
