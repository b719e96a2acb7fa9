"""The flows of a small cluster, in words: a change of the pipeline shows here as a difference that a person reads.

`make goldens` writes them anew; what then differs in version control is the change to review.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from node_states import BOTH, small_cluster

from windlass.model.families import Family
from windlass.model.nodes import NodeState, OperatingSystem, TrafficMode
from windlass.openflow.flows import Flow
from windlass.pipeline.symbols import flow_symbols
from windlass.program import flows_of, program

GOLDENS = Path(__file__).parent / "goldens"

CLUSTERS = {
    "encap": small_cluster(TrafficMode.ENCAP, Family.IPV4),
    "no-encap": small_cluster(TrafficMode.NO_ENCAP, Family.IPV4),
    "hybrid": small_cluster(TrafficMode.HYBRID, Family.IPV4),
    "windows": small_cluster(TrafficMode.ENCAP, Family.IPV4, os=OperatingSystem.WINDOWS),
    "dual-stack": small_cluster(TrafficMode.HYBRID, *BOTH),
    "ipv6": small_cluster(TrafficMode.ENCAP, Family.IPV6),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_flows_are_as_they_were_reviewed(name):
    golden = GOLDENS / f"{name}.txt"
    rendered = "\n".join(in_words(CLUSTERS[name])) + "\n"
    if os.environ.get("WINDLASS_UPDATE_GOLDENS"):
        golden.write_text(rendered)
    assert rendered == golden.read_text(), (
        "the flows changed; if that is meant: make goldens, and review the difference"
    )


def test_every_golden_has_its_cluster():
    assert {golden.stem for golden in GOLDENS.glob("*.txt")} == set(CLUSTERS)


def in_words(state: NodeState) -> list[str]:
    def place(flow: Flow) -> tuple[int, int, str]:
        return flow.table, -flow.priority, flow_symbols(flow)

    return [flow_symbols(flow) for flow in sorted((flow for _, flow in flows_of(program(state))), key=place)]
