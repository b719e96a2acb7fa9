"""Removes the UDP port of the tunnel from Services and host ports. Pure.

Nodes receive tunnelled packets at that port. A Service with that NodePort would cut the Node off from Pods on other
Nodes; a Service with an endpoint there would send packets of its clients into the tunnel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address

from msgspec.structs import replace

from windlass.cluster.objects import Node
from windlass.model.services import Endpoint, Frontend, Protocol, Reach, ServedPort, ServedService

_REST = "the rest is served"


def addresses_of(nodes: Mapping[str, Node]) -> dict[bytes, str]:
    """All addresses of all Nodes, each with the name of its Node."""
    found: dict[bytes, str] = {}
    for name, node in nodes.items():
        for entry in node.status.addresses:
            if entry.type in {"InternalIP", "ExternalIP"}:
                try:
                    found[ip_address(entry.address).packed] = name
                except ValueError:
                    continue  # `nodes` reports it
    return found


def uses(service: ServedService, port: int) -> bool:
    """Whether the Service uses this UDP port anywhere, and therefore depends on the addresses of Nodes."""
    return any(True for _ in _at(service, port))


def without(service: ServedService, port: int, nodes: Mapping[bytes, str]) -> tuple[ServedService, list[str]]:
    """The Service without the frontends and endpoints of the tunnel, and a sentence about each of them."""
    sentences: dict[str, None] = {}

    def taken(one: Frontend | Endpoint) -> bool:
        if one.port != port:
            return False
        if isinstance(one, Endpoint):
            node, what = nodes.get(one.packed, ""), f"endpoint {one.address} port {port}/UDP"
        elif one.address is None:
            node, what = "every Node", f"port {port}/UDP of the Node"
        else:
            node, what = nodes.get(one.address.packed, ""), f"address {one.address} port {port}/UDP"
            node = "" if one.reach is Reach.CLUSTER_IP else node
        if node:
            owner = node if node == "every Node" else f"Node {node}"
            sentences[f"{what} is the tunnel port of {owner}; {_REST}"] = None
        return bool(node)

    ports = tuple(_kept(one, taken) if one.protocol is Protocol.UDP else one for one in service.ports)
    return (replace(service, ports=ports) if sentences else service), list(sentences)


def _kept(port: ServedPort, taken: Callable[[Frontend | Endpoint], bool]) -> ServedPort:
    endpoints = tuple(one for one in port.endpoints if not taken(one))
    return replace(
        port,
        frontends=tuple(one for one in port.frontends if not taken(one)),
        endpoints=endpoints,
        local_endpoints=tuple(one for one in port.local_endpoints if not taken(one)),
        serving=tuple(one for one in port.serving if not taken(one)),
        anywhere=port.anywhere and (bool(endpoints) or not port.endpoints),
    )


def _at(service: ServedService, port: int) -> Iterator[Frontend | Endpoint]:
    for one in service.ports:
        if one.protocol is Protocol.UDP:
            yield from (frontend for frontend in one.frontends if frontend.port == port)
            yield from (endpoint for endpoint in (*one.endpoints, *one.serving) if endpoint.port == port)
