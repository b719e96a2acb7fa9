"""Turns the host ports of a Pod (`hostPort`) into a Service. Pure.

The Service has one endpoint, which is on this Node and sees the addresses of its clients. No other module has to know
about host ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_address

from windlass.cluster.endpoints import PROTOCOLS, ServingNode
from windlass.cluster.objects import ContainerPort, Pod, Problem
from windlass.model.families import IPAddress, family_of
from windlass.model.services import Endpoint, Frontend, Reach, ServedPort, ServedService

_SUFFIX = " (host ports)"  # no Service can have such a name
_ENDED = ("Succeeded", "Failed")
_PORTS = range(1, 65536)


def key_of(pod: str) -> str:
    """The key, among Services, of the host ports of a Pod."""
    return pod + _SUFFIX


def pod_of(key: str) -> str:
    """The Pod whose host ports have this key; empty for the key of a Service."""
    return key.removesuffix(_SUFFIX) if key.endswith(_SUFFIX) else ""


def serve(pod: Pod, node: ServingNode) -> tuple[ServedService | None, list[Problem]]:
    """None if the Pod has no host ports, or no address yet."""
    problems: list[Problem] = []
    ports = {(port.name, port.protocol, port.family): port for port in _ports(pod, node, problems)}
    if not ports:
        return None, problems
    name = key_of(pod.metadata.name)
    return ServedService(pod.metadata.namespace or "default", name, tuple(ports.values()), ()), problems


def _ports(pod: Pod, node: ServingNode, problems: list[Problem]) -> Iterator[ServedPort]:
    spec = pod.spec
    if spec is None or spec.host_network or (pod.status and pod.status.phase in _ENDED):
        return
    if spec.node_name and spec.node_name != node.name:  # manifests have the Pods of all Nodes
        return
    addresses = list(_addresses(pod, node))
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        for port in container.ports or ():
            if port.host_port:
                yield from _served(port, addresses, node, lambda what: problems.append(Problem.of(pod, what)))


def _served(
    port: ContainerPort, addresses: list[IPAddress], node: ServingNode, report: Callable[[str], None]
) -> Iterator[ServedPort]:
    protocol = PROTOCOLS.get(port.protocol or "TCP")
    host_port, container_port = port.host_port or 0, port.container_port or 0
    if protocol is None or host_port not in _PORTS or container_port not in _PORTS:
        report(f"hostPort {host_port}/{port.protocol or 'TCP'} is not served: there is no such port or protocol")
        return
    at = _read(port.host_ip)
    if port.host_ip and not _is_ours(at, node):
        report(f"hostPort {host_port} is not served: its hostIP {port.host_ip} is not an address of this Node")
        return
    everywhere = at is None or at.is_unspecified
    for address in addresses:
        if at is not None and family_of(at) is not family_of(address):
            continue
        reach = Reach.NODE_PORT if everywhere else Reach.EXTERNAL
        frontend = Frontend(reach, None if everywhere else at, host_port, local_only=True)
        endpoint = Endpoint.at(address, container_port, local=True)
        yield ServedPort(
            f"{port.host_ip or ''}:{host_port}",
            protocol,
            family_of(address),
            (frontend,),
            endpoints=(endpoint,),
            local_endpoints=(endpoint,),
            serving=(endpoint,),
        )


def _is_ours(address: IPAddress | None, node: ServingNode) -> bool:
    """Whether it is an address of this Node. With others, a user who may create Pods could intercept their traffic."""
    return address is not None and (address.is_unspecified or address == _LOOPBACK or address in node.addresses)


def _read(text: str | None) -> IPAddress | None:
    try:
        return ip_address(text) if text else None
    except ValueError:
        return None


_LOOPBACK = ip_address("127.0.0.1")  # not ::1: Linux sends no packet with that source out of the host


def _addresses(pod: Pod, node: ServingNode) -> Iterator[IPAddress]:
    for listed in pod.status.addresses if pod.status else ():
        address = _read(listed)
        if address is not None and address in node.pod_cidrs.get(family_of(address), ()):
            yield address
