"""What Services need on the host: routes to the virtual next hop, NodePorts and external addresses. Pure.

The switch implements Services. The host sends it the packets that start on the host or arrive by a NIC that is not a
port of the switch (design notes 000 and 001).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import TypeVar

from windlass.host.plans import (
    ExternalPort,
    HostChange,
    HostNames,
    HostPlan,
    Item,
    Neighbour,
    NodePort,
    Route,
    ServiceAccess,
)
from windlass.model.families import Family, IPNetwork, family_of
from windlass.model.nodes import LocalNode
from windlass.model.services import Reach, ServedService
from windlass.openflow.notation import mac_text
from windlass.pipeline.reserved import NODE_PORT_ADDRESS, NODE_STAND_IN, VIRTUAL_CLIENT, VIRTUAL_MAC
from windlass.pipeline.snat_ports import used_ports

_Owner = TypeVar("_Owner", bound=Hashable)


def plan_services(
    node: LocalNode,
    names: HostNames,
    service_cidrs: Collection[IPNetwork],
    node_port_networks: Collection[IPNetwork] = (),
    *,
    mtu: int,
) -> HostPlan:
    """The items that all Services share. node_port_networks: where NodePorts answer; empty: at every host address.

    mtu: of the gateway.
    """
    access = ServiceAccess(
        gateway=names.gateway,
        bridge=names.bridge,
        sources=frozenset(node.gateway(family) for family in node.families),
        node_ips=frozenset(node.addresses[family].ip for family in node.families),
        networks=frozenset(_networks(node, node_port_networks)),
        mtu=mtu,
        snat_ports=used_ports(node),
    )
    # With a static neighbour, no connection has to wait for ARP or Neighbour Discovery.
    neighbours = (Neighbour(names.gateway, VIRTUAL_CLIENT[f], mac_text(VIRTUAL_MAC)) for f in node.families)
    return HostPlan(items=frozenset((access, *neighbours, *_shared_routes(node, names, service_cidrs))))


def plan_service(
    node: LocalNode, names: HostNames, service: ServedService, service_cidrs: Collection[IPNetwork]
) -> frozenset[Item]:
    """The items of one Service. Several Services may need the same item, for example a port: see `ItemClaims`."""
    return frozenset(_items(node, names, service, service_cidrs))


class ItemClaims:
    """Which owner needs which items: an item stays installed while at least one owner needs it."""

    def __init__(self) -> None:
        self._by_owner: dict[Hashable, frozenset[Item]] = {}
        self._count: Counter[Item] = Counter()

    @property
    def owners(self) -> Collection[Hashable]:
        return self._by_owner.keys()

    @property
    def items(self) -> frozenset[Item]:
        return frozenset(self._count)

    def of(self, owner: Hashable) -> frozenset[Item]:
        return self._by_owner.get(owner, frozenset())

    def set(self, owner: Hashable, items: frozenset[Item]) -> HostChange:
        """Replace the items of the owner. Returns the resulting change."""
        before = self._by_owner.pop(owner, frozenset())
        if items:
            self._by_owner[owner] = items
        new = items - before
        added = frozenset(item for item in new if item not in self._count)
        self._count.update(new)
        removed = frozenset(self._released(before - items))
        return HostChange(removed=removed, added=added)

    def set_all(self, items_by_owner: Mapping[_Owner, frozenset[Item]]) -> HostChange:
        """Replace the items of several owners. An item that moves from one owner to another does not change."""
        changes = [self.set(owner, items) for owner, items in items_by_owner.items()]
        removed = frozenset[Item]().union(*(change.removed for change in changes))
        added = frozenset[Item]().union(*(change.added for change in changes))
        return HostChange(removed=removed - added, added=added - removed)

    def _released(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            self._count[item] -= 1
            if not self._count[item]:
                del self._count[item]
                yield item


def _networks(node: LocalNode, configured: Collection[IPNetwork]) -> Iterator[IPNetwork]:
    """Disjoint networks of the families of the Node."""
    networks = configured or (ip_network("0.0.0.0/0"), ip_network("::/0"))
    if Family.IPV4 in node.families:
        yield from collapse_addresses(network for network in networks if isinstance(network, IPv4Network))
    if Family.IPV6 in node.families:
        yield from collapse_addresses(network for network in networks if isinstance(network, IPv6Network))


def _shared_routes(node: LocalNode, names: HostNames, service_cidrs: Collection[IPNetwork]) -> Iterator[Route]:
    for family in node.families:
        # The next hop itself: endpoints on the host reply to it.
        yield Route(ip_network(VIRTUAL_CLIENT[family]), names.gateway, source=node.gateway(family))
        yield _route(node, names, ip_network(NODE_PORT_ADDRESS[family]))
        yield _route(node, names, ip_network(NODE_STAND_IN[family]))
    for cidr in service_cidrs:
        if family_of(cidr) in node.families:
            yield _route(node, names, cidr)


def _items(
    node: LocalNode, names: HostNames, service: ServedService, service_cidrs: Collection[IPNetwork]
) -> Iterator[Item]:
    for address in service.cluster_ips:
        if family_of(address) in node.families and not any(address in cidr for cidr in service_cidrs):
            yield _route(node, names, ip_network(address))
    for port in service.ports:
        if port.family not in node.families:
            continue
        for frontend in port.frontends:
            if frontend.reach is Reach.NODE_PORT:
                yield NodePort(port.family, port.protocol, frontend.port)
            elif frontend.reach is Reach.EXTERNAL and frontend.address is not None:
                yield ExternalPort(frontend.address, port.protocol, frontend.port)


def _route(node: LocalNode, names: HostNames, destination: IPNetwork) -> Route:
    family = family_of(destination)
    via, source = VIRTUAL_CLIENT[family], node.gateway(family)
    return Route(destination, names.gateway, via=via, onlink=True, source=source)
