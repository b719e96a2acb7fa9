"""UDP connections to a Pod or a ClusterIP whose datagrams are longer than a packet, in both directions.

They come in fragments, of which Open vSwitch shows a flow no port; in user space after connection tracking as well.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest
from labnet import needs_root, running_cluster

from windlass.lab.network.ovs import datapath_type
from windlass.lab.probing import sockets
from windlass.lab.probing.servers import NAME_REPLY, NAME_REQUEST, parse_identity
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.directives import ProbeSource
from windlass.model.families import family_of

if TYPE_CHECKING:
    from windlass.lab.orchestration.clusters import RunningCluster

SIZES = (2000, 5000, 20000, 2000)  # one connection each
CLUSTER_IPS = ("10.96.0.{}", "fd00:10:96::{}")
CLUSTER = """
apiVersion: v1
kind: List
items:
  - {{apiVersion: v1, kind: ConfigMap, metadata: {{name: windlass-config, namespace: kube-system}},
     data: {{windlass.yaml: "trafficMode: {mode}"}}}}
  - {{apiVersion: v1, kind: Node, metadata: {{name: here}}, spec: {{podCIDRs: [172.16.1.0/24, "fd00:172:16:1::/64"]}},
     status: {{addresses: [
       {{type: InternalIP, address: 10.176.25.11}}, {{type: InternalIP, address: "fd00:10:176:25::11"}}]}}}}
  - {{apiVersion: v1, kind: Node, metadata: {{name: there}}, spec: {{podCIDRs: [172.16.2.0/24, "fd00:172:16:2::/64"]}},
     status: {{addresses: [
       {{type: InternalIP, address: 10.176.25.12}}, {{type: InternalIP, address: "fd00:10:176:25::12"}}]}}}}
"""
POD = """
  - {{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: {app}, at: {node}}}}},
     spec: {{nodeName: {node}, hostNetwork: {on_host},
     containers: [{{name: c, ports: [{{containerPort: 5353, protocol: UDP}}]}}]}}}}
"""
SERVICE = """
  - {{apiVersion: v1, kind: Service, metadata: {{name: service-{number}}}, spec: {{selector: {{{selector}}},
     clusterIPs: [10.96.0.{number}, "fd00:10:96::{number}"], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack,
     sessionAffinity: {affinity},
     ports: [{{name: udp, port: 53, protocol: UDP, targetPort: 5353}}, {{name: tcp, port: 53, protocol: TCP}}]}}}}
"""
PODS = {f"default/web-{node}-{number}": ("web", node, "false") for node in ("here", "there") for number in (1, 2)}
HOSTS = {f"default/host-{node}": ("host", node, "true") for node in ("here", "there")}
# The last byte of its ClusterIPs: how it selects its endpoints, and what these are.
SERVICES = {
    81: ("app: web", set(PODS)),
    82: ("app: web, at: here", {"default/web-here-1", "default/web-here-2"}),
    83: ("app: web, at: there", {"default/web-there-1", "default/web-there-2"}),
    84: ("app: host, at: here", {"default/host-here"}),
    85: ("app: host, at: there", {"default/host-there"}),
}
STICKY = 86


def cluster_with(mode: str) -> str:
    parts = [
        POD.format(name=key.removeprefix("default/"), app=app, node=node, on_host=on_host)
        for key, (app, node, on_host) in (PODS | HOSTS).items()
    ]
    for number, (selector, _) in (SERVICES | {STICKY: SERVICES[81]}).items():
        affinity = "ClientIP" if number == STICKY else "None"
        parts.append(SERVICE.format(number=number, selector=selector, affinity=affinity))
    return CLUSTER.format(mode=mode) + "".join(part.lstrip("\n") for part in parts)


@needs_root
@pytest.mark.parametrize("mode", ["encap", "hybrid", "noEncap"])
async def test_long_datagrams(mode):
    async with running_cluster(cluster_with(mode)) as cluster:
        for address in cluster.addresses["default/web-here-2"] + cluster.addresses["default/web-there-2"]:
            assert len(await answering(cluster, ProbeSource(pod="default/web-here-1"), str(address), 5353)) == 1
        # A Pod that is its own endpoint, too.
        for source in (ProbeSource(pod="default/web-here-1"), ProbeSource(node="here")):
            for cluster_ip in CLUSTER_IPS:
                for number, (_, endpoints) in SERVICES.items():
                    # A host elsewhere answers in fragments for the wire. With the kernel's datapath they are too long
                    # for this host, whose gateway has the Pods' MTU.
                    if mode != "noEncap" and (number, source.node) == (85, "here") and datapath_type() == "system":
                        continue
                    assert await answering(cluster, source, cluster_ip.format(number)) <= endpoints
                assert len(await answering(cluster, source, cluster_ip.format(STICKY))) == 1


async def answering(cluster: RunningCluster, source: ProbeSource, address: str, port: int = 53) -> set[str]:
    """The endpoints that answer, each correctly. One at a time: the switch handles 32 fragments at once."""
    namespace = cluster.namespace_of(source)
    found: set[str] = set()
    for size in SIZES:
        try:
            found.add(await talk(namespace, address, port, size))
        except TimeoutError:
            pytest.fail(f"{source} to {address}: no answer to {size} bytes")
    return found


async def talk(namespace: str, address: str, port: int, size: int) -> str:
    """Send long datagrams, each once, and return the names of the endpoints that answered."""
    loop = asyncio.get_running_loop()
    with sockets.opened(namespace, family_of(ip_address(address)), socket.SOCK_DGRAM) as client:
        client.connect((address, port))
        for question in (b"=" * size, b"-" * size, NAME_REQUEST + bytes(4)):
            await loop.sock_sendall(client, question)
            async with asyncio.timeout(seconds(30)):
                answer = await loop.sock_recv(client, sockets.LARGEST_PACKET)
            assert answer == question or answer.startswith(NAME_REPLY)
        return parse_identity(answer[1:]).backend
