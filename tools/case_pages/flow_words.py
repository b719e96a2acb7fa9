"""Flows as the pages show them: in symbols, without what differs between runs. Pure.

Names stand for OpenFlow ports and the NIC's MAC, and one range for both parts of the SNAT ports of Pods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from windlass.cli.render import state_of
from windlass.lab.scenarios import scenario_files
from windlass.lab.scenarios.desired_states import DesiredState
from windlass.model.nodes import NodeState, Ports
from windlass.openflow.flows import Group
from windlass.pipeline.reserved import RESERVED_SNAT_PORTS, SNAT_PORTS
from windlass.pipeline.symbols import actions_symbols, flow_symbols
from windlass.program import program

_PORT = re.compile(r"\b(in_port=|out=|output )(\d+)\b")
_NIC = re.compile(r"(in_port=uplink eth_dst=)[0-9a-f:]{17} ")
_POD_PORTS = [f"_dst={part.mask[0]:#x}/{part.mask[1]:#x}" for part in (RESERVED_SNAT_PORTS, SNAT_PORTS)]
_WELL_KNOWN = {Ports().tunnel: "tunnel", Ports().gateway: "gateway", Ports().uplink: "uplink"}


def in_words(symbolic: str, pods: Mapping[int, str]) -> str:
    names = _WELL_KNOWN | {number: key.partition("/")[2] for number, key in pods.items()}
    named = _PORT.sub(lambda found: found[1] + names.get(int(found[2]), found[2]), symbolic)
    for part in _POD_PORTS:
        named = named.replace(part, f"_dst={RESERVED_SNAT_PORTS.first}-{SNAT_PORTS.last}")
    return _NIC.sub(r"\1uplink ", named)


@cache
def rendered(scenario: Path, node: str) -> Mapping[str, str]:
    """Every flow that this Node gets from the scenario's manifests, and why."""
    state = _state(scenario, node)
    pods = {pod.ofport: pod.key for pod in state.pods.values()}
    flows = (flow for part in program(state).values() for flow in part.flows)
    return {in_words(flow_symbols(flow), pods): flow.why for flow in flows}


def bucket_in_words(scenario: Path, node: str, group: int, number: int) -> tuple[str, str]:
    """A bucket of a group, and why the group is there."""
    found = _groups(scenario, node)[group]
    bucket = next(each for each in found.buckets if each.identity == number)
    return f"group {group} bucket {number} -> {actions_symbols(bucket.actions)}", found.why


def last_world(scenario: Path) -> DesiredState:
    *_, (_, desired) = scenario_files.find_one(scenario).read().states()
    return desired


@cache
def _groups(scenario: Path, node: str) -> Mapping[int, Group]:
    parts = program(_state(scenario, node)).values()
    return {group.identity: group for part in parts for group in part.groups}


@cache
def _state(scenario: Path, node: str) -> NodeState:
    return state_of(last_world(scenario), node)
