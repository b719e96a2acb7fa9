"""The flows of small clusters as text, so that a person can review a change of the pipeline.

`make goldens` writes the files again; their difference in version control is the change to review.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from node_states import BOTH, in_user_space, over_sctp, serving_cluster, small_cluster, with_policies
from program_flows import flows_of

from windlass.model.families import Family
from windlass.model.nodes import OperatingSystem, TrafficMode
from windlass.model.services import Protocol
from windlass.openflow.flows import Flow
from windlass.pipeline.symbols import flow_symbols, group_symbols
from windlass.program import OwnerKind, program

GOLDENS = Path(__file__).parent / "goldens"

CLUSTERS = {
    "encap": small_cluster(TrafficMode.ENCAP, Family.IPV4),
    "no-encap": small_cluster(TrafficMode.NO_ENCAP, Family.IPV4),
    "hybrid": small_cluster(TrafficMode.HYBRID, Family.IPV4),
    "windows": small_cluster(TrafficMode.ENCAP, Family.IPV4, os=OperatingSystem.WINDOWS),
    "dual-stack": small_cluster(TrafficMode.HYBRID, *BOTH),
    "ipv6": small_cluster(TrafficMode.ENCAP, Family.IPV6),
    "userspace": over_sctp(small_cluster(TrafficMode.ENCAP, *Family)),
}


# Only the flows and groups of Services: the others are as in CLUSTERS.
SERVICES = {
    "services": serving_cluster(TrafficMode.ENCAP, *BOTH),
    "services-over-sctp": over_sctp(serving_cluster(TrafficMode.ENCAP, Family.IPV4)),
    "services-over-udp": in_user_space(serving_cluster(TrafficMode.ENCAP, Family.IPV4), Protocol.UDP),
}
POLICIES = "policies"


@pytest.mark.parametrize("name", CLUSTERS)
def test_flows_equal_the_reviewed_ones(name):
    assert_reviewed(name, in_words([flow for _, flow in flows_of(program(CLUSTERS[name]))]))


@pytest.mark.parametrize("name", SERVICES)
def test_flows_of_services_equal_the_reviewed_ones(name):
    words = []
    for owner, part in program(SERVICES[name]).items():
        if owner.kind is OwnerKind.SERVICE:
            words += [f"# {owner}", *in_words(part.flows)]
            words += [line for group in part.groups for line in group_symbols(group)]
    assert_reviewed(name, words)


def test_policies_are_as_they_were_reviewed():
    """What policies add to a Node."""
    plain = in_user_space(small_cluster(TrafficMode.ENCAP, Family.IPV4), Protocol.TCP)
    without = {flow for _, flow in flows_of(program(plain))}
    added = [flow for _, flow in flows_of(program(with_policies(plain))) if flow not in without]
    assert_reviewed(POLICIES, in_words(list(dict.fromkeys(added))))


def test_every_golden_has_its_cluster():
    assert {golden.stem for golden in GOLDENS.glob("*.txt")} == {*CLUSTERS, *SERVICES, POLICIES}


def assert_reviewed(name: str, words: list[str]) -> None:
    golden = GOLDENS / f"{name}.txt"
    rendered = "\n".join(words) + "\n"
    if os.environ.get("WINDLASS_UPDATE_GOLDENS"):
        golden.write_text(rendered)
    assert rendered == golden.read_text(), (
        "the flows changed; if that is meant: make goldens, and review the difference"
    )


def in_words(flows: Iterable[Flow]) -> list[str]:
    def place(flow: Flow) -> tuple[int, int, str]:
        return flow.table, -flow.priority, flow_symbols(flow)

    return [flow_symbols(flow) for flow in sorted(flows, key=place)]
