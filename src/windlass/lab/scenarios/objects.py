"""Kubernetes objects as a scenario writes them: the fields that the lab itself uses, checked, with errors for people.

Other fields are ignored: the agents get each object as it was written. The lab's own objects are in directives.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import force_setattr

from windlass.cluster.clusters import KINDS
from windlass.cluster.objects import PROXY_NAME_LABEL, LoadBalancerStatus, NodeStatus, PodIP, ServiceStatus
from windlass.model.families import Family, IPAddress, IPNetwork, family_of


class ProbeProtocol(Enum):
    TCP = "TCP"
    UDP = "UDP"
    SCTP = "SCTP"
    ICMP = "ICMP"


class ProbeOutcome(Enum):
    CONNECTED = "Connected"
    REFUSED = "Refused"  # a reset, an abort, or an ICMP unreachable
    TIMEOUT = "Timeout"


class IPFamily(Enum):
    IPV4 = "IPv4"
    IPV6 = "IPv6"

    @property
    def family(self) -> Family:
        return Family.IPV4 if self is IPFamily.IPV4 else Family.IPV6


class LabMetadata(Struct, frozen=True, rename="camel"):
    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] | None = None
    deletion_timestamp: object = None  # a time in YAML, a string in JSON; only its presence matters

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name: is empty; every object has a name")

    @property
    def key(self) -> str:
        """`namespace/name`, as kubectl and the scenario format write it."""
        return f"{self.namespace or 'default'}/{self.name}"


# The same few addresses and networks are parsed many times.
parsed = lru_cache(maxsize=4096)(ip_address)
parsed_network = lru_cache(maxsize=4096)(ip_network)


# Nodes -------------------------------------------------------------------------------------------------------


ZONE_LABEL = "topology.kubernetes.io/zone"
IP_TYPES = frozenset({"InternalIP", "ExternalIP"})


class LabNodeSpec(Struct, frozen=True):
    pod_cidr: str = field(name="podCIDR", default="")  # the older field: repeats the first of podCIDRs
    pod_cidrs: list[str] = field(name="podCIDRs", default_factory=list)

    def __post_init__(self) -> None:
        if self.pod_cidr:
            check_network("podCIDR", self.pod_cidr)
        for i, cidr in enumerate(self.pod_cidrs):
            check_network(f"podCIDRs[{i}]", cidr)


TRANSLATED_ADDRESSES = "lab.windlass.dev/translated-addresses"  # an annotation: addresses separated by commas


class LabNode(Struct, frozen=True):
    metadata: LabMetadata
    spec: LabNodeSpec = LabNodeSpec()
    status: NodeStatus = NodeStatus()

    def __post_init__(self) -> None:
        for address in (self.metadata.annotations or {}).get(TRANSLATED_ADDRESSES, "").split(","):
            if address.strip():
                check_address(f"metadata.annotations[{TRANSLATED_ADDRESSES}]", address.strip())
        for i, written in enumerate(self.status.addresses):
            if written.type in IP_TYPES:
                check_address(f"status.addresses[{i}].address", written.address)
        if not self.addresses:
            raise ValueError("status.addresses: has no InternalIP; the first one is the Node IP on the bridge")
        if not self.pod_cidrs:
            raise ValueError("spec.podCIDRs: is missing; the Node's Pods get their addresses from it")

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def pod_cidrs(self) -> dict[Family, IPNetwork]:
        written = self.spec.pod_cidrs or [self.spec.pod_cidr]
        return _first_of_each_family(parsed_network(cidr) for cidr in written if cidr)

    @property
    def addresses(self) -> dict[Family, IPAddress]:
        """The Node IP of each family: the first InternalIP."""
        return _first_of_each_family(parsed(a.address) for a in self.status.addresses if a.type == "InternalIP")

    @property
    def all_addresses(self) -> tuple[IPAddress, ...]:
        return tuple(dict.fromkeys(parsed(a.address) for a in self.status.addresses if a.type in IP_TYPES))

    @property
    def other_addresses(self) -> tuple[IPAddress, ...]:
        """The addresses of the second NIC, which is not on the bridge."""
        main = {*self.addresses.values(), *self.translated_addresses}
        return tuple(address for address in self.all_addresses if address not in main)

    @property
    def translated_addresses(self) -> tuple[IPAddress, ...]:
        """Addresses that no NIC has: the cloud translates them to the Node IP."""
        written = (self.metadata.annotations or {}).get(TRANSLATED_ADDRESSES, "")
        return tuple(ip_address(text.strip()) for text in written.split(",") if text.strip())

    @property
    def zone(self) -> str:
        return self.metadata.labels.get(ZONE_LABEL, "")

    @property
    def is_windows(self) -> bool:
        return self.metadata.labels.get("kubernetes.io/os") == "windows"

    def gateway(self, family: Family) -> IPAddress | None:
        cidr = self.pod_cidrs.get(family)
        return cidr.network_address + 1 if cidr else None


# Pods --------------------------------------------------------------------------------------------------------


class LabContainerPort(Struct, frozen=True, rename="camel"):
    container_port: int
    protocol: ProbeProtocol = ProbeProtocol.TCP
    name: str = ""

    def __post_init__(self) -> None:
        check_port("containerPort", self.container_port)
        check_transport("protocol", self.protocol)


class LabContainer(Struct, frozen=True, rename="camel"):
    ports: list[LabContainerPort] = []
    restart_policy: str = ""  # Always: of the init containers, a sidecar


class LabPodSpec(Struct, frozen=True, rename="camel"):
    node_name: str = ""
    host_network: bool = False
    containers: list[LabContainer] = []
    init_containers: list[LabContainer] = []


class PodCondition(Struct, frozen=True):
    type: str
    status: str


class LabPodStatus(Struct, frozen=True, rename="camel"):
    pod_ip: str | None = field(name="podIP", default=None)  # accepted alone, too
    pod_ips: list[PodIP] = field(name="podIPs", default_factory=list)
    conditions: list[PodCondition] = []
    phase: str = ""

    def __post_init__(self) -> None:
        if self.pod_ip and not self.pod_ips:
            force_setattr(self, "pod_ips", [PodIP(self.pod_ip)])
        for i, pod_ip in enumerate(self.pod_ips):
            check_address(f"podIPs[{i}].ip", pod_ip.ip or "")


class LabPod(Struct, frozen=True):
    metadata: LabMetadata
    spec: LabPodSpec = LabPodSpec()
    status: LabPodStatus = LabPodStatus()

    @property
    def key(self) -> str:
        return self.metadata.key

    @property
    def ports(self) -> tuple[LabContainerPort, ...]:
        sidecars = (one for one in self.spec.init_containers if one.restart_policy == "Always")
        containers = (*self.spec.containers, *sidecars)
        return tuple(port for container in containers for port in container.ports)

    @property
    def fixed_addresses(self) -> tuple[IPAddress, ...]:
        """The addresses that the manifest requests. A hostNetwork Pod has those of its Node instead."""
        return () if self.spec.host_network else tuple(parsed(one.ip) for one in self.status.pod_ips if one.ip)

    @property
    def ready(self) -> bool:
        return all(c.status != "False" for c in self.status.conditions if c.type == "Ready")

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def runs(self) -> bool:
        """Whether it has a network: it is scheduled to a Node and has not ended."""
        return bool(self.spec.node_name) and self.status.phase not in {"Succeeded", "Failed"}


# Services ----------------------------------------------------------------------------------------------------


class LabServicePort(Struct, frozen=True, rename="camel"):
    port: int
    name: str = ""
    protocol: ProbeProtocol = ProbeProtocol.TCP
    target_port: int | str | None = None
    node_port: int | None = None

    def __post_init__(self) -> None:
        # Port numbers are not checked: a scenario may test how the agents handle invalid ones.
        check_transport("protocol", self.protocol)


class LabServiceSpec(Struct, frozen=True, rename="camel"):
    type: str = "ClusterIP"
    cluster_ip: str = field(name="clusterIP", default="")
    cluster_ips: list[str] = field(name="clusterIPs", default_factory=list)
    ip_families: list[IPFamily] = []
    external_ips: list[str] = field(name="externalIPs", default_factory=list)
    ports: list[LabServicePort] = []
    selector: dict[str, str] = {}
    publish_not_ready_addresses: bool = False
    external_traffic_policy: str = "Cluster"
    internal_traffic_policy: str = "Cluster"
    load_balancer_source_ranges: list[str] = []
    session_affinity: str = "None"

    def __post_init__(self) -> None:
        for i, ip in enumerate(self.cluster_ips):
            if ip != "None":
                check_address(f"clusterIPs[{i}]", ip)
        if self.cluster_ip not in {"", "None"}:
            check_address("clusterIP", self.cluster_ip)
        for i, ip in enumerate(self.external_ips):
            check_address(f"externalIPs[{i}]", ip)


class LabService(Struct, frozen=True):
    metadata: LabMetadata
    spec: LabServiceSpec = LabServiceSpec()
    status: ServiceStatus = ServiceStatus()

    def __post_init__(self) -> None:
        for i, ingress in enumerate(self._load_balancer.ingress or ()):
            if ingress.ip:
                check_address(f"status.loadBalancer.ingress[{i}].ip", ingress.ip)

    @property
    def key(self) -> str:
        return self.metadata.key

    @property
    def cluster_ips(self) -> tuple[IPAddress, ...]:
        """Empty for a headless Service."""
        return tuple(parsed(ip) for ip in self._written_cluster_ips if ip not in {"", "None"})

    @property
    def headless(self) -> bool:
        return "None" in self._written_cluster_ips

    @property
    def is_served(self) -> bool:
        """Whether a proxy must serve it."""
        return self.spec.type != "ExternalName" and not self.headless and PROXY_NAME_LABEL not in self.metadata.labels

    @property
    def load_balancer_ips(self) -> tuple[IPAddress, ...]:
        """The addresses of load balancers, without host names, which some clouds give instead of addresses."""
        return tuple(parsed(i.ip) for i in self._load_balancer.ingress or () if i.ip)

    @property
    def served_load_balancer_ips(self) -> tuple[IPAddress, ...]:
        """The addresses that the proxy serves: with ipMode Proxy, packets must go to the load balancer itself."""
        ingress = self._load_balancer.ingress or ()
        return tuple(parsed(i.ip) for i in ingress if i.ip and i.ip_mode != "Proxy")

    @property
    def external_ips(self) -> tuple[IPAddress, ...]:
        return tuple(map(parsed, self.spec.external_ips))

    @property
    def families(self) -> tuple[Family, ...]:
        """The families, with the defaults of the API server: those of the ClusterIPs, else IPv4."""
        declared = tuple(f.family for f in self.spec.ip_families)
        return declared or tuple(family_of(ip) for ip in self.cluster_ips) or (Family.IPV4,)

    @property
    def _load_balancer(self) -> LoadBalancerStatus:
        return self.status.load_balancer or LoadBalancerStatus()

    @property
    def _written_cluster_ips(self) -> list[str]:
        return self.spec.cluster_ips or [self.spec.cluster_ip]


# Objects that the lab only passes on -------------------------------------------------------------------------


class ConfigMap(Struct, frozen=True):
    metadata: LabMetadata
    data: dict[str, str] = {}


class OpaqueObject(Struct, frozen=True):
    """An object that the agents read, and of which the lab needs only the name."""

    metadata: LabMetadata


LabObject = LabNode | LabPod | LabService | ConfigMap | OpaqueObject

CLUSTER_SCOPED = frozenset(kind.name for kind in KINDS if not kind.struct.is_namespaced)
KUBERNETES_KINDS: Mapping[tuple[str, str], type[LabObject]] = {
    **{(kind.api_version, kind.name): OpaqueObject for kind in KINDS},
    ("v1", "Node"): LabNode,
    ("v1", "Pod"): LabPod,
    ("v1", "Service"): LabService,
    ("v1", "ConfigMap"): ConfigMap,
}


@dataclass(frozen=True, slots=True)
class KubernetesObject:
    kind: str
    view: LabObject
    raw: Mapping[str, object]  # as written, for the agents

    @property
    def key(self) -> str:
        """`namespace/name`, or the name alone where the kind has no namespaces."""
        metadata = self.view.metadata
        return metadata.name if self.kind in CLUSTER_SCOPED else metadata.key


# Checks whose errors name the field --------------------------------------------------------------------------


def check_address(where: str, value: str) -> None:
    try:
        ip_address(value)
    except ValueError:
        raise ValueError(f"{where}: {value!r} is not an IP address") from None


def check_network(where: str, value: str) -> None:
    try:
        ip_network(value)
    except ValueError as error:
        raise ValueError(f"{where}: {value!r} is not an IP network: {error}") from None


def check_port(where: str, value: int) -> None:
    if not 0 < value < 65536:
        raise ValueError(f"{where}: {value} is not a port; ports are 1 to 65535")


def check_transport(where: str, value: ProbeProtocol) -> None:
    if value is ProbeProtocol.ICMP:
        raise ValueError(f"{where}: ICMP has no ports; TCP, UDP and SCTP have")


_T = TypeVar("_T", IPAddress, IPNetwork)


def _first_of_each_family(values: Iterable[_T]) -> dict[Family, _T]:
    first: dict[Family, _T] = {}
    for value in values:
        first.setdefault(family_of(value), value)
    return first
