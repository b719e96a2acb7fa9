"""SCTP packets of a server that look like replies to its client, because connection tracking does not know their ports.

The client is a Pod to which a policy lets nobody connect. The server, another Pod or a machine outside, must reach only
the port from which the client connected to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address

import pytest
import pytest_asyncio
from forged_frames import VIRTUAL_MAC, Place, arrived, ethernet, ip_packet, ip_type, mac_of, token
from labnet import needs_root, running_cluster

from windlass.lab.network import ovs
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.probing.packets import SCTP, Chunk, SctpPacket
from windlass.model.nodes import mac_for
from windlass.pipeline.tracking import POD_ZONE

CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: windlass-config, namespace: kube-system},
     data: {windlass.yaml: "trafficMode: noEncap"}}
  - {apiVersion: v1, kind: Node, metadata: {name: a}, spec: {podCIDRs: [172.16.1.0/24, "fd00:172:16:1::/64"]},
     status: {addresses: [
       {type: InternalIP, address: 10.176.25.11}, {type: InternalIP, address: "fd00:10:176:25::11"}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: client, labels: {app: client}}, spec: {nodeName: a},
     status: {podIPs: [{ip: 172.16.1.10}, {ip: "fd00:172:16:1::10"}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: server}, spec: {nodeName: a},
     status: {podIPs: [{ip: 172.16.1.20}, {ip: "fd00:172:16:1::20"}]}}
  - {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: nobody},
     spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Ingress]}}
  - {kind: ExternalHost, metadata: {name: outsider}, spec: {addresses: [10.176.25.99, "fd00:10:176:25::99"]}}
  - {kind: Probe, metadata: {name: the-server-answers}, spec: {from: {pod: default/client}, protocol: ICMP,
     to: {pod: default/server}}}
"""
FAMILIES = {4: ("172.16.1.10", "172.16.1.20", "10.176.25.99", "10.176.25.11")}
FAMILIES[6] = ("fd00:172:16:1::10", "fd00:172:16:1::20", "fd00:10:176:25::99", "fd00:10:176:25::11")
CLIENT_PORT, SERVER_PORT, CLOSED_PORT = 40000, 8080, 22
ROTATED = (CLIENT_PORT << 1 | 1) & 0xFFFF  # the number of the zone in which the client's source is translated

pytestmark = [needs_root, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[RunningCluster]:
    if ovs.datapath_type() != "netdev":
        pytest.skip("only the userspace datapath tracks SCTP without ports")
    async with running_cluster(CLUSTER) as made:
        yield made


@dataclass(frozen=True)
class Sender:
    """A machine that sends SCTP from its address."""

    place: Place
    address: str
    mac: str
    next_hop: str  # a MAC address

    def frame(self, to: str, ports: tuple[int, int], payload: bytes) -> bytes:
        packet = ip_packet(self.address, to, SCTP, SctpPacket(*ports, 1, Chunk.HEARTBEAT, payload).encode())
        return ethernet(self.next_hop, self.mac, ip_type(to), packet)


@pytest.mark.parametrize("version", FAMILIES)
@pytest.mark.parametrize("outside", [False, True], ids=["a Pod", "outside"])
async def test_a_server_reaches_only_the_port_of_its_client(cluster: RunningCluster, version: int, outside: bool):
    of_client, of_pod, of_outsider, of_node = FAMILIES[version]
    client_at, server_at = (Place(cluster.lab.namespace("pod", f"default/{name}")) for name in ("client", "server"))
    client = Sender(client_at, of_client, mac_for(ip_address(FAMILIES[4][0])), VIRTUAL_MAC)
    server, seen_as = Sender(server_at, of_pod, mac_for(ip_address(FAMILIES[4][1])), VIRTUAL_MAC), of_client
    if outside:
        outsider_at = Place(cluster.lab.namespace("host", "outsider"))
        node_mac = mac_of(Place(cluster.lab.namespace("node", "a"), "br-int"))
        server, seen_as = Sender(outsider_at, of_outsider, mac_of(outsider_at), node_mac), of_node
    request = partial(client.frame, server.address, (CLIENT_PORT, SERVER_PORT))
    reply = partial(server.frame, seen_as, (SERVER_PORT, CLIENT_PORT))
    assert await arrived(client.place, [request(sign := token())], sign, [server.place], (request, server.place))
    for source_port, port in (
        *((CLIENT_PORT, CLOSED_PORT), (SERVER_PORT, CLOSED_PORT), (SERVER_PORT, ROTATED), (CLIENT_PORT, ROTATED)),
        *((SERVER_PORT, POD_ZONE), (POD_ZONE, CLOSED_PORT)),
    ):
        forged = server.frame(seen_as, (source_port, port), sign := token())
        assert not await arrived(server.place, [forged], sign, [client.place], (reply, client.place)), (
            f"from port {source_port} to {port}"
        )
