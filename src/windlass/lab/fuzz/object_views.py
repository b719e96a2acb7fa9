"""The oracle's own views of Nodes and Services, with the defaults of Kubernetes.

The oracle judges the product, so it shares no decisions with it. Pods and ExternalHosts are read as in any scenario,
EndpointSlices by the product's plain data types.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address, ip_network

from msgspec import Struct, field

from windlass.model.families import Family, IPAddress, IPNetwork, family_of

ANOTHER_PROXY = "service.kubernetes.io/service-proxy-name"
ZONE = "topology.kubernetes.io/zone"


@lru_cache(maxsize=4096)  # the same few addresses are parsed many times
def address(text: str) -> IPAddress:
    return ip_address(text)


class MetadataView(Struct, frozen=True):
    name: str
    namespace: str = "default"
    labels: dict[str, str] = {}

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


# Nodes ----------------------------------------------------------------------------------------------------------


class _Address(Struct, frozen=True):
    type: str
    address: str


class _NodeSpec(Struct, frozen=True):
    cidrs: list[str] = field(name="podCIDRs", default_factory=list)


class _NodeStatus(Struct, frozen=True):
    addresses: list[_Address] = []


class NodeView(Struct, frozen=True):
    metadata: MetadataView
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def windows(self) -> bool:
        return self.metadata.labels.get("kubernetes.io/os") == "windows"

    @property
    def zone(self) -> str:
        return self.metadata.labels.get(ZONE, "")

    @property
    def addresses(self) -> tuple[IPAddress, ...]:
        """All addresses of the Node."""
        found = (address(a.address) for a in self.status.addresses if a.type in {"InternalIP", "ExternalIP"})
        return tuple(dict.fromkeys(found))

    @property
    def pod_cidrs(self) -> tuple[IPNetwork, ...]:
        return tuple(map(ip_network, self.spec.cidrs))

    def main(self, family: Family) -> IPAddress | None:
        """The Node IP of this family: the first InternalIP."""
        internal = (address(a.address) for a in self.status.addresses if a.type == "InternalIP")
        return next((own for own in internal if family_of(own) is family), None)

    def gateway(self, family: Family) -> IPAddress | None:
        """The address of its gateway: the first of the PodCIDR."""
        return next((cidr.network_address + 1 for cidr in self.pod_cidrs if family_of(cidr) is family), None)


# Services -------------------------------------------------------------------------------------------------------


class ServicePortView(Struct, frozen=True, rename="camel"):
    port: int
    name: str = ""
    protocol: str = "TCP"
    target_port: int | str | None = None
    node_port: int = 0


class _ServiceSpec(Struct, frozen=True, rename="camel"):
    type: str = "ClusterIP"
    cluster_ip: str = field(name="clusterIP", default="")
    cluster_ips: list[str] = field(name="clusterIPs", default_factory=list)
    external_ips: list[str] = field(name="externalIPs", default_factory=list)
    ports: list[ServicePortView] = []
    selector: dict[str, str] = {}
    publish_not_ready_addresses: bool = False
    external_traffic_policy: str = "Cluster"
    internal_traffic_policy: str = "Cluster"
    load_balancer_source_ranges: list[str] = []
    session_affinity: str = "None"


class _Ingress(Struct, frozen=True, rename="camel"):
    ip: str = ""
    ip_mode: str = "VIP"


class _LoadBalancer(Struct, frozen=True):
    ingress: list[_Ingress] = []


class _ServiceStatus(Struct, frozen=True, rename="camel"):
    load_balancer: _LoadBalancer = _LoadBalancer()


class ServiceView(Struct, frozen=True):
    metadata: MetadataView
    spec: _ServiceSpec = _ServiceSpec()
    status: _ServiceStatus = _ServiceStatus()

    @property
    def key(self) -> str:
        return self.metadata.key

    @property
    def served(self) -> bool:
        """Whether a proxy must serve it."""
        return (
            self.spec.type != "ExternalName"
            and "None" not in (self.spec.cluster_ip, *self.spec.cluster_ips)
            and ANOTHER_PROXY not in self.metadata.labels
        )

    @property
    def cluster_ips(self) -> tuple[IPAddress, ...]:
        return tuple(address(ip) for ip in self.spec.cluster_ips or [self.spec.cluster_ip] if ip)

    @property
    def families(self) -> tuple[Family, ...]:
        return tuple(map(family_of, self.cluster_ips))

    @property
    def external_ips(self) -> tuple[IPAddress, ...]:
        return tuple(map(address, self.spec.external_ips))

    @property
    def load_balancer_ips(self) -> tuple[IPAddress, ...]:
        """Those that the proxy serves: with ipMode Proxy, packets must go to the load balancer itself."""
        return tuple(address(i.ip) for i in self.status.load_balancer.ingress if i.ip and i.ip_mode == "VIP")

    @property
    def source_ranges(self) -> tuple[IPNetwork, ...]:
        return tuple(ip_network(cidr.strip()) for cidr in self.spec.load_balancer_source_ranges)
