"""Reads an interface with its addresses and routes, as `Adapter`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from ipaddress import ip_network

from windlass.host.linux import leases, rtnetlink
from windlass.host.linux.adapter_state import Adapter, AdapterAddress, AdapterRoute
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.route_messages import PROTOCOL_KERNEL, TABLE_LOCAL, KernelRoute
from windlass.model.families import IPAddress


def read(netlink: Netlink, name: str) -> Adapter | None:
    link = rtnetlink.link(netlink, name)
    if link is None:
        return None
    # In the order of their creation: the kernel lists the newest IPv6 address first.
    found = list(leases.held(netlink, link.index))
    ipv4 = [address for address in found if address.version == 4]
    ipv6 = [address for address in reversed(found) if address.version == 6]
    addresses = (*ipv4, *ipv6)
    return Adapter(name, link.index, link.mac, link.mtu, addresses, tuple(_routes(netlink, link.index, addresses)))


def holders(netlink: Netlink, node_ips: Collection[IPAddress]) -> set[str]:
    """The names of the interfaces that have one of the Node IPs."""
    indexes = {index for index, address in rtnetlink.addresses(netlink) if address.ip in node_ips}
    return {link.name for link in (rtnetlink.link(netlink, index) for index in indexes) if link is not None}


def not_movable(netlink: Netlink, uplink: Adapter) -> Iterator[str]:
    for found in rtnetlink.routes(netlink, index=uplink.index):
        if not found.plain:
            yield (
                f"the route to {found.route.destination} by {uplink.name} uses an encapsulation (ip route ... encap) "
                "and cannot be moved: remove the route, or use a different interface for it"
            )


def has_all(adapter: Adapter, node_ips: Collection[IPAddress]) -> bool:
    return set(node_ips) <= {address.ip for address in adapter.addresses}


def has_any(adapter: Adapter, node_ips: Collection[IPAddress]) -> bool:
    return not {address.ip for address in adapter.addresses}.isdisjoint(node_ips)


def _routes(netlink: Netlink, index: int, addresses: Collection[AdapterAddress]) -> Iterator[AdapterRoute]:
    for found in rtnetlink.routes(netlink, index=index):
        if found.plain and found.route.protocol != rtnetlink.PROTOCOL and not _is_made_by_kernel(found, addresses):
            hops = (replace(hop, interface=0) if hop.interface == index else hop for hop in found.route.hops)
            yield replace(found.route, hops=tuple(hops))


def _is_made_by_kernel(found: KernelRoute, addresses: Collection[AdapterAddress]) -> bool:
    """The kernel creates the route to the network of an address. With the flag `noprefixroute`, which NetworkManager
    uses, the creator of the address adds a route that looks the same.
    """
    route = found.route
    if not found.kernel_made or route.protocol != PROTOCOL_KERNEL or route.table == TABLE_LOCAL:
        return found.kernel_made
    if route.destination.is_multicast or route.destination.network_address.is_link_local:
        return True
    own = [a for a in addresses if _network(a) == route.destination]
    return not own or any(not a.flags & leases.NOPREFIXROUTE for a in own)


def _network(address: AdapterAddress) -> object:
    if address.peer is None:
        return address.network
    return ip_network((address.peer, address.network.prefixlen), strict=False)
