"""Resolves the target of a probe: names become an address, a port, and the Node where the packet enters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar

from windlass.lab.scenarios.desired_states import DesiredState, PodAddresses
from windlass.lab.scenarios.directives import Probe, ProbeSource
from windlass.lab.scenarios.objects import LabContainerPort, LabNode, LabPod, LabService, LabServicePort, ProbeProtocol
from windlass.model.families import Family, IPAddress, family_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Destination:
    address: IPAddress
    port: int  # 0 for ICMP
    entry: str | None  # the Node where the packet enters the cluster's network; None if unknown
    via: str | None = None  # the Node to which the underlay must route the address for this probe

    @property
    def family(self) -> Family:
        return family_of(self.address)


class UnresolvedError(ValueError):
    """The probe names something that does not exist. The message begins with the field."""


def resolve(probe: Probe, desired: DesiredState, addresses: PodAddresses) -> Destination:
    destination = _destination(probe, desired, addresses)
    forged = probe.spec.source_address
    if forged and family_of(ip_address(forged)) is not destination.family:
        raise UnresolvedError(f"spec.sourceAddress: {forged} is not {destination.family}, but the target is")
    return destination


def node_at(address: IPAddress, desired: DesiredState) -> str | None:
    """The Node that has this address or whose PodCIDR contains it."""
    for node in desired.nodes.values():
        if address in (*node.addresses.values(), *node.other_addresses):
            return node.name
        if any(address in cidr for cidr in node.pod_cidrs.values()):
            return node.name
    return None


def seen_address(probe: Probe, destination: Destination, desired: DesiredState) -> IPAddress | None:
    """The client address that the backends must see; None if any is accepted, or if it is the client's own."""
    expected = probe.spec.expect.client_address
    if expected is None or expected == "Preserved":
        return None
    if expected not in {"Gateway", "Node"}:
        return ip_address(expected)
    if destination.entry is None:
        raise UnresolvedError(f"spec.expect.clientAddress: {expected}: the packet does not enter the cluster by a Node")
    node = desired.nodes[destination.entry]
    address = node.gateway(destination.family) if expected == "Gateway" else node.addresses.get(destination.family)
    if address is None:
        raise UnresolvedError(
            f"spec.expect.clientAddress: Node {node.name} has no {destination.family} {expected} address"
        )
    return address


def _destination(probe: Probe, desired: DesiredState, addresses: PodAddresses) -> Destination:
    to, protocol = probe.spec.target, probe.spec.protocol
    family = to.family.family if to.family else None
    client_node = _node_of_source(probe.spec.source, desired)
    if to.service:
        service = _named("to.service", to.service, "Service", desired.services)
        address = _of_family("to.service", service.cluster_ips, family, service.key)
        port = _service_port(to.port, service, protocol).port
        if client_node or not to.node:
            return Destination(address, port, client_node)
        entry = _named("to.node", to.node, "Node", desired.nodes)
        return Destination(address, port, entry.name, via=entry.name)
    if to.node_port:
        service, node = (
            _named("to.nodePort", to.node_port, "Service", desired.services),
            _named("to.node", to.node, "Node", desired.nodes),
        )
        address = ip_address(to.address) if to.address else _node_ip(node, family)
        return Destination(address, _node_port(to.port, service, protocol), client_node or node.name)
    if to.load_balancer or to.external_ip:
        kind, key = ("loadBalancer", to.load_balancer) if to.load_balancer else ("externalIP", to.external_ip)
        service = _named(f"to.{kind}", key, "Service", desired.services)
        ips = service.load_balancer_ips if to.load_balancer else service.external_ips
        address = _of_family(f"to.{kind}", ips, family, service.key)
        port = _service_port(to.port, service, protocol).port
        if client_node:  # the client's own Node handles it: the packet does not reach the underlay
            return Destination(address, port, client_node)
        entry = _named("to.node", to.node, "Node", desired.nodes) if to.node else _first_node(desired)
        return Destination(address, port, entry.name, via=entry.name)
    if to.pod:
        pod = _named("to.pod", to.pod, "running Pod", desired.pods)
        address = _of_family("to.pod", addresses.get(pod.key, ()), family, pod.key)
        return Destination(address, _pod_port(to.port, pod, protocol), client_node or pod.spec.node_name)
    address = ip_address(to.address)
    if isinstance(to.port, str):
        raise UnresolvedError(f"spec.to.port: {to.port!r} is a name; an address needs a port number")
    return Destination(address, to.port or 0, client_node or node_at(address, desired))


# Lookups by name ------------------------------------------------------------------------------------------------


def _node_of_source(source: ProbeSource, desired: DesiredState) -> str | None:
    if source.node:
        return _named("from.node", source.node, "Node", desired.nodes).name
    if source.pod:
        return _named("from.pod", source.pod, "running Pod", desired.pods).spec.node_name
    _named("from.externalHost", source.external_host, "ExternalHost", desired.hosts)
    return None


def _named(field: str, name: str, kind: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise UnresolvedError(f"spec.{field}: there is no {kind} {name}")
    return known[name]


def _node_ip(node: LabNode, family: Family | None) -> IPAddress:
    """The Node IP of this family; without one, the first Node IP."""
    if family is None:
        return next(iter(node.addresses.values()))
    if family not in node.addresses:
        raise UnresolvedError(f"spec.to.family: Node {node.name} has no {family} Node IP")
    return node.addresses[family]


def _first_node(desired: DesiredState) -> LabNode:
    if not desired.nodes:
        raise UnresolvedError("spec.to.node: there is no Node to which the underlay could route the address")
    return next(iter(desired.nodes.values()))


def _of_family(field: str, addresses: Iterable[IPAddress], family: Family | None, owner: str) -> IPAddress:
    for address in addresses:
        if family in {None, family_of(address)}:
            return address
    raise UnresolvedError(f"spec.{field}: {owner} has no {f'{family} ' if family else ''}address of this kind")


def _service_port(wanted: int | str | None, service: LabService, protocol: ProbeProtocol) -> LabServicePort:
    """A port number that the Service does not have is allowed: probes test what happens to it."""
    if protocol is ProbeProtocol.ICMP:
        return LabServicePort(port=1)
    for port in service.spec.ports:
        if wanted in {port.port, port.name} and port.protocol is protocol:
            return port
    if isinstance(wanted, int):
        return LabServicePort(port=wanted, protocol=protocol)
    raise UnresolvedError(f"spec.to.port: Service {service.key} has no {protocol.value} port named {wanted!r}")


def _node_port(wanted: int | str | None, service: LabService, protocol: ProbeProtocol) -> int:
    """The nodePort of the Service's port; a number that is none of its ports is used as the nodePort itself."""
    port = _service_port(wanted, service, protocol)
    if port in service.spec.ports and not port.node_port:
        raise UnresolvedError(f"spec.to.port: port {wanted!r} of Service {service.key} has no nodePort")
    return port.node_port or port.port


def _pod_port(wanted: int | str | None, pod: LabPod, protocol: ProbeProtocol) -> int:
    if isinstance(wanted, int) or wanted is None:
        return wanted or 0
    if protocol is ProbeProtocol.ICMP:
        return 0
    number = named_port(wanted, pod.ports, protocol)
    if number is None:
        raise UnresolvedError(f"spec.to.port: Pod {pod.key} has no {protocol.value} port named {wanted!r}")
    return number


def named_port(name: str, ports: Iterable[LabContainerPort], protocol: ProbeProtocol) -> int | None:
    return next((p.container_port for p in ports if p.name == name and p.protocol is protocol), None)
