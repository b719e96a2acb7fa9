"""A new denial cuts open connections, in both directions; when they are allowed again, they continue."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address

import pytest
from labnet import needs_root, running_cluster

from windlass.bench.lab_clusters import scenario_of
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.probing import sockets
from windlass.lab.probing.packets import UDP, internet_checksum, udp_datagram, with_ip_header
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.directives import ProbeSource
from windlass.model.families import family_of

PORT = 7777
PATIENCE = 20.0  # seconds: TCP doubles the time between its attempts while it is cut
CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: windlass-config, namespace: kube-system},
     data: {windlass.yaml: "trafficMode: MODE"}}
  - {apiVersion: v1, kind: Node, metadata: {name: here}, spec: {podCIDRs: [172.16.1.0/24, "fd00:172:16:1::/64"]},
     status: {addresses: [
       {type: InternalIP, address: 10.176.25.11}, {type: InternalIP, address: "fd00:10:176:25::11"}]}}
  - {apiVersion: v1, kind: Node, metadata: {name: there}, spec: {podCIDRs: [172.16.2.0/24, "fd00:172:16:2::/64"]},
     status: {addresses: [
       {type: InternalIP, address: 10.176.25.12}, {type: InternalIP, address: "fd00:10:176:25::12"}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: near, labels: {app: client}}, spec: {nodeName: there}}
  - {apiVersion: v1, kind: Pod, metadata: {name: far, labels: {app: client}}, spec: {nodeName: here}}
  - {apiVersion: v1, kind: Pod, metadata: {name: server, labels: {app: server}}, spec: {nodeName: there}}
  - {apiVersion: v1, kind: Service, metadata: {name: server}, spec: {selector: {app: server},
     clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd00:10:96::10"], ipFamilies: [IPv4, IPv6],
     ports: [{name: tcp, port: 7777}, {name: udp, port: 7777, protocol: UDP}]}}
"""
INGRESS = """
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny},
     spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress]}}
"""
EGRESS = """
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny},
     spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress]}}
"""
SOME_PORTS = """
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: some-ports},
     spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{ports: [{port: 80}]}]}}
"""
THIS_PORT = SOME_PORTS.replace("port: 80", f"port: {PORT}, protocol: UDP")
RESTARTS = """
  - {apiVersion: windlass.dev/v1alpha1, kind: Action, metadata: {name: here}, spec: {restartSwitch: here}}
  - {apiVersion: windlass.dev/v1alpha1, kind: Action, metadata: {name: there}, spec: {restartSwitch: there}}
"""
CLUSTER_IPS = ("10.96.0.10", "fd00:10:96::10")


@dataclass
class Connection:
    name: str
    client: socket.socket
    server: socket.socket

    async def passes(self, text: bytes, patience: float) -> tuple[bool, bool]:
        """Sends this from both ends, the client first. Returns whether it arrived at the server, and at the client."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.client, text)
        at_server = await arrives(self.server, text, patience)
        await loop.sock_sendall(self.server, text)
        return at_server, await arrives(self.client, text, patience)

    def report_time_exceeded(self, client_at: str) -> None:
        """The client answers the server's last datagram with an ICMP error, as for a lost fragment."""
        (client, port), (server, _) = self.client.getsockname()[:2], self.client.getpeername()[:2]
        source, to = ip_address(server), ip_address(client)
        datagram = udp_datagram(source, to, (PORT, port), b"push")
        quoted = with_ip_header(source, to, UDP, datagram)
        error = (11 if to.version == 4 else 3, socket.IPPROTO_ICMP if to.version == 4 else socket.IPPROTO_ICMPV6)
        message = struct.pack("!BBHI", error[0], 1, 0, 0) + quoted
        if to.version == 4:  # the kernel computes the checksum of ICMPv6 only
            message = message[:2] + struct.pack("!H", internet_checksum(message)) + message[4:]
        with sockets.opened(client_at, family_of(to), socket.SOCK_RAW, error[1]) as raw:
            raw.sendto(message, (server, 0))

    async def push_arrives(self) -> bool:
        """The server sends; the client sends nothing."""
        await asyncio.get_running_loop().sock_sendall(self.server, b"push")
        return await arrives(self.client, b"push", 0.5)


async def arrives(sock: socket.socket, text: bytes, patience: float) -> bool:
    """TCP may send delayed data first."""
    loop, seen = asyncio.get_running_loop(), b""
    try:
        async with asyncio.timeout(seconds(patience)):
            while text not in seen:
                seen += await loop.sock_recv(sock, 4096)
    except TimeoutError:
        return False
    return True


async def tcp(stack: ExitStack, client_at: str, server_at: str, address: str) -> Connection:
    loop, family = asyncio.get_running_loop(), family_of(ip_address(address))
    listening = stack.enter_context(sockets.opened(server_at, family, socket.SOCK_STREAM))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("", PORT))
    listening.listen()
    client = stack.enter_context(sockets.opened(client_at, family, socket.SOCK_STREAM))
    await loop.sock_connect(client, (address, PORT))
    accepted, _ = await loop.sock_accept(listening)
    listening.close()
    return Connection(f"TCP to {address}", client, stack.enter_context(accepted))


async def udp(stack: ExitStack, client_at: str, server_at: str, address: str) -> Connection:
    loop, family = asyncio.get_running_loop(), family_of(ip_address(address))
    server = stack.enter_context(sockets.opened(server_at, family, socket.SOCK_DGRAM))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", PORT))
    client = stack.enter_context(sockets.opened(client_at, family, socket.SOCK_DGRAM))
    client.connect((address, PORT))
    await loop.sock_sendall(client, b"hello")
    _, peer = await loop.sock_recvfrom(server, 4096)
    server.connect(peer)
    return Connection(f"UDP to {address}", client, server)


Opens = Callable[[ExitStack, str, str, str], Awaitable[Connection]]


async def opened(
    stack: ExitStack, cluster: RunningCluster, ways: Sequence[Opens] = (tcp, udp), services: Sequence[str] = CLUSTER_IPS
) -> list[Connection]:
    server_at = cluster.namespace_of(ProbeSource(pod="default/server"))
    found = []
    for client in ("default/near", "default/far"):
        client_at = cluster.namespace_of(ProbeSource(pod=client))
        for address in (*map(str, cluster.addresses["default/server"]), *services):
            for opens in ways:
                one = await opens(stack, client_at, server_at, address)
                one.name += f" from {client}"
                found.append(one)
    return found


async def all_pass(connections: list[Connection], text: bytes, patience: float) -> dict[str, tuple[bool, bool]]:
    results = await asyncio.gather(*(one.passes(text, patience) for one in connections))
    return dict(zip([one.name for one in connections], results, strict=True))


async def pushes_become(connections: list[Connection], *, arriving: bool) -> dict[str, bool]:
    """For each connection, whether pushes arrive: as expected, or after the patience of the test."""

    async def result(one: Connection) -> bool:
        try:
            async with asyncio.timeout(seconds(PATIENCE)):
                while await one.push_arrives() is not arriving:
                    pass
        except TimeoutError:
            return not arriving
        return arriving

    results = await asyncio.gather(*map(result, connections))
    return dict(zip([one.name for one in connections], results, strict=True))


async def reach(cluster: RunningCluster, text: str) -> None:
    *_, (step, desired) = scenario_of("cluster", text).states()
    await cluster.reach(desired, step.actions)


@needs_root
@pytest.mark.parametrize(
    ("mode", "policy"), [("encap", INGRESS), ("encap", EGRESS), ("noEncap", INGRESS), ("hybrid", EGRESS)]
)
async def test_a_new_denial_cuts_open_connections_and_an_allowance_restores_them(mode: str, policy: str) -> None:
    text = CLUSTER.replace("MODE", mode)
    with ExitStack() as stack:
        async with running_cluster(text) as cluster:
            connections = await opened(stack, cluster)
            names = [one.name for one in connections]
            assert await all_pass(connections, b"allowed", PATIENCE) == dict.fromkeys(names, (True, True))
            await reach(cluster, text + policy)
            assert await all_pass(connections, b"denied!", 1.0) == dict.fromkeys(names, (False, False))
            await reach(cluster, text)
            assert await all_pass(connections, b"allowed again", PATIENCE) == dict.fromkeys(names, (True, True))


@needs_root
@pytest.mark.parametrize(("mode", "policy"), [("encap", EGRESS), ("noEncap", INGRESS)])
async def test_replies_to_a_silent_client_are_cut_and_restored_too(mode: str, policy: str) -> None:
    """Nothing but the replies of the server passes. So no packet of a UDP client shows the switch that it is denied.
    A TCP client acknowledges replies, but none while it is cut: no packet shows that it is allowed again.
    """
    text = CLUSTER.replace("MODE", mode)
    with ExitStack() as stack:
        async with running_cluster(text) as cluster:
            connections = await opened(stack, cluster)
            names = [one.name for one in connections]
            assert await pushes_become(connections, arriving=True) == dict.fromkeys(names, True)
            await reach(cluster, text + policy)
            assert await pushes_become(connections, arriving=False) == dict.fromkeys(names, False)
            await reach(cluster, text)
            assert await pushes_become(connections, arriving=True) == dict.fromkeys(names, True)


@needs_root
@pytest.mark.parametrize("policy", [INGRESS, EGRESS])
async def test_a_server_that_sends_first_after_a_restart_of_the_switch_is_not_taken_for_the_client(policy: str) -> None:
    """The userspace datapath loses all connections then. Policies would not cut a connection of the server's."""
    text = CLUSTER.replace("MODE", "encap")
    with ExitStack() as stack:
        async with running_cluster(text) as cluster:
            connections = await opened(stack, cluster, (tcp,), services=())
            names = [one.name for one in connections]
            await reach(cluster, text + RESTARTS)
            assert await pushes_become(connections, arriving=True) == dict.fromkeys(names, True)
            await reach(cluster, text + policy)
            assert await pushes_become(connections, arriving=False) == dict.fromkeys(names, False)


async def stay_cut(connections: list[Connection]) -> dict[str, bool]:
    """For each connection, whether a push of the server arrives."""
    results = await asyncio.gather(*(one.push_arrives() for one in connections))
    return dict(zip([one.name for one in connections], results, strict=True))


@needs_root
async def test_neither_icmp_errors_nor_fragments_of_a_denied_client_restore_its_connection() -> None:
    """A fragment shows no port, and an ICMP error is not judged. Long datagrams pass while policies allow the port."""
    text = CLUSTER.replace("MODE", "encap")
    with ExitStack() as stack:
        async with running_cluster(text) as cluster:
            connections = await opened(stack, cluster, (udp,))
            names = [one.name for one in connections]
            assert await pushes_become(connections, arriving=True) == dict.fromkeys(names, True)
            long = bytes(4000)
            await reach(cluster, text + THIS_PORT)
            assert await all_pass(connections, long, PATIENCE) == dict.fromkeys(names, (True, True))
            await reach(cluster, text + SOME_PORTS)
            assert await pushes_become(connections, arriving=False) == dict.fromkeys(names, False)
            for one in connections:
                one.report_time_exceeded(cluster.namespace_of(ProbeSource(pod=one.name.rpartition(" ")[2])))
            assert await stay_cut(connections) == dict.fromkeys(names, False)
            for one in connections:
                await asyncio.get_running_loop().sock_sendall(one.client, long)
            arriving = await asyncio.gather(*(arrives(one.server, long, 0.5) for one in connections))
            assert dict(zip(names, arriving, strict=True)) == dict.fromkeys(names, False)
            assert await stay_cut(connections) == dict.fromkeys(names, False)
