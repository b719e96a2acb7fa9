"""A scenario fails if flows of a Node need what its datapath does not support, although all packets arrive."""

from __future__ import annotations

import sys

import pytest
from labnet import needs_root

from windlass.bench.lab_clusters import scenario_of
from windlass.lab.orchestration.agents import Agents
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import runs
from windlass.lab.sandbox.labs import LabError

pytestmark = needs_root

CLUSTER = """
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {kubernetes.io/os: OS}}, spec: {podCIDR: 10.1.1.0/24},
 status: {addresses: [{type: InternalIP, address: 10.0.0.11}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1, containers: [{ports: [{containerPort: 80}]}]}}
---
{kind: Probe, metadata: {name: pod}, spec: {from: {node: n1}, to: {pod: default/a, port: 80}}}
"""
# The agent, on datapaths on which a packet may not recirculate at all.
STRICT_AGENT = """
import runpy
from dataclasses import replace
from windlass.pipeline import datapaths
datapaths.USERSPACE = replace(datapaths.USERSPACE, recirculations=0)
datapaths.DATAPATHS = {os: replace(one, recirculations=0) for os, one in datapaths.DATAPATHS.items()}
runpy.run_module("windlass", run_name="__main__")
"""


@pytest.mark.parametrize(("os", "datapath"), [("linux", "Linux"), ("windows", "Windows")])
async def test_a_scenario_fails_by_flows_that_the_datapath_does_not_support(os, datapath):
    programs = Programs(agent=(sys.executable, "-c", STRICT_AGENT, "agent"))
    try:
        runs.check_machine(programs)
    except LabError as error:
        pytest.skip(str(error))
    scenario = scenario_of("checked", CLUSTER.replace("OS", os))
    result = await runs.run_scenario(scenario, lambda lab: Agents(lab, programs), lambda _: None)
    assert f"Node n1: its datapath does not support all of its flows: {datapath}" in result.error
    assert "a packet could recirculate" in result.error
