"""A Pod that floods a Service without endpoints: the agent gets a limited rate, other Pods are rejected.

Without the meters the agent gets all of them, answers some, and a Pod that asks seldom rarely gets an answer.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from labnet import needs_root, running_cluster

from windlass.host.linux import namespaces
from windlass.lab.probing import packets
from windlass.lab.probing.sockets import FAMILY
from windlass.model.families import family_of

if TYPE_CHECKING:
    from windlass.lab.orchestration.clusters import RunningCluster
    from windlass.model.families import IPAddress

CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: here}, spec: {podCIDRs: [172.16.1.0/24, "fd00:172:16:1::/64"]},
     status: {addresses: [{type: InternalIP, address: 10.176.25.11}, {type: InternalIP, address: "fd00:176::11"}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: flooder}, spec: {nodeName: here},
     status: {podIPs: [{ip: 172.16.1.9}, {ip: "fd00:172:16:1::9"}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: polite}, spec: {nodeName: here},
     status: {podIPs: [{ip: 172.16.1.10}, {ip: "fd00:172:16:1::a"}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: nobody},
     spec: {clusterIPs: [10.96.0.10, "fd00:10:96::10"], ipFamilies: [IPv4, IPv6], ports: [{port: 80}]}}
"""
FLOODS = {
    "IPv4": (ip_address("172.16.1.9"), ip_address("10.96.0.10")),
    "IPv6": (ip_address("fd00:172:16:1::9"), ip_address("fd00:10:96::10")),
}
FLOOD = 40_000  # packets
TOGETHER, PAUSE = 100, 0.005  # packets, seconds: what a veth has room for
ASKED_EVERY, IN_TIME = 0.05, 0.9  # seconds; the latter less than until a SYN is sent again


@needs_root
@pytest.mark.parametrize("family", FLOODS)
async def test_a_flood_neither_overloads_the_agent_nor_uses_up_the_rejects_of_others(family):
    flooder, service = FLOODS[family]
    async with running_cluster(CLUSTER) as cluster:
        flooding = asyncio.create_task(asyncio.to_thread(flood, cluster, flooder, service))
        answers: Counter[str] = Counter()
        while not flooding.done():
            answers[await answer(cluster, service)] += 1
            await asyncio.sleep(ASKED_EVERY)
        await flooding
        assert answers["refused"] > 0.8 * answers.total(), answers
        came, dropped = metered(cluster)
        assert came > FLOOD / 2, "else it was no flood"
        assert came - dropped < FLOOD / 10, "what the agent hears of it"
        assert await metric(cluster, "windlass_rejects_suppressed_total") >= dropped
        assert 0 < await metric(cluster, "windlass_rejects_sent_total") <= came - dropped


DENIED = """
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny-all}, spec: {podSelector: {}}}
"""


@needs_root
async def test_a_flood_of_denied_packets_is_counted_and_hardly_reaches_the_agent():
    flooder, polite = ip_address("172.16.1.9"), ip_address("172.16.1.10")
    async with running_cluster(CLUSTER + DENIED) as cluster:
        await asyncio.to_thread(flood, cluster, flooder, polite)
        came, dropped = metered(cluster)
        assert came > FLOOD / 2, "else it was no flood"
        assert came - dropped < FLOOD / 10, "what the agent hears of it"
        assert await metric(cluster, "windlass_policy_denials_suppressed_total") >= dropped
        async with asyncio.timeout(30):  # the switch reports packets of a flow later than those of a meter
            while await metric(cluster, 'windlass_policy_denied_packets_total{connection="new"}') < came:
                pass  # whenever the agent queries the switch
        rule = 'windlass_policy_denials_total{direction="ingress",rule="NetworkPolicy default/deny-all"}'
        assert 0 < await metric(cluster, rule) <= came - dropped
        asked = ["status", "--socket", str(cluster.lab.node_folder("here") / "run" / "agent.sock")]
        command = [Path(sys.executable).with_name("windlass"), *asked]
        told = await asyncio.to_thread(subprocess.run, command, check=False, capture_output=True, text=True)
        assert "default/flooder to default/polite, TCP 80: NetworkPolicy default/deny-all" in told.stdout


def flood(cluster: RunningCluster, source: IPAddress, service: IPAddress) -> None:
    """Runs in its own thread."""
    with namespaces.entered(namespaces.path_of(cluster.lab.namespace("pod", "default/flooder"))):
        sock = socket.socket(FAMILY[family_of(source)], socket.SOCK_RAW, packets.TCP)
    with sock:
        segments = [packets.tcp_syn(source, service, (port, 80), port) for port in range(20000, 21000)]
        for number in range(FLOOD):
            sock.sendto(segments[number % len(segments)], (str(service), 0))
            if not number % TOGETHER:
                time.sleep(PAUSE)


async def answer(cluster: RunningCluster, service: IPAddress) -> str:
    with namespaces.entered(namespaces.path_of(cluster.lab.namespace("pod", "default/polite"))):
        sock = socket.socket(FAMILY[family_of(service)])
    sock.setblocking(False)
    with sock:
        try:
            async with asyncio.timeout(IN_TIME):
                await asyncio.get_running_loop().sock_connect(sock, (str(service), 80))
        except TimeoutError:
            return "no answer"
        except OSError as error:
            return "refused" if error.errno == errno.ECONNREFUSED else str(error)
    return "connected"


def metered(cluster: RunningCluster) -> tuple[int, int]:
    """The packets that reached the meters of the Node, and those that the meters dropped."""
    socket_path = cluster.lab.node_folder("here") / "ovs" / "br-int.mgmt"
    command = ["ovs-ofctl", "-O", "OpenFlow15", "meter-stats", f"unix:{socket_path}"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    came, dropped = (
        re.findall(r"packet_in_count:(\d+)", told),
        re.findall(r"^\d+: packet_count:(\d+)", told, re.MULTILINE),
    )
    return sum(map(int, came)), sum(map(int, dropped))


async def metric(cluster: RunningCluster, name: str) -> float:
    connector = aiohttp.UnixConnector(str(cluster.lab.node_folder("here") / "run" / "agent.sock"))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://agent/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))
