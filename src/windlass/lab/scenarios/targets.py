"""Where a probe's packets go and by which Node they come in: names become addresses and ports. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from windlass.lab.scenarios.objects import ContainerPort, Node, Pod, Protocol, Service, ServicePort
from windlass.model.families import Family, family_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windlass.lab.scenarios.desired_states import Addresses, World
    from windlass.lab.scenarios.directives import Probe, Source
    from windlass.model.families import IPAddress


@dataclass(frozen=True, slots=True)
class Destination:
    address: IPAddress
    port: int  # 0 for ICMP
    entry: str | None  # the Node where the packet enters the cluster's network, where that can be told
    via: str | None = None  # the Node to which the underlay must route the address for this probe

    @property
    def family(self) -> Family:
        return family_of(self.address)


class UnresolvedError(ValueError):
    """The probe names something that is not there; the sentence begins with the field."""


def resolve(probe: Probe, world: World, addresses: Addresses) -> Destination:
    destination = _destination(probe, world, addresses)
    forged = probe.spec.source_address
    if forged and family_of(ip_address(forged)) is not destination.family:
        raise UnresolvedError(f"spec.sourceAddress: {forged} is not {destination.family}, as the target is")
    return destination


def node_at(address: IPAddress, world: World) -> str | None:
    """The Node that has this address, or whose Pods do."""
    for node in world.nodes.values():
        if address in (*node.addresses.values(), *node.other_addresses):
            return node.name
        if any(address in cidr for cidr in node.pod_cidrs.values()):
            return node.name
    return None


def seen_address(probe: Probe, destination: Destination, world: World) -> IPAddress | None:
    """The client address that the backends should see; None where any will do, or where it is the client's own."""
    expected = probe.spec.expect.client_address
    if expected is None or expected == "Preserved":
        return None
    if expected not in {"Gateway", "Node"}:
        return ip_address(expected)
    if destination.entry is None:
        raise UnresolvedError(f"spec.expect.clientAddress: {expected}: this packet enters the cluster by no Node")
    node = world.nodes[destination.entry]
    address = node.gateway(destination.family) if expected == "Gateway" else node.addresses.get(destination.family)
    if address is None:
        raise UnresolvedError(
            f"spec.expect.clientAddress: Node {node.name} has no {destination.family} {expected} address"
        )
    return address


def _destination(probe: Probe, world: World, addresses: Addresses) -> Destination:
    to, protocol = probe.spec.target, probe.spec.protocol
    family = to.family.family if to.family else None
    client_node = _node_of_source(probe.spec.source, world)
    if to.service:
        service = _service("to.service", to.service, world)
        address = _of_family("to.service", service.cluster_ips, family, service.key)
        port = _service_port(to.port, service, protocol).port
        if client_node or not to.node:
            return Destination(address, port, client_node)
        entry = _node("to.node", to.node, world)
        return Destination(address, port, entry.name, via=entry.name)
    if to.node_port:
        service, node = _service("to.nodePort", to.node_port, world), _node("to.node", to.node, world)
        address = ip_address(to.address) if to.address else next(iter(node.addresses.values()))
        return Destination(address, _node_port(to.port, service, protocol), client_node or node.name)
    if to.load_balancer or to.external_ip:
        kind, key = ("loadBalancer", to.load_balancer) if to.load_balancer else ("externalIP", to.external_ip)
        service = _service(f"to.{kind}", key, world)
        ips = service.load_balancer_ips if to.load_balancer else service.external_ips
        address = _of_family(f"to.{kind}", ips, family, service.key)
        port = _service_port(to.port, service, protocol).port
        if client_node:  # the client's own Node takes it; the underlay has no say
            return Destination(address, port, client_node)
        entry = _node("to.node", to.node, world) if to.node else _first_node(world)
        return Destination(address, port, entry.name, via=entry.name)
    if to.pod:
        pod = _pod("to.pod", to.pod, world)
        address = _of_family("to.pod", addresses.get(pod.key, ()), family, pod.key)
        return Destination(address, _pod_port(to.port, pod, protocol), client_node or pod.spec.node_name)
    address = ip_address(to.address)
    if isinstance(to.port, str):
        raise UnresolvedError(f"spec.to.port: {to.port!r} is a name; an address has only numbers")
    return Destination(address, to.port or 0, client_node or node_at(address, world))


# What the names stand for ---------------------------------------------------------------------------------------


def _node_of_source(source: Source, world: World) -> str | None:
    if source.node:
        return _node("from.node", source.node, world).name
    if source.pod:
        return _pod("from.pod", source.pod, world).spec.node_name
    if source.external_host not in world.hosts:
        raise UnresolvedError(f"spec.from.externalHost: there is no ExternalHost {source.external_host}")
    return None


def _node(field: str, name: str, world: World) -> Node:
    if name not in world.nodes:
        raise UnresolvedError(f"spec.{field}: there is no Node {name}")
    return world.nodes[name]


def _first_node(world: World) -> Node:
    if not world.nodes:
        raise UnresolvedError("spec.to.node: there is no Node to which the underlay could route the address")
    return next(iter(world.nodes.values()))


def _pod(field: str, key: str, world: World) -> Pod:
    if key not in world.pods:
        raise UnresolvedError(f"spec.{field}: there is no Pod {key} that runs")
    return world.pods[key]


def _service(field: str, key: str, world: World) -> Service:
    if key not in world.services:
        raise UnresolvedError(f"spec.{field}: there is no Service {key}")
    return world.services[key]


def _of_family(field: str, addresses: Iterable[IPAddress], family: Family | None, owner: str) -> IPAddress:
    for address in addresses:
        if family in {None, family_of(address)}:
            return address
    raise UnresolvedError(f"spec.{field}: {owner} has no {f'{family} ' if family else ''}address of this kind")


def _service_port(wanted: int | str | None, service: Service, protocol: Protocol) -> ServicePort:
    """A number that the Service does not have is legal: what happens to it is worth a probe."""
    if protocol is Protocol.ICMP:
        return ServicePort(port=1)
    for port in service.spec.ports:
        if wanted in {port.port, port.name} and port.protocol is protocol:
            return port
    if isinstance(wanted, int):
        return ServicePort(port=wanted, protocol=protocol)
    raise UnresolvedError(f"spec.to.port: Service {service.key} has no {protocol.value} port named {wanted!r}")


def _node_port(wanted: int | str | None, service: Service, protocol: Protocol) -> int:
    """Of a port of the Service, its nodePort; a number that is none of its ports is taken as the nodePort itself."""
    port = _service_port(wanted, service, protocol)
    if port in service.spec.ports and not port.node_port:
        raise UnresolvedError(f"spec.to.port: port {wanted!r} of Service {service.key} has no nodePort")
    return port.node_port or port.port


def _pod_port(wanted: int | str | None, pod: Pod, protocol: Protocol) -> int:
    if isinstance(wanted, int) or wanted is None:
        return wanted or 0
    return named_port(wanted, pod.ports, protocol) or _no_pod_port(wanted, pod, protocol)


def named_port(name: str, ports: Iterable[ContainerPort], protocol: Protocol) -> int | None:
    return next((p.container_port for p in ports if p.name == name and p.protocol is protocol), None)


def _no_pod_port(wanted: str, pod: Pod, protocol: Protocol) -> int:
    if protocol is Protocol.ICMP:
        return 0
    raise UnresolvedError(f"spec.to.port: Pod {pod.key} has no {protocol.value} port named {wanted!r}")
