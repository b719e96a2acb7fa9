"""Rare packets of clients and endpoints of Services: fragments, and ICMP errors.

Errors by IPv4: about UDP the userspace datapath (Open vSwitch 3.1) damages ICMPv6 errors when it translates them, as it
adjusts the checksum of UDP, which is not there, and so the MTU. The scenario services/path-mtu has IPv6 with TCP.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from labnet import needs_root, running_cluster

from windlass.host.linux import namespaces
from windlass.lab.sandbox.time_limits import seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from windlass.lab.orchestration.clusters import RunningCluster

IP_RECVERR, IP_MTU = 11, 14  # of Linux; the socket module does not have them
NODE, PORT, MTU = "10.176.25.11", 9999, 1300
LONG = bytes(range(250)) * 20
# One Service for each place where an endpoint can be, and two by policy Local.
SERVICES = {
    "pod-here": 30081,
    "pod-there": 30082,
    "node-here": 30083,
    "node-there": 30084,
    "pod-kept": 30085,
    "node-kept": 30086,
}
CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: windlass-config, namespace: kube-system},
     data: {windlass.yaml: "trafficMode: noEncap"}}
  - {apiVersion: v1, kind: Node, metadata: {name: here}, spec: {podCIDRs: [172.16.1.0/24]},
     status: {addresses: [{type: InternalIP, address: 10.176.25.11}]}}
  - {apiVersion: v1, kind: Node, metadata: {name: there}, spec: {podCIDRs: [172.16.2.0/24]},
     status: {addresses: [{type: InternalIP, address: 10.176.27.12}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: here}, spec: {nodeName: here}, status: {podIPs: [{ip: 172.16.1.9}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: there}, spec: {nodeName: there}, status: {podIPs: [{ip: 172.16.2.9}]}}
  - {kind: ExternalHost, metadata: {name: client}, spec: {addresses: [10.176.26.36]}}
  - {kind: Probe, metadata: {name: ping}, spec: {from: {externalHost: client}, to: {address: 10.176.25.11},
     protocol: ICMP}}
"""
ENDPOINTS = {
    "pod-here": ("172.16.1.9", "here", ("pod", "default/here")),
    "pod-there": ("172.16.2.9", "there", ("pod", "default/there")),
    "node-here": (NODE, "here", ("node", "here")),
    "node-there": ("10.176.27.12", "there", ("node", "there")),
    "pod-kept": ("172.16.1.9", "here", ("pod", "default/here")),
    "node-kept": (NODE, "here", ("node", "here")),
}
SERVICE = """
  - {{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{type: LoadBalancer,
     clusterIP: 10.96.0.{number}, externalTrafficPolicy: {policy},
     ports: [{{port: 53, protocol: UDP, nodePort: {node_port}}}]}},
     status: {{loadBalancer: {{ingress: [{{ip: 198.51.100.{number}}}]}}}}}}
  - {{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
     metadata: {{name: {name}, labels: {{kubernetes.io/service-name: {name}}}}},
     endpoints: [{{addresses: [{address}], nodeName: {node}}}], ports: [{{name: "", port: 9999, protocol: UDP}}]}}
"""


def cluster_with_services() -> str:
    services = (
        SERVICE.format(
            name=name,
            number=node_port - 30000,
            node_port=node_port,
            policy="Local" if name.endswith("kept") else "Cluster",
            address=ENDPOINTS[name][0],
            node=ENDPOINTS[name][1],
        ).lstrip("\n")
        for name, node_port in SERVICES.items()
    )
    return CLUSTER + "".join(services)


@asynccontextmanager
async def routed_cluster() -> AsyncIterator[RunningCluster]:
    """The router routes the addresses of load balancers to Node `here`."""
    async with running_cluster(cluster_with_services()) as cluster:
        await cluster.route({ip_address(external_address(name)): "here" for name in SERVICES})
        yield cluster


def external_address(name: str) -> str:
    return f"198.51.100.{SERVICES[name] - 30000}"


def entries() -> Iterator[tuple[str, tuple[str, int]]]:
    """The NodePort and the load balancer's address of each Service."""
    for name, node_port in SERVICES.items():
        yield name, (NODE, node_port)
        yield name, (external_address(name), 53)


@needs_root
async def test_fragmentation_needed_reaches_the_sender():
    async with routed_cluster() as cluster:
        router = cluster.lab.namespace("underlay")
        for name, entry in entries():
            endpoint, node, place = ENDPOINTS[name]
            with (
                speaker(cluster.lab.namespace(*place)) as server,
                speaker(cluster.lab.namespace("host", "client")) as client,
            ):
                server.bind((endpoint, PORT))
                client.connect(entry)
                seen = await talk(client, server, b"?", b"!")

                too_big(router, entry[0], entry, client.getsockname())
                assert await complaint(server) == errno.EMSGSIZE, f"about what the endpoint of {name} sent"
                if node == "there":  # otherwise no router on the path could send an error
                    too_big(router, seen[0], seen, (endpoint, PORT))
                    assert await complaint(client) == errno.EMSGSIZE, f"about what the client of {name} sent"
                    assert client.getsockopt(socket.IPPROTO_IP, IP_MTU) == MTU


@needs_root
async def test_long_datagrams():
    """They arrive in fragments without ports: connection tracking finds their connection.

    Except for the first datagram of a connection, which has no conntrack entry yet: see `test_long_datagrams`.
    """
    async with routed_cluster() as cluster:
        for name, entry in entries():
            endpoint, _, place = ENDPOINTS[name]
            with (
                speaker(cluster.lab.namespace(*place)) as server,
                speaker(cluster.lab.namespace("host", "client")) as client,
            ):
                server.bind((endpoint, PORT))
                client.connect(entry)
                for question, answer in ((b"?", LONG), (LONG, b"!"), (LONG, LONG)):
                    seen = await talk(client, server, question, answer)
                assert (seen == client.getsockname()) == name.endswith("kept")


async def talk(client: socket.socket, server: socket.socket, question: bytes, answer: bytes) -> tuple[str, int]:
    """Returns the client address that the server saw."""
    client.send(question)
    asked, seen = await heard(server)
    assert asked == question
    server.sendto(answer, seen)
    assert await heard(client) == (answer, client.getpeername())
    return seen


@contextmanager
def speaker(namespace: str) -> Iterator[socket.socket]:
    """A UDP socket that reports every ICMP error."""
    with namespaces.entered(namespaces.path_of(namespace)):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with made:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        yield made


async def heard(made: socket.socket) -> tuple[bytes, tuple[str, int]]:
    async with asyncio.timeout(seconds(5)):
        return await asyncio.get_running_loop().sock_recvfrom(made, 65535)


async def complaint(made: socket.socket) -> int | None:
    try:
        await heard(made)
    except OSError as error:
        return error.errno
    return None


def too_big(router: str, to: str, source: tuple[str, int], destination: tuple[str, int]) -> None:
    """The router sends a "fragmentation needed" about a packet between these two."""
    udp = struct.pack("!HHHH", source[1], destination[1], 1380, 0)
    addresses = socket.inet_aton(source[0]) + socket.inet_aton(destination[0])
    header = struct.pack("!BBHHHBBH", 0x45, 0, 1400, 7, 0x4000, 60, socket.IPPROTO_UDP, 0) + addresses
    header = header[:10] + checksum(header) + header[12:]
    error = struct.pack("!BBHHH", 3, 4, 0, 0, MTU) + header + udp
    with (
        namespaces.entered(namespaces.path_of(router)),
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw,
    ):
        raw.sendto(error[:2] + checksum(error) + error[4:], (to, 0))


def checksum(data: bytes) -> bytes:
    return struct.pack("!H", 0xFFFF - sum(struct.unpack(f"!{len(data) // 2}H", data)) % 0xFFFF)
