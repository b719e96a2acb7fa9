"""The pools of SNAT ports with real packets: sizes, reuse of ports, and that the host does not use them."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from labnet import needs_root, running_cluster

from windlass.lab.probing import sockets
from windlass.lab.scenarios.directives import ActionSpec, LabMetadata, ProbeSource, StepAction
from windlass.model.families import Family
from windlass.pipeline.snat_ports import RESERVED, UNRESERVED
from windlass.pipeline.tracking import SNAT_ZONE
from windlass.switch.conntrack_timeouts import TIMEOUTS
from windlass.switch.controls import ask, control_socket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from windlass.lab.orchestration.clusters import RunningCluster

POD, NODE, WORLD = ProbeSource(pod="default/client"), ProbeSource(node="node-1"), ProbeSource(external_host="world")
NODE_IP = "10.176.25.11"
SERVICE, ENDPOINT = "10.96.0.1", "192.0.2.80"
TCP_PORT, UDP_PORT = 6443, 6053
SO_RCVBUFFORCE = 33  # of Linux; the socket module does not have it
CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDRs: [172.16.1.0/24]},
     status: {addresses: [{type: InternalIP, address: 10.176.25.11}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: client}, spec: {nodeName: node-1}}
  - {kind: ExternalHost, metadata: {name: world}, spec: {addresses: [192.0.2.80]}}
  - {apiVersion: v1, kind: Service, metadata: {name: kubernetes},
     spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1],
            ports: [{name: tcp, port: 6443}, {name: udp, port: 6053, protocol: UDP}]}}
  - {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
     metadata: {name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}},
     endpoints: [{addresses: [192.0.2.80]}], ports: [{name: tcp, port: 6443}, {name: udp, port: 6053, protocol: UDP}]}
  - {kind: Probe, metadata: {name: ping}, spec: {from: {pod: default/client},
     to: {address: 192.0.2.80}, protocol: ICMP}}
"""


@needs_root
@pytest.mark.parametrize(
    ("address", "pool", "former"),
    [(SERVICE, RESERVED.services, UNRESERVED.services), (ENDPOINT, RESERVED.pods, UNRESERVED.pods)],
    ids=["through a Service", "to the outside"],
)
async def test_one_pod_to_one_endpoint_has_more_ports_with_reserved_ports(address, pool, former):
    """On a slow machine connections expire in the meantime, and further ones use their ports again: more are needed."""
    before = former[1] - former[0] + 1
    clients = [*range(2000, 60_000)]
    seen: set[int] = set()
    async with running_cluster(CLUSTER) as cluster:
        while clients and len(seen) <= before:
            these, clients = clients[: before + 500], clients[before + 500 :]
            seen |= await begun(cluster, address, these)
    assert all(pool[0] <= port <= pool[1] for port in seen)
    assert len(seen) > before


@needs_root
async def test_no_connection_gets_a_port_that_the_host_uses_to_the_same_endpoint():
    """The host's connections are older than the agent. By chance one of 600 would collide (probability 1 - 5e-9)."""
    first = RESERVED.services[0] + 0x1000
    held = range(first, first + 512)
    loop = asyncio.get_running_loop()
    async with running_cluster(CLUSTER) as cluster:
        with ExitStack() as opened:
            own = [opened.enter_context(datagrams(cluster, NODE, NODE_IP, port)) for port in held]
            for connection in own:
                connection.connect((ENDPOINT, UDP_PORT))
            await cluster.reach(
                cluster.desired, [StepAction(LabMetadata(name="restart"), ActionSpec(restart_agent="node-1"))]
            )
            seen = await begun(cluster, SERVICE, range(2000, 2600))
            assert len(seen) == 600
            assert not seen & {*held}
            with datagrams(cluster, WORLD, ENDPOINT, UDP_PORT) as server:
                await loop.sock_sendall(own[-1], b"?")
                _, client = await loop.sock_recvfrom(server, 10)
                assert client == (NODE_IP, held[-1])
                await loop.sock_sendto(server, b"!", client)
                assert await loop.sock_recv(own[-1], 10) == b"!"


@needs_root
async def test_the_port_of_an_ended_connection_is_soon_free():
    """With its default timeouts the datapath would keep it for 30 s (user space) or 120 s (kernel)."""
    loop = asyncio.get_running_loop()
    async with running_cluster(CLUSTER) as cluster:
        with sockets.opened(cluster.namespace_of(WORLD), Family.IPV4, socket.SOCK_STREAM) as listener:
            listener.bind((ENDPOINT, TCP_PORT))
            listener.listen()
            async with await asyncio.start_server(end_with_client, sock=listener):
                with sockets.opened(cluster.namespace_of(POD), Family.IPV4, socket.SOCK_STREAM) as client:
                    await loop.sock_connect(client, (SERVICE, TCP_PORT))
                    client.shutdown(socket.SHUT_WR)
                    assert await loop.sock_recv(client, 1) == b""
        switch = control_socket(str(cluster.lab.node_folder("node-1") / "ovs"))
        entries = (await ask(switch, "dpctl/dump-conntrack", "-s", f"zone={SNAT_ZONE}")).splitlines()
        (remaining,) = [int(found[1]) for entry in entries if (found := re.search(r"timeout=(\d+)", entry))]
        assert remaining <= max(TIMEOUTS.values())


async def begun(cluster: RunningCluster, address: str, clients: Sequence[int]) -> set[int]:
    """The source ports that the endpoint sees for connections of the Pod from these ports, one datagram each."""
    loop = asyncio.get_running_loop()
    seen: set[int] = set()
    with datagrams(cluster, WORLD, ENDPOINT, UDP_PORT) as server:
        server.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        for port in clients:
            with datagrams(cluster, POD, "", port) as client:
                await loop.sock_sendto(client, b"?", (address, UDP_PORT))
            with suppress(BlockingIOError):
                while True:
                    seen.add(server.recvfrom(10)[1][1])
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                while len(seen) < len(clients):
                    seen.add((await loop.sock_recvfrom(server, 10))[1][1])
    return seen


def datagrams(cluster: RunningCluster, place: ProbeSource, address: str, port: int) -> socket.socket:
    opened = sockets.opened(cluster.namespace_of(place), Family.IPV4, socket.SOCK_DGRAM)
    opened.bind((address, port))
    return opened


async def end_with_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()
