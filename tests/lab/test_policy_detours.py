"""A Service whose endpoint is the ClusterIP of another Service: the client must not pass policies as its Node.

The switch translates the client to its Node to send it to an endpoint outside of the Pod network, and the host would
route the packet back to the switch.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

import pytest
from forged_frames import ROUNDS, token
from labnet import needs_root, running_cluster

from windlass.lab.probing import sockets
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.directives import ProbeSource
from windlass.model.families import family_of

PORT = 7777
# The addresses of the server, of its Service, and of the Service with that address as its endpoint.
ADDRESSES = {
    "172.16.1.20": ("10.96.0.10", "10.96.0.66"),
    "fd00:172:16:1::20": ("fd00:10:96::10", "fd00:10:96::66"),
}
CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: windlass-config, namespace: kube-system},
     data: {windlass.yaml: "serviceCIDRs: RANGES"}}
  - {apiVersion: v1, kind: Node, metadata: {name: here}, spec: {podCIDRs: [172.16.1.0/24, "fd00:172:16:1::/64"]},
     status: {addresses: [
       {type: InternalIP, address: 10.176.25.11}, {type: InternalIP, address: "fd00:10:176:25::11"}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: client}, spec: {nodeName: here}}
  - {apiVersion: v1, kind: Pod, metadata: {name: server, labels: {app: server}}, spec: {nodeName: here},
     status: {podIPs: [{ip: 172.16.1.20}, {ip: "fd00:172:16:1::20"}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: server}, spec: {selector: {app: server},
     clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd00:10:96::10"], ipFamilies: [IPv4, IPv6],
     ports: [{port: 7777, protocol: UDP}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: detour}, spec: {
     clusterIP: 10.96.0.66, clusterIPs: [10.96.0.66, "fd00:10:96::66"], ipFamilies: [IPv4, IPv6],
     ports: [{port: 7777, protocol: UDP}]}}
  - {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
     metadata: {name: detour-4, labels: {kubernetes.io/service-name: detour}},
     endpoints: [{addresses: [10.96.0.10]}], ports: [{name: "", port: 7777, protocol: UDP}]}
  - {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv6,
     metadata: {name: detour-6, labels: {kubernetes.io/service-name: detour}},
     endpoints: [{addresses: ["fd00:10:96::10"]}], ports: [{name: "", port: 7777, protocol: UDP}]}
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny},
     spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress]}}
"""


async def arrives(client_at: str, listener: socket.socket, address: str) -> bool:
    """Whether one of some datagrams from there to this address arrives."""
    loop, sign = asyncio.get_running_loop(), token()
    with sockets.opened(client_at, family_of(ip_address(address)), socket.SOCK_DGRAM) as client:
        for _ in range(ROUNDS):
            client.sendto(sign, (address, PORT))
            try:
                async with asyncio.timeout(seconds(0.5)):
                    while sign not in await loop.sock_recv(listener, 4096):
                        pass
                    return True
            except TimeoutError:
                continue
    return False


@needs_root
@pytest.mark.parametrize("ranges", ["[10.96.0.0/16, 'fd00:10:96::/112']", "[]"])
async def test_a_client_that_policies_deny_reaches_no_pod_through_a_service_in_front_of_its_service(
    ranges: str,
) -> None:
    async with running_cluster(CLUSTER.replace("RANGES", ranges)) as cluster:
        server_at, client_at = (cluster.namespace_of(ProbeSource(pod=f"default/{pod}")) for pod in ("server", "client"))
        node_at = cluster.namespace_of(ProbeSource(node="here"))
        for server, (service, detour) in ADDRESSES.items():
            with sockets.opened(server_at, family_of(ip_address(server)), socket.SOCK_DGRAM) as listener:
                listener.bind((server, PORT))
                seen = {address: await arrives(client_at, listener, address) for address in (server, service, detour)}
                assert seen == dict.fromkeys((server, service, detour), False)
                assert await arrives(node_at, listener, service), "the Node itself reaches it"
