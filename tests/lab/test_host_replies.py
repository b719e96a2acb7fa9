"""ICMP errors and resets of a Node's host: those about a Pod's packet reach the Pod, the others the host.

Routes and routers are in scenarios/external; here are the host's firewall, and a route of smaller MTU by a second NIC.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from labnet import needs_root, running_cluster

from windlass.host.linux import namespaces
from windlass.host.linux.nftables import Nftables
from windlass.lab.probing import sockets
from windlass.lab.probing.dialers import SocketAddress
from windlass.lab.probing.traffic import ProbeTraffic, Traffic
from windlass.lab.scenarios.directives import ProbeSource
from windlass.lab.scenarios.objects import ProbeOutcome, ProbeProtocol
from windlass.model.families import Family, family_of

if TYPE_CHECKING:
    from windlass.lab.orchestration.clusters import RunningCluster

POD, NODE = ProbeSource(pod="default/client"), ProbeSource(node="node-1")
WORLD = ("192.0.2.80", "2001:db8:192::80")
BEYOND = ("10.176.27.36", "fd00:10:176:27::36")  # by the second NIC
PING = {Family.IPV4: (socket.IPPROTO_ICMP, 8), Family.IPV6: (socket.IPPROTO_ICMPV6, 128)}
RECEIVE_ERRORS = {Family.IPV4: (socket.IPPROTO_IP, 11), Family.IPV6: (socket.IPPROTO_IPV6, 25)}
CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: node-1}, spec: {podCIDRs: [172.16.1.0/24, "fd00:172:16:1::/64"]},
     status: {addresses: [
       {type: InternalIP, address: 10.176.25.11}, {type: InternalIP, address: "fd00:10:176:25::11"},
       {type: ExternalIP, address: 10.176.27.11}, {type: ExternalIP, address: "fd00:10:176:27::11"}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: client}, spec: {nodeName: node-1}}
  - {kind: ExternalHost, metadata: {name: world},
     spec: {addresses: [192.0.2.80, "2001:db8:192::80"], ports: [{port: 80}]}}
  - {kind: ExternalHost, metadata: {name: beyond},
     spec: {addresses: [10.176.27.36, "fd00:10:176:27::36"], ports: [{port: 80}]}}
  - {kind: Probe, metadata: {name: ping}, spec: {from: {pod: default/client},
     to: {address: 192.0.2.80}, protocol: ICMP}}
"""


@needs_root
async def test_icmp_errors_of_the_host_reach_the_sender():
    async with running_cluster(CLUSTER) as cluster:
        node = cluster.namespace_of(NODE)
        for address in WORLD:
            assert await connected(cluster, POD, address) == 0
        reject(node, "forward", {"reject": {"type": "tcp reset"}}, "tcp", "dport", 80)
        for address in WORLD:
            assert await connected(cluster, POD, address) == errno.ECONNREFUSED, "a reset by the host's firewall"
        reject(node, "output", {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}, "icmp", "type", 8)
        reject(node, "output", {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}, "icmpv6", "type", 128)
        for address in WORLD:
            assert await pinged(cluster, NODE, address) in {errno.EHOSTUNREACH, errno.EACCES}, "about its own packet"


@needs_root
async def test_a_route_of_smaller_mtu_by_a_second_nic():
    async with running_cluster(CLUSTER) as cluster:
        for address in map(ip_address, BEYOND):
            with namespaces.entered(namespaces.path_of(cluster.namespace_of(NODE))):
                route = ("ip", "route", "add", str(address), "dev", "eth1", "mtu", "1280")
                added = await asyncio.create_subprocess_exec(*route)
            assert await added.wait() == 0
            flow = ProbeTraffic(cluster.namespace_of(POD), ProbeProtocol.TCP, SocketAddress(address, 80), bytes=20_000)
            (attempt,) = (await Traffic(cluster.arrivals).observe(flow)).attempts
            assert attempt.outcome is ProbeOutcome.CONNECTED


def reject(namespace: str, hook: str, verdict: dict[str, object], protocol: str, field: str, value: int) -> None:
    """Rejects packets, as a firewall of the host would."""
    table = {"family": "inet", "table": "firewall"}
    chain = {**table, "name": hook, "type": "filter", "hook": hook, "prio": 0}
    match = {"op": "==", "left": {"payload": {"protocol": protocol, "field": field}}, "right": value}
    with namespaces.entered(namespaces.path_of(namespace)):
        nftables = Nftables()
        nftables.run(
            [
                {"add": {"table": {"family": "inet", "name": "firewall"}}},
                {"add": {"chain": chain}},
                {"add": {"rule": {**table, "chain": hook, "expr": [{"match": match}, verdict]}}},
            ]
        )
        nftables.close()


async def connected(cluster: RunningCluster, source: ProbeSource, address: str) -> int:
    """0, or the error of the attempt."""
    with sockets.opened(cluster.namespace_of(source), family_of(ip_address(address)), socket.SOCK_STREAM) as client:
        try:
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().sock_connect(client, (address, 80))
        except TimeoutError:
            return errno.ETIMEDOUT
        except OSError as error:
            return error.errno or -1
        return 0


async def pinged(cluster: RunningCluster, source: ProbeSource, address: str) -> int:
    """The error that an echo request gets."""
    family = family_of(ip_address(address))
    protocol, request = PING[family]
    with sockets.opened(cluster.namespace_of(source), family, socket.SOCK_RAW, protocol) as client:
        client.setsockopt(*RECEIVE_ERRORS[family], 1)
        client.connect((address, 0))
        echo = struct.pack("!BBHHH", request, 0, 0, 1, 1)
        checksum = struct.pack("!H", 0xFFFF - sum(struct.unpack("!4H", echo)) % 0xFFFF)
        try:
            async with asyncio.timeout(30):
                with suppress(PermissionError):  # the firewall says so to the sender at once, and then sends the error
                    await asyncio.get_running_loop().sock_sendall(client, echo[:2] + checksum + echo[4:])
                while True:
                    await asyncio.get_running_loop().sock_recv(client, 2000)
        except TimeoutError:
            return errno.ETIMEDOUT
        except OSError as error:
            return error.errno or -1
