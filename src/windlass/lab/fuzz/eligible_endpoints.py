"""The rules of Kubernetes for endpoints: which ones a Service port has, and which of them a Node may choose. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from windlass.cluster.objects import EndpointConditions, EndpointHints, EndpointSlice, SliceEndpoint
from windlass.lab.fuzz.cluster_views import ClusterView
from windlass.lab.scenarios.directives import ExternalHost
from windlass.lab.scenarios.objects import LabNode, LabPod, LabService, LabServicePort, parsed
from windlass.lab.scenarios.targets import named_port
from windlass.model.families import Family, IPAddress, family_of

LAST_PORT = 65535
SERVICE_OF_SLICE = "kubernetes.io/service-name"
HEADLESS_SLICE = "service.kubernetes.io/headless"


class EndpointLocation(Enum):
    POD = "a Pod"
    NODE = "a Node's own address"
    OUTSIDE = "outside the cluster"


@dataclass(frozen=True, slots=True)
class OracleEndpoint:
    backend: str  # what answers there; empty: nothing
    place: EndpointLocation
    node: str  # the Node on which it is local; empty: none
    host: str = ""  # the Node that has its address
    address: IPAddress | None = None  # None: the address of a Pod that is not fixed
    port: int = 0  # 0: the port that the client addressed
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    for_nodes: frozenset[str] = frozenset()
    for_zones: frozenset[str] = frozenset()

    @property
    def stays(self) -> bool:
        """Whether it keeps its connections."""
        return self.ready or self.serving

    @property
    def draining(self) -> bool:
        """Whether it is terminating and still serving: used if no endpoint is ready."""
        return not self.ready and self.serving and self.terminating


@dataclass(frozen=True, slots=True)
class Choice:
    """The endpoints from which a Node chooses, for each traffic policy."""

    cluster: tuple[OracleEndpoint, ...]  # policy Cluster
    local: tuple[OracleEndpoint, ...]  # policy Local
    any: bool  # whether there is a usable endpoint anywhere


def choice(endpoints: Iterable[OracleEndpoint], node: LabNode) -> Choice:
    """For each policy separately: the ready endpoints, or else those that are terminating and still serving."""
    everything = tuple(endpoints)
    ready = tuple(e for e in everything if e.ready)
    draining = tuple(e for e in everything if e.draining)
    here_ready = tuple(e for e in ready if e.node == node.name)
    here_draining = tuple(e for e in draining if e.node == node.name)
    return Choice(_near(ready, node) or draining, here_ready or here_draining, any=bool(ready or draining))


def _near(ready: tuple[OracleEndpoint, ...], node: LabNode) -> tuple[OracleEndpoint, ...]:
    """Applies hints, if all ready endpoints have one and some are for this Node, or else for this zone."""
    if all(e.for_nodes for e in ready):
        same_node = tuple(e for e in ready if node.name in e.for_nodes)
        if same_node:
            return same_node
    if all(e.for_zones for e in ready):
        same_zone = tuple(e for e in ready if node.zone and node.zone in e.for_zones)
        if same_zone:
            return same_zone
    return ready


def endpoints(
    cluster: ClusterView, service: LabService, port: LabServicePort, family: Family
) -> tuple[OracleEndpoint, ...]:
    """The endpoints of all slices of the Service, or those that the endpoint controller would create."""
    slices = [
        s
        for s in cluster.slices
        if (s.metadata.namespace or "default") == (service.metadata.namespace or "default")
        and (s.metadata.labels or {}).get(SERVICE_OF_SLICE) == service.metadata.name
    ]
    if slices:
        return tuple(_merged(cluster, slices, port, family))
    return tuple(_of_pods(cluster, service, port, family)) if service.spec.selector else ()


# From slices ----------------------------------------------------------------------------------------------------


def _merged(
    cluster: ClusterView, slices: Iterable[EndpointSlice], port: LabServicePort, family: Family
) -> Iterator[OracleEndpoint]:
    """One endpoint for each address and port. Of duplicates, one that names its Node wins, then one that is ready."""
    found: dict[tuple[IPAddress, int], OracleEndpoint] = {}
    for one in slices:
        if one.address_type != str(family) or HEADLESS_SLICE in (one.metadata.labels or {}):
            continue
        for number in _numbers(one, port):
            for endpoint in one.endpoints or ():
                address = _address(endpoint, family)
                if address is None:
                    continue
                known, new = (
                    found.get((address, number)),
                    _endpoint(cluster, endpoint, address, number, port.protocol.value),
                )
                if known is None or (bool(new.node), new.ready) > (bool(known.node), known.ready):
                    found[address, number] = new
    yield from found.values()


def _numbers(one: EndpointSlice, port: LabServicePort) -> Iterator[int]:
    """The numbers of the slice's ports with this name and protocol; the Service's targetPort does not matter."""
    for p in one.ports or ():
        if (
            p.port
            and 0 < p.port <= LAST_PORT
            and (p.name or "", p.protocol or "TCP") == (port.name, port.protocol.value)
        ):
            yield p.port


def _address(endpoint: SliceEndpoint, family: Family) -> IPAddress | None:
    """The first address, if it has the family of the slice."""
    try:
        address = parsed((endpoint.addresses or ("",))[0])
    except ValueError:
        return None
    return address if family_of(address) is family else None


def _endpoint(
    cluster: ClusterView, written: SliceEndpoint, address: IPAddress, port: int, protocol: str
) -> OracleEndpoint:
    conditions, hints = written.conditions or EndpointConditions(), written.hints or EndpointHints()
    backend, place, host = _owner_of(cluster, address, port, protocol)
    return OracleEndpoint(
        backend,
        place,
        written.node_name or "",
        host,
        address,
        port,
        ready=conditions.ready is not False,
        serving=conditions.serving is not False,
        terminating=conditions.terminating is True,
        for_nodes=frozenset(hint.name for hint in hints.for_nodes or ()),
        for_zones=frozenset(hint.name for hint in hints.for_zones or ()),
    )


def _owner_of(cluster: ClusterView, address: IPAddress, port: int, protocol: str) -> tuple[str, EndpointLocation, str]:
    for node in cluster.nodes.values():
        if address in node.all_addresses:
            return listener(cluster, node.name, protocol, port), EndpointLocation.NODE, node.name
    for host in cluster.hosts.values():
        if address in host.addresses:
            return f"externalHost/{host.name}" if listens(host, protocol, port) else "", EndpointLocation.OUTSIDE, ""
    for pod in cluster.pods.values():
        if not pod.spec.host_network and str(address) in {ip.ip for ip in pod.status.pod_ips}:
            return pod.key if listens(pod, protocol, port) else "", EndpointLocation.POD, ""
    return "", EndpointLocation.OUTSIDE, ""


def listens(owner: LabPod | ExternalHost, protocol: str, port: int) -> bool:
    if isinstance(owner, ExternalHost):
        return any((p.protocol.value, p.port) == (protocol, port) for p in owner.spec.ports)
    return any((p.protocol.value, p.container_port) == (protocol, port) for p in owner.ports)


def listener(cluster: ClusterView, node: str, protocol: str, port: int) -> str:
    """The hostNetwork Pod that listens on this port of the Node; empty if there is none."""
    on_node = (pod for pod in cluster.pods.values() if pod.spec.host_network and pod.spec.node_name == node)
    return next((pod.key for pod in on_node if listens(pod, protocol, port)), "")


# From Pods ------------------------------------------------------------------------------------------------------


def _of_pods(
    cluster: ClusterView, service: LabService, port: LabServicePort, family: Family
) -> Iterator[OracleEndpoint]:
    for pod in cluster.pods.values():
        is_near = (pod.metadata.namespace or "default") == (service.metadata.namespace or "default")
        selected = is_near and service.spec.selector.items() <= pod.metadata.labels.items()
        number = _number(pod, port)
        node = cluster.nodes.get(pod.spec.node_name)
        if not selected or number is None or node is None:
            continue
        if (node.addresses.get(family) if pod.spec.host_network else node.gateway(family)) is None:
            continue  # it has no address of this family
        yield OracleEndpoint(
            pod.key if listens(pod, port.protocol.value, number) else "",
            EndpointLocation.NODE if pod.spec.host_network else EndpointLocation.POD,
            pod.spec.node_name,
            pod.spec.node_name if pod.spec.host_network else "",
            node.addresses.get(family) if pod.spec.host_network else None,
            number,
            ready=service.spec.publish_not_ready_addresses or (pod.ready and not pod.terminating),
            serving=pod.ready,
            terminating=pod.terminating,
        )


def _number(pod: LabPod, port: LabServicePort) -> int | None:
    """A named targetPort may have a different number in each Pod."""
    wanted = port.target_port or port.port
    if isinstance(wanted, int):
        return wanted
    return named_port(wanted, pod.ports, port.protocol)
