"""`windlass policy counters`: the packets that policies judged, with the rules that decided about them."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from labnet import needs_root, running_cluster

from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.probing import sockets
from windlass.lab.scenarios.directives import ProbeSource
from windlass.model.families import family_of
from windlass.switch.controls import ask, control_socket

PATIENCE = 30.0  # seconds until the datapath has carried and counted all packets
PORT, OTHER_PORT = 7777, 7778
CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: here}, spec: {podCIDRs: [172.16.1.0/24]},
     status: {addresses: [{type: InternalIP, address: 10.176.25.11}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: client, labels: {app: client}}, spec: {nodeName: here}}
  - {apiVersion: v1, kind: Pod, metadata: {name: stranger}, spec: {nodeName: here}}
  - {apiVersion: v1, kind: Pod, metadata: {name: server, labels: {app: server}}, spec: {nodeName: here}}
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: allow},
     spec: {podSelector: {matchLabels: {app: server}},
            ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 7777, protocol: UDP}]}]}}
"""
COUNTING_RULES = """
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: windlass-config, namespace: kube-system},
     data: {windlass.yaml: "countPolicyRules: true"}}
"""
RULE = "NetworkPolicy default/allow ingress[0]"
ALLOWED = {"traffic": "UDP 7777", "allows": True, "rule": RULE}
DENIED = {"allows": False, "rule": "no ingress rule of NetworkPolicy default/allow allows it"}
COUNTERS = [
    {"peers": ["default/client"], "packets": 5, "decisions": [ALLOWED, {"traffic": "everything else", **DENIED}]},
    {"peers": [], "packets": 2, "decisions": [{"traffic": "all traffic", **DENIED}]},
]


def send(cluster: RunningCluster, pod: str, port: int, count: int) -> None:
    (address,) = cluster.addresses["default/server"]
    namespace = cluster.namespace_of(ProbeSource(pod=f"default/{pod}"))
    with sockets.opened(namespace, family_of(address), socket.SOCK_DGRAM) as sock:
        for _ in range(count):
            sock.sendto(b"hello", (str(address), port))


def send_all(cluster: RunningCluster) -> None:
    send(cluster, "client", PORT, 3)
    send(cluster, "client", OTHER_PORT, 2)
    send(cluster, "stranger", PORT, 2)


async def windlass(cluster: RunningCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    at = ("--socket", str(cluster.lab.node_folder("here") / "run" / "agent.sock"))
    command = [Path(sys.executable).with_name("windlass"), "policy", "counters", *arguments, *at]
    return await asyncio.to_thread(subprocess.run, command, check=False, capture_output=True, text=True)


async def counters(cluster: RunningCluster, packets: int) -> list[dict[str, Any]]:
    """As soon as so many packets are counted."""
    control = control_socket(str(cluster.lab.node_folder("here") / "ovs"))
    async with asyncio.timeout(PATIENCE):
        while True:
            await ask(control, "revalidator/purge")  # the datapath reports what it has counted
            found = json.loads((await windlass(cluster, "server", "--json")).stdout)
            if sum(one["packets"] for one in found) >= packets:
                return found


@needs_root
async def test_packets_are_counted_with_the_rules_that_decided_about_them() -> None:
    async with running_cluster(CLUSTER) as cluster:
        assert (await windlass(cluster)).stdout == "policies have allowed or denied no packets yet\n"
        send_all(cluster)
        expected = [{"pods": ["default/server"], "direction": "ingress", **one} for one in COUNTERS]
        assert await counters(cluster, 7) == expected
        table = (await windlass(cluster)).stdout.splitlines()
        assert table[0].split() == ["POD", "PEERS", "PACKETS", "TRAFFIC", "VERDICT", "BECAUSE", "OF"]
        cells = ["default/server", "from", "default/client", "5", "UDP", "7777", "allow", *RULE.split()]
        assert table[1].split() == cells
        assert sum("from all others" in line for line in table) == 1
        assert json.loads((await windlass(cluster, "client", "--json")).stdout) == [], "no policy selects it"
        unknown = await windlass(cluster, "shop/web")
        assert unknown.returncode == 2
        assert "there is no Pod shop/web on this Node" in unknown.stderr


@needs_root
async def test_each_rule_has_a_counter_if_the_configuration_asks_for_it() -> None:
    async with running_cluster(CLUSTER + COUNTING_RULES) as cluster:
        send_all(cluster)
        of_client, of_stranger = await counters(cluster, 7)
        assert [(one["rule"], one["packets"]) for one in of_client["decisions"]] == [(RULE, 3), (DENIED["rule"], 2)]
        assert [(one["rule"], one["packets"]) for one in of_stranger["decisions"]] == [(DENIED["rule"], 2)]
        table = (await windlass(cluster)).stdout.splitlines()
        assert table[1].split()[:6] == ["default/server", "from", "default/client", "3", "UDP", "7777"]
        assert table[2].split()[:4] == ["2", "everything", "else", "deny"]
