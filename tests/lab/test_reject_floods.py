"""A Pod that floods a Service without endpoints: the agent gets a limited rate, other Pods are rejected.

Without the meters the agent gets all of them, answers some, and a Pod that asks seldom rarely gets an answer.
"""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Self

import aiohttp
import pytest
from labnet import needs_root, running_cluster

from windlass.host.linux import namespaces
from windlass.lab.probing import packets, sockets
from windlass.lab.probing.sockets import FAMILY
from windlass.model.families import Family, family_of

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
POLITE = {Family.IPV4: ip_address("172.16.1.10"), Family.IPV6: ip_address("fd00:172:16:1::a")}
RST = 0x04
FLOOD = 40_000  # packets
TOGETHER, PAUSE = 100, 0.005  # packets, seconds: what a veth has room for
ASKED_EVERY, PATIENCE = 0.05, 60.0  # seconds


@needs_root
@pytest.mark.parametrize("family", FLOODS)
async def test_a_flood_neither_overloads_the_agent_nor_uses_up_the_rejects_of_others(family):
    flooder, service = FLOODS[family]
    async with running_cluster(CLUSTER) as cluster:
        flooding = asyncio.create_task(asyncio.to_thread(flood, cluster, flooder, service))
        async with PolitePod.opened(cluster, service) as polite:
            while not flooding.done():
                polite.ask()
                await asyncio.sleep(ASKED_EVERY)
            await flooding
            await polite.is_refused(0.8)
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


class PolitePod:
    """Sends each SYN once, from a port of its own, and counts the ports that get a reset."""

    def __init__(self, cluster: RunningCluster, service: IPAddress) -> None:
        self._from, self._to = POLITE[family_of(service)], service
        self._asked, self._refused = 0, set[int]()
        self._received = asyncio.Event()
        namespace = cluster.lab.namespace("pod", "default/polite")
        self._socket = sockets.raw(namespace, family_of(service), packets.TCP, self._take)

    @classmethod
    @asynccontextmanager
    async def opened(cls, cluster: RunningCluster, service: IPAddress) -> AsyncIterator[Self]:
        made = cls(cluster, service)
        try:
            yield made
        finally:
            sockets.closed(made._socket)

    def ask(self) -> None:
        self._asked += 1
        segment = packets.tcp_syn(self._from, self._to, (30_000 + self._asked, 80), self._asked)
        self._socket.sendto(segment, (str(self._to), 0))

    async def is_refused(self, share: float) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while len(self._refused) <= share * self._asked:
                    self._received.clear()
                    await self._received.wait()
        except TimeoutError:
            pytest.fail(f"only {len(self._refused)} of {self._asked} were refused")

    def _take(self, packet: sockets.Packet) -> None:
        if packet.payload[13] & RST:
            self._refused.add(int.from_bytes(packet.payload[2:4]))
            self._received.set()


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
