"""The objects a scenario is made of, typed as far as the lab itself uses them; nothing is read or done here.

Kubernetes objects are views: fields that the lab does not use are let through (the agents get the object as it was
written). Objects of the lab are complete: a field that does not exist is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from windlass.cluster.clusters import KINDS
from windlass.model.families import Family, IPAddress, IPNetwork, family_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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
    deletion_timestamp: object = None  # YAML gives a time, JSON a string; that it is there is what counts

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name: is empty; every object has a name")

    @property
    def key(self) -> str:
        """`namespace/name`, as kubectl and the scenario format write it."""
        return f"{self.namespace or 'default'}/{self.name}"


# Nodes -------------------------------------------------------------------------------------------------------


class NodeAddress(Struct, frozen=True):
    type: str
    address: str

    def __post_init__(self) -> None:
        if self.is_ip:
            check_address("address", self.address)

    @property
    def is_ip(self) -> bool:
        return self.type in {"InternalIP", "ExternalIP"}


class LabNodeSpec(Struct, frozen=True):
    pod_cidr: str = field(name="podCIDR", default="")  # the older field, which repeats the first of podCIDRs
    pod_cidrs: list[str] = field(name="podCIDRs", default_factory=list)

    def __post_init__(self) -> None:
        if self.pod_cidr:
            check_network("podCIDR", self.pod_cidr)
        for i, cidr in enumerate(self.pod_cidrs):
            check_network(f"podCIDRs[{i}]", cidr)


class NodeStatus(Struct, frozen=True):
    addresses: list[NodeAddress] = []


TRANSLATED_ADDRESSES = "lab.windlass.dev/translated-addresses"  # an annotation: addresses, with commas between them


class LabNode(Struct, frozen=True):
    metadata: LabMetadata
    spec: LabNodeSpec = LabNodeSpec()
    status: NodeStatus = NodeStatus()

    def __post_init__(self) -> None:
        for address in (self.metadata.annotations or {}).get(TRANSLATED_ADDRESSES, "").split(","):
            if address.strip():
                check_address(f"metadata.annotations[{TRANSLATED_ADDRESSES}]", address.strip())
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
        return _first_of_each_family(ip_network(cidr) for cidr in written if cidr)

    @property
    def addresses(self) -> dict[Family, IPAddress]:
        """The Node IP of each family: the first InternalIP."""
        internal = (ip_address(a.address) for a in self.status.addresses if a.type == "InternalIP")
        return _first_of_each_family(internal)

    @property
    def other_addresses(self) -> tuple[IPAddress, ...]:
        """What sits on the second NIC, which is not on the bridge."""
        main = {*self.addresses.values(), *self.translated_addresses}
        everything = dict.fromkeys(ip_address(a.address) for a in self.status.addresses if a.is_ip)
        return tuple(address for address in everything if address not in main)

    @property
    def translated_addresses(self) -> tuple[IPAddress, ...]:
        """What no NIC has: the cloud translates them to the Node IP."""
        written = (self.metadata.annotations or {}).get(TRANSLATED_ADDRESSES, "")
        return tuple(ip_address(text.strip()) for text in written.split(",") if text.strip())

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


class LabContainer(Struct, frozen=True):
    ports: list[LabContainerPort] = []


class LabPodSpec(Struct, frozen=True, rename="camel"):
    node_name: str = ""
    host_network: bool = False
    containers: list[LabContainer] = []


class PodIP(Struct, frozen=True):
    ip: str

    def __post_init__(self) -> None:
        check_address("ip", self.ip)


class PodCondition(Struct, frozen=True):
    type: str
    status: str


class LabPodStatus(Struct, frozen=True, rename="camel"):
    pod_ips: list[PodIP] = field(name="podIPs", default_factory=list)
    conditions: list[PodCondition] = []
    phase: str = ""


class LabPod(Struct, frozen=True):
    metadata: LabMetadata
    spec: LabPodSpec = LabPodSpec()
    status: LabPodStatus = LabPodStatus()

    @property
    def key(self) -> str:
        return self.metadata.key

    @property
    def ports(self) -> tuple[LabContainerPort, ...]:
        return tuple(port for container in self.spec.containers for port in container.ports)

    @property
    def fixed_addresses(self) -> tuple[IPAddress, ...]:
        """Those that the manifest asks for; a hostNetwork Pod has its Node's instead."""
        return () if self.spec.host_network else tuple(ip_address(ip.ip) for ip in self.status.pod_ips)

    @property
    def ready(self) -> bool:
        return all(c.status != "False" for c in self.status.conditions if c.type == "Ready")

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def runs(self) -> bool:
        """A Pod that is not scheduled yet, or is over, has no network."""
        return bool(self.spec.node_name) and self.status.phase not in {"Succeeded", "Failed"}


# Services ----------------------------------------------------------------------------------------------------


class LabServicePort(Struct, frozen=True, rename="camel"):
    port: int
    name: str = ""
    protocol: ProbeProtocol = ProbeProtocol.TCP
    target_port: int | str | None = None
    node_port: int | None = None
    app_protocol: str | None = None

    def __post_init__(self) -> None:
        # That its numbers can be ports is for the agents to judge: a scenario may try them with others.
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

    def __post_init__(self) -> None:
        for i, ip in enumerate(self.cluster_ips):
            if ip != "None":
                check_address(f"clusterIPs[{i}]", ip)
        if self.cluster_ip not in {"", "None"}:
            check_address("clusterIP", self.cluster_ip)
        for i, ip in enumerate(self.external_ips):
            check_address(f"externalIPs[{i}]", ip)


class LoadBalancerIngress(Struct, frozen=True):
    ip: str = ""  # some clouds give a host name instead; no packet can be sent to that here

    def __post_init__(self) -> None:
        if self.ip:
            check_address("ip", self.ip)


class LoadBalancerStatus(Struct, frozen=True):
    ingress: list[LoadBalancerIngress] = []


class ServiceStatus(Struct, frozen=True, rename="camel"):
    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class LabService(Struct, frozen=True):
    metadata: LabMetadata
    spec: LabServiceSpec = LabServiceSpec()
    status: ServiceStatus = ServiceStatus()

    @property
    def key(self) -> str:
        return self.metadata.key

    @property
    def cluster_ips(self) -> tuple[IPAddress, ...]:
        """Empty for a headless Service."""
        return tuple(ip_address(ip) for ip in self._written_cluster_ips if ip not in {"", "None"})

    @property
    def headless(self) -> bool:
        return "None" in self._written_cluster_ips

    @property
    def load_balancer_ips(self) -> tuple[IPAddress, ...]:
        return tuple(ip_address(i.ip) for i in self.status.load_balancer.ingress if i.ip)

    @property
    def external_ips(self) -> tuple[IPAddress, ...]:
        return tuple(ip_address(ip) for ip in self.spec.external_ips)

    @property
    def families(self) -> tuple[Family, ...]:
        """As the API server would default them: the ClusterIPs' families, else IPv4."""
        declared = tuple(f.family for f in self.spec.ip_families)
        return declared or tuple(family_of(ip) for ip in self.cluster_ips) or (Family.IPV4,)

    @property
    def _written_cluster_ips(self) -> list[str]:
        return self.spec.cluster_ips or [self.spec.cluster_ip]


# What the lab only hands on ----------------------------------------------------------------------------------


class ConfigMap(Struct, frozen=True):
    metadata: LabMetadata
    data: dict[str, str] = {}


class OpaqueObject(Struct, frozen=True):
    """An object that the agents understand and the lab does not need to."""

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


# Checks that name the field; shared with the objects of the lab ----------------------------------------------


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
