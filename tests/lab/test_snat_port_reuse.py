"""Ended connections give their SNAT ports back soon: after as many as the pool has ports, further ones succeed."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from labnet import needs_root, running_cluster

from windlass.lab.probing import sockets
from windlass.lab.scenarios.directives import ProbeSource
from windlass.model.families import Family
from windlass.pipeline.layout import SERVICE_SNAT_PORTS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from windlass.lab.orchestration.clusters import RunningCluster

POD, WORLD = ProbeSource(pod="default/client"), ProbeSource(external_host="world")
SERVICE, ENDPOINT = ("10.96.0.1", 443), ("192.0.2.80", 6443)
CLIENTS = 20  # at a time
# Seconds: less than the datapaths' own timeouts (30 and 120), more than the 20 s after which the userspace datapath
# looks through its entries again.
SOON = 26.0
CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDRs: [172.16.1.0/24]},
     status: {addresses: [{type: InternalIP, address: 10.176.25.11}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: client}, spec: {nodeName: node-1}}
  - {kind: ExternalHost, metadata: {name: world}, spec: {addresses: [192.0.2.80]}}
  - {apiVersion: v1, kind: Service, metadata: {name: kubernetes},
     spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{port: 443, targetPort: 6443}]}}
  - {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
     metadata: {name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}},
     endpoints: [{addresses: [192.0.2.80]}], ports: [{port: 6443}]}
  - {kind: Probe, metadata: {name: ping}, spec: {from: {pod: default/client},
     to: {address: 192.0.2.80}, protocol: ICMP}}
"""


@needs_root
@pytest.mark.timeout(120)
async def test_ports_of_ended_connections_come_back():
    """On a machine that needs longer than SOON for the first ones, it shows only that none is lost."""
    left = SERVICE_SNAT_PORTS[1] - SERVICE_SNAT_PORTS[0] + 1
    async with running_cluster(CLUSTER) as cluster:
        with sockets.opened(cluster.namespace_of(WORLD), Family.IPV4, socket.SOCK_STREAM) as listener:
            listener.bind(ENDPOINT)
            listener.listen(1000)

            async def client() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    await connect_and_end(cluster)

            async with await asyncio.start_server(end_with_client, sock=listener):
                await asyncio.gather(*(client() for _ in range(CLIENTS)))
                async with asyncio.timeout(SOON):
                    while not await succeeds(connect_and_end(cluster)):
                        pass


async def succeeds(attempt: Coroutine[None, None, None]) -> bool:
    try:
        async with asyncio.timeout(1.0):
            await attempt
    except TimeoutError:
        return False
    return True


async def connect_and_end(cluster: RunningCluster) -> None:
    """The client closes first, as a client of HTTP does, and has seen the server's end when this returns."""
    loop = asyncio.get_running_loop()
    with sockets.opened(cluster.namespace_of(POD), Family.IPV4, socket.SOCK_STREAM) as connection:
        await loop.sock_connect(connection, SERVICE)
        connection.shutdown(socket.SHUT_WR)
        assert await loop.sock_recv(connection, 1) == b""


async def end_with_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()
