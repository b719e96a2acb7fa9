"""Clusters and machines for tests of the lab, and a fabric of Linux bridges to test the lab without Windlass."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_interface
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyroute2 import IPRoute

from windlass.bench.lab_clusters import scenario_of
from windlass.host.linux import namespaces
from windlass.lab.control.publishers import ManifestFolder
from windlass.lab.orchestration.agents import Agents
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.runner import runs
from windlass.lab.sandbox.labs import LabError
from windlass.lab.scenarios.segments import Machine, Nic
from windlass.model.families import family_of

if TYPE_CHECKING:
    from windlass.lab.sandbox.labs import Lab
    from windlass.lab.scenarios.objects import LabNode

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to create network namespaces")

CLIENT = Machine("host", "client", (Nic("eth0", (ip_interface("10.7.0.10/24"), ip_interface("fd07::10/64"))),))
SERVER = Machine("host", "server", (Nic("eth0", (ip_interface("10.7.0.20/24"), ip_interface("fd07::20/64"))),))
FARAWAY = Machine("host", "faraway", (Nic("eth0", (ip_interface("10.8.0.30/24"), ip_interface("fd08::30/64"))),))


@asynccontextmanager
async def running_cluster(text: str) -> AsyncIterator[RunningCluster]:
    """A cluster of Windlass Nodes with the objects of this scenario text. Skips where it cannot run."""
    try:
        runs.check_machine(Programs())
    except LabError as error:
        pytest.skip(str(error))
    async with runs.at_last_step(scenario_of("cluster", text), lambda lab: Agents(lab, Programs())) as cluster:
        yield cluster


@dataclass
class PlainFabric:
    """Connects Pods by a Linux bridge and the forwarding of the Node's kernel: enough for noEncap."""

    lab: Lab
    dataplane: str = "linux"
    probes_at_once: int = 32

    ended: bool = False
    actions: list[str] = field(default_factory=list)
    windows: set[str] = field(default_factory=set)  # Nodes that count as such
    _stopped: set[str] = field(default_factory=set)
    _nodes: dict[str, tuple[LabNode, str]] = field(default_factory=dict)
    _numbers: count = field(default_factory=lambda: count(10))

    @property
    def publisher(self):
        return ManifestFolder(self.lab)

    def runs_windows(self, node: str) -> bool:
        return node in self.windows

    async def add_node(self, node, namespace, _configuration):
        self._nodes[node.name] = node, namespace
        await asyncio.to_thread(_make_bridge, node, namespace)

    async def remove_node(self, node):
        del self._nodes[node]

    def serves(self, node):
        return node in self._nodes and node not in self._stopped

    async def attach(self, pod, namespace):
        node, node_namespace = self._nodes[pod.spec.node_name]
        number = next(self._numbers)
        addresses = pod.fixed_addresses or tuple(cidr.network_address + number for cidr in node.pod_cidrs.values())
        await asyncio.to_thread(_connect, node, node_namespace, namespace, f"veth{number}", addresses)
        return addresses

    async def detach(self, pod, namespace):
        pass

    async def act(self, action, _configuration):
        self.actions.append(f"{action.verb} {action.node}")
        (self._stopped.add if action.verb == "stopAgent" else self._stopped.discard)(action.node)
        if not action.node:
            raise LabError(f"{action.verb}: this lab has no API server")

    async def converge(self):
        pass

    async def end(self):
        self.ended = True


def netlink(namespace):
    with namespaces.entered(namespaces.path_of(namespace)):
        return IPRoute()


def _make_bridge(node, namespace):
    with namespaces.entered(namespaces.path_of(namespace)):
        for key in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            Path("/proc/sys/net", key).write_text("1")
    with netlink(namespace) as ip:
        ip.link("add", ifname="pods", kind="bridge")
        index = ip.link_lookup(ifname="pods")[0]
        for family, cidr in node.pod_cidrs.items():
            ip.addr("add", index=index, address=str(node.gateway(family)), prefixlen=cidr.prefixlen)
        ip.link("set", index=index, state="up")


def _connect(node, node_namespace, pod_namespace, port, addresses):
    with netlink(node_namespace) as ip, namespaces.path_of(pod_namespace).open("rb") as there:
        ip.link("add", ifname=port, kind="veth", peer={"ifname": "eth0", "net_ns_fd": there.fileno()})
        ip.link("set", ifname=port, master=ip.link_lookup(ifname="pods")[0], state="up")
    with netlink(pod_namespace) as ip:
        index = ip.link_lookup(ifname="eth0")[0]
        ip.link("set", index=index, state="up")
        for address in addresses:
            family = family_of(address)
            ip.addr("add", index=index, address=str(address), prefixlen=node.pod_cidrs[family].prefixlen)
            ip.route("add", gateway=str(node.gateway(family)), family={4: 2, 6: 10}[family.value])
