"""Protocols without ports, and connections without a free port: neither leaves a Node with a Pod's own address."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import struct
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

import aiohttp
import pytest
from labnet import needs_root, running_cluster

from windlass.lab.network import ovs
from windlass.lab.probing import sockets
from windlass.lab.scenarios.directives import ProbeSource
from windlass.model.families import family_of
from windlass.pipeline.snat_ports import RESERVED

if TYPE_CHECKING:
    from windlass.lab.orchestration.clusters import RunningCluster

POD, WORLD = ProbeSource(pod="default/client"), ProbeSource(external_host="world")
SO_RCVBUFFORCE = 33  # of Linux; the socket module does not have it
GRE, ESP, EXPERIMENT = 47, 50, 253
ADDRESSES = {
    "192.0.2.80": "10.176.25.11",
    "2001:db8:192::80": "fd00:10:176:25::11",
}  # address of the host outside: the source address that it sees of Pods
CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: windlass-config, namespace: kube-system},
     data: {windlass.yaml: "auditSeconds: 1"}}
  - {apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDRs: [172.16.1.0/24, "fd00:172:16:1::/64"]},
     status: {addresses: [
       {type: InternalIP, address: 10.176.25.11}, {type: InternalIP, address: "fd00:10:176:25::11"}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: client}, spec: {nodeName: node-1}}
  - {kind: ExternalHost, metadata: {name: world}, spec: {addresses: [192.0.2.80, "2001:db8:192::80"]}}
  - {kind: Probe, metadata: {name: ping}, spec: {from: {pod: default/client},
     to: {address: 192.0.2.80}, protocol: ICMP}}
"""


@needs_root
@pytest.mark.parametrize("protocol", [GRE, ESP, EXPERIMENT])
async def test_other_protocols_of_pods_leave_with_the_node_ip(protocol):
    loop = asyncio.get_running_loop()
    async with running_cluster(CLUSTER) as cluster:
        for address, node_ip in ADDRESSES.items():
            family = family_of(ip_address(address))
            with (
                sockets.opened(cluster.namespace_of(WORLD), family, socket.SOCK_RAW, protocol) as server,
                sockets.opened(cluster.namespace_of(POD), family, socket.SOCK_RAW, protocol) as client,
            ):
                client.connect((address, 0))
                await loop.sock_sendall(client, b"\0\0\x08\0question")
                async with asyncio.timeout(30):
                    packet, peer = await loop.sock_recvfrom(server, 2000)
                assert (packet[-8:], peer[0]) == (b"question", node_ip)
                await loop.sock_sendto(server, b"\0\0\x08\0response", (node_ip, 0))
                async with asyncio.timeout(30):
                    assert (await loop.sock_recv(client, 2000))[-8:] == b"response"


@needs_root
async def test_a_connection_that_finds_no_port_is_dropped():
    """Datagrams from more ports than the SNAT pool has for one destination: none arrives with the Pod's own address.

    In user space the agent reports it. The kernel counts failures of all connections of the machine together, so there
    the agent cannot.
    """
    beyond = 500
    async with running_cluster(CLUSTER) as cluster:
        address, node_ip = next(iter(ADDRESSES.items()))
        family = family_of(ip_address(address))
        ports = itertools.cycle(range(20_000, 65_000))
        seen: list[tuple[str, int]] = []
        with (
            sockets.opened(cluster.namespace_of(WORLD), family, socket.SOCK_DGRAM) as server,
            sockets.opened(cluster.namespace_of(POD), family, socket.SOCK_RAW, socket.IPPROTO_UDP) as client,
        ):
            server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            server.bind((address, 53))
            client.connect((address, 0))

            async def send(count: int) -> None:
                for port in itertools.islice(ports, count):
                    # One raw socket for all ports: the pool must be full before the first connections expire.
                    await asyncio.get_running_loop().sock_sendall(client, struct.pack("!4H", port, 53, 9, 0) + b"?")
                    with suppress(BlockingIOError):
                        while True:
                            seen.append(server.recvfrom(10)[1])

            await send(RESERVED.pods[1] - RESERVED.pods[0] + 1 + beyond)
            if ovs.datapath_type() == "netdev":
                # Some datagrams may be lost before the switch, so more are sent until the agent has counted enough.
                async with asyncio.timeout(120):
                    while await dropped(cluster) < beyond or "pool pods: " not in await told(cluster, "/healthz"):
                        await send(100)
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    while True:
                        seen.append((await asyncio.get_running_loop().sock_recvfrom(server, 10))[1])
        assert {host for host, _ in seen} == {node_ip}


async def dropped(cluster: RunningCluster) -> float:
    """The connections of Pods that found no free port, according to the agent's metrics."""
    (count,) = re.findall(r'exhausted_total{pool="pods"} (\S+)', await told(cluster, "/metrics"))
    return float(count)


async def told(cluster: RunningCluster, path: str) -> str:
    """The answer of the agent's API."""
    connector = aiohttp.UnixConnector(str(cluster.lab.node_folder("node-1") / "run" / "agent.sock"))
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"http://agent{path}") as answer:
        return await answer.text()
