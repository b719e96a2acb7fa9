"""One real connection is traced through a real cluster: the hops of its packets, and the flows of each switch."""

from __future__ import annotations

import struct
from ipaddress import ip_address

from labnet import needs_root, running_cluster

from windlass.bench.lab_clusters import scenario_of
from windlass.lab.tracing import captures, journeys
from windlass.lab.tracing.journeys import PacketPath, PathPoint
from windlass.lab.tracing.megaflows import Ends, Phase
from windlass.pipeline.layout import LAYOUT

CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: here}, spec: {podCIDRs: [172.16.1.0/24]},
     status: {addresses: [{type: InternalIP, address: 10.176.25.11}]}}
  - {apiVersion: v1, kind: Node, metadata: {name: there}, spec: {podCIDRs: [172.16.2.0/24]},
     status: {addresses: [{type: InternalIP, address: 10.176.25.12}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: client}, spec: {nodeName: here}, status: {podIPs: [{ip: 172.16.1.9}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: web, labels: {app: web}},
     spec: {nodeName: there, containers: [{ports: [{containerPort: 8080}]}]}, status: {podIPs: [{ip: 172.16.2.9}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: NodePort, clusterIP: 10.96.0.10,
     selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}}
  - {apiVersion: v1, kind: Service, metadata: {name: kept}, spec: {type: NodePort, clusterIP: 10.96.0.11,
     externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30081}]}}
  - {kind: ExternalHost, metadata: {name: outside}, spec: {addresses: [10.176.26.36]}}
  - {kind: Probe, metadata: {name: service}, spec: {from: {pod: default/client}, to: {service: default/web, port: 80}}}
  - {kind: Probe, metadata: {name: node-port}, spec: {from: {externalHost: outside},
     to: {nodePort: default/web, port: 80, node: here}}}
  - {kind: Probe, metadata: {name: nobody}, spec: {from: {externalHost: outside},
     to: {nodePort: default/kept, port: 80, node: here}, expect: {outcome: Timeout}}}
"""


def places(way: PacketPath) -> list[str]:
    return [str_of(way.hops[0].sender), *(str_of(hop.receiver) for hop in way.hops)]


def str_of(place: PathPoint) -> str:
    return f"{place.kind} {place.name}"


def tables(way: PacketPath, visit: int) -> list[list[str]]:
    return [[LAYOUT.tables[met.table].name for met in one.met if not met.outer] for one in way.visits[visit].passes]


@needs_root
async def test_a_connection_is_traced_hop_by_hop_in_both_directions():
    probes = {probe.name: probe for step in scenario_of("cluster", CLUSTER).steps for probe in step.probes}
    async with running_cluster(CLUSTER) as cluster:
        service = await journeys.follow(cluster, probes["service"])
        node_port = await journeys.follow(cluster, probes["node-port"])
        nobody = await journeys.follow(cluster, probes["nobody"])

    first, reply = service.first, service.paths[Phase.REPLY]
    assert places(first) == ["pod default/client", "switch here", "switch there", "pod default/web"]
    assert places(reply) == places(first)[::-1]
    assert service.asked == ("10.96.0.10", 80)
    assert first.hops[0].ends.destination == ip_address("10.96.0.10")
    assert str(first.hops[-1].ends.destination) == "172.16.2.9", "translated on the way"
    assert first.hops[1].outer is not None, "between the Nodes in a tunnel"
    assert reply.hops[-1].ends.source == ip_address("10.96.0.10"), "and back"
    assert tables(first, 0)[1][-1] == "ServiceLB"
    cookies = [met.cookie for one in first.visits[0].passes for met in one.met]
    assert all(service.known["here"][cookie].why for cookie in cookies), "the agent knows why each of them is there"
    assert set(service.pods["here"].values()) == {"default/client"}

    assert places(node_port.first) == ["externalHost outside", "switch here", "switch there", "pod default/web"]
    assert [*dict.fromkeys(places(node_port.paths[Phase.REPLY]))][-2:] == ["host here", "externalHost outside"]
    assert str(node_port.first.hops[-1].ends.source) == "172.16.1.1", "the endpoint sees the gateway"

    assert nobody.paths.keys() == {Phase.FIRST}
    assert nobody.first.visits[-1].passes[-1].actions == (), "dropped"


def test_a_segment_is_found_in_a_frame_and_in_a_tunnel():
    tcp = struct.pack("!HHIIBBHHH", 40000, 80, 7, 0, 5 << 4, 0x02, 0, 0, 0)
    inner = frame("10.0.0.1", "10.0.0.2", 6, tcp)
    assert (found := captures.segment_of(inner + bytes(6)))  # a short frame is padded
    assert found.header.ends == Ends(ip_address("10.0.0.1"), 40000, ip_address("10.0.0.2"), 80)
    assert (found.flags, found.length, found.outer) == (0x02, 0, None)
    geneve = struct.pack("!HHHH", 5, 6081, 0, 0) + bytes([1, 0, 0x65, 0x58, 0, 0, 0, 0]) + bytes(4) + inner
    assert (packed := captures.segment_of(frame("192.0.2.1", "192.0.2.2", 17, geneve)))
    assert packed.header == found.header
    assert packed.outer is not None
    assert str(packed.outer.ends) == "192.0.2.1:5 to 192.0.2.2:6081"
    assert captures.segment_of(frame("192.0.2.1", "192.0.2.2", 17, geneve[:2] + b"\0\x35" + geneve[4:])) is None
    assert captures.segment_of(bytes(60)) is None


def frame(source: str, destination: str, protocol: int, payload: bytes) -> bytes:
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0)
    addresses = ip_address(source).packed + ip_address(destination).packed
    return bytes.fromhex("020000000002020000000001") + b"\x08\x00" + header + addresses + payload
