"""The cluster in which packets are forged, its addresses, and valid packets to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from forged_frames import (
    GENEVE,
    IPV4,
    VIRTUAL_MAC,
    VXLAN,
    Place,
    ethernet,
    ip_type,
    mac_of,
    udp,
)

from windlass.model.nodes import mac_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from windlass.lab.orchestration.clusters import RunningCluster


class Family(NamedTuple):
    """The addresses of all machines and Pods in one family."""

    a: str
    b: str
    gateway_a: str
    gateway_b: str
    mallory: str
    alice: str
    bob: str
    outsider: str
    stranger: str
    service: str  # a ClusterIP whose endpoint is the tunnel's port of Node b


V4 = Family(
    *("10.176.25.11", "10.176.26.12", "172.16.1.1", "172.16.2.1", "172.16.1.66", "172.16.1.20", "172.16.2.20"),
    *("10.176.26.99", "198.51.100.7", "10.96.0.66"),
)
V6 = Family(
    *("fd00:10:176:25::11", "fd00:10:176:26::12", "fd00:172:16:1::1", "fd00:172:16:2::1", "fd00:172:16:1::66"),
    *("fd00:172:16:1::20", "fd00:172:16:2::20", "fd00:10:176:26::99", "2001:db8:bad::7", "fd00:10:96::66"),
)
BOTH = {"IPv4": V4, "IPv6": V6}
MODES = {"encap": ("geneve", GENEVE), "hybrid": ("vxlan", VXLAN)}
OUTSIDER_MAC, ANOTHER_MAC = "02:00:00:00:00:99", "02:00:00:00:00:98"


CLUSTER = """
apiVersion: v1
kind: List
items:
  - {{apiVersion: v1, kind: ConfigMap, metadata: {{name: windlass-config, namespace: kube-system}},
     data: {{windlass.yaml: "{{trafficMode: {mode}, tunnelType: {type},
       nodePortAddresses: [10.176.26.0/24, 'fd00:10:176:26::/64']}}"}}}}
  - {{apiVersion: v1, kind: Node, metadata: {{name: a}}, spec: {{podCIDRs: [172.16.1.0/24, "fd00:172:16:1::/64"]}},
     status: {{addresses: [
       {{type: InternalIP, address: 10.176.25.11}}, {{type: InternalIP, address: "fd00:10:176:25::11"}}]}}}}
  - {{apiVersion: v1, kind: Node, metadata: {{name: b}}, spec: {{podCIDRs: [172.16.2.0/24, "fd00:172:16:2::/64"]}},
     status: {{addresses: [
       {{type: InternalIP, address: 10.176.26.12}}, {{type: InternalIP, address: "fd00:10:176:26::12"}}]}}}}
  - {{apiVersion: v1, kind: Pod, metadata: {{name: mallory}}, spec: {{nodeName: a}},
     status: {{podIPs: [{{ip: 172.16.1.66}}, {{ip: "fd00:172:16:1::66"}}]}}}}
  - {{apiVersion: v1, kind: Pod, metadata: {{name: alice}}, spec: {{nodeName: a}},
     status: {{podIPs: [{{ip: 172.16.1.20}}, {{ip: "fd00:172:16:1::20"}}]}}}}
  - {{apiVersion: v1, kind: Pod, metadata: {{name: bob, labels: {{app: bob}}}}, spec: {{nodeName: b,
     containers: [{{name: c, ports: [{{containerPort: 80}}]}}]}},
     status: {{podIPs: [{{ip: 172.16.2.20}}, {{ip: "fd00:172:16:2::20"}}]}}}}
  - {{apiVersion: v1, kind: Service, metadata: {{name: web}}, spec: {{type: NodePort, selector: {{app: bob}},
     clusterIPs: [10.96.0.10, "fd00:10:96::10"], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack,
     ports: [{{port: 80, nodePort: 30080}}]}}}}
  - {{apiVersion: v1, kind: Service, metadata: {{name: tunnel}}, spec: {{type: NodePort, externalTrafficPolicy: Local,
     clusterIPs: [10.96.0.66, "fd00:10:96::66"], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack,
     ports: [{{port: 53, protocol: UDP, nodePort: 30066}}]}}}}
  - {{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
     metadata: {{name: tunnel-4, labels: {{kubernetes.io/service-name: tunnel}}}},
     endpoints: [{{addresses: [10.176.26.12], nodeName: b}}], ports: [{{name: "", port: {port}, protocol: UDP}}]}}
  - {{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv6,
     metadata: {{name: tunnel-6, labels: {{kubernetes.io/service-name: tunnel}}}},
     endpoints: [{{addresses: ["fd00:10:176:26::12"], nodeName: b}}],
     ports: [{{name: "", port: {port}, protocol: UDP}}]}}
  - {{kind: ExternalHost, metadata: {{name: outsider}}, spec: {{addresses: [10.176.26.99, "fd00:10:176:26::99"]}}}}
  - {{kind: Probe, metadata: {{name: bob-is-there}}, spec: {{from: {{pod: default/mallory}}, protocol: ICMP,
     to: {{pod: default/bob}}}}}}
"""


@dataclass(frozen=True)
class Scene:
    """A running cluster, with the sources and destinations of frames."""

    cluster: RunningCluster
    port: int  # of the tunnel

    def pod(self, name: str) -> Place:
        return Place(self.cluster.lab.namespace("pod", f"default/{name}"))

    def node(self, name: str, interface: str) -> Place:
        return Place(self.cluster.lab.namespace("node", name), interface)

    @property
    def outsider(self) -> Place:
        return Place(self.cluster.lab.namespace("host", "outsider"))

    def mac_of(self, name: str) -> str:
        return mac_of(self.node(name, "br-int"))


def from_outside(mac: str, source: str, to: str, port: int, payload: bytes) -> bytes:
    return ethernet(mac, OUTSIDER_MAC, ip_type(to), udp(source, to, (1234, port), payload))


def to_node(mac: str, ends: Family, sign: bytes) -> bytes:
    """A valid packet from outside to the host of Node b."""
    return from_outside(mac, ends.outsider, ends.b, 5300, sign)


def bridge(scene: Scene) -> Place:
    return scene.node("b", "br-int")


def mallory_mac() -> str:
    return mac_for(ip_address(V4.mallory))


def from_mallory(packet: bytes, *tags: int) -> bytes:
    return ethernet(VIRTUAL_MAC, mallory_mac(), IPV4 if packet[0] >> 4 == 4 else 0x86DD, packet, *tags)


def control_of_mallory(scene: Scene, ends: Family) -> tuple[Callable[[bytes], bytes], Place]:
    """A valid packet to the host of Node b, which leaves with the address of Node a."""

    def honest(sign: bytes) -> bytes:
        return from_mallory(udp(ends.mallory, ends.b, (1234, 5300), sign))

    return honest, bridge(scene)
