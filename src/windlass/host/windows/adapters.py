"""Interfaces of the host, with the addresses and routes that a network administrator or DHCP gave them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from windlass.host.plans import Route
from windlass.host.protocol import Uplink
from windlass.host.windows.ip_helper import IpHelper
from windlass.host.windows.ip_structures import ForwardRow
from windlass.host.windows.metrics import METRIC
from windlass.model.families import IPAddress, IPInterface, IPNetwork


@dataclass(frozen=True, slots=True)
class WindowsRoute:
    destination: IPNetwork
    via: IPAddress | None
    metric: int

    def __str__(self) -> str:
        return f"route {self.destination}{f' via {self.via}' if self.via else ''}"


@dataclass(frozen=True, slots=True)
class WindowsAdapter:
    name: str
    index: int
    mac: str
    mtu: int
    addresses: tuple[IPInterface, ...] = ()
    routes: tuple[WindowsRoute, ...] = ()

    def has_any(self, ips: Collection[IPAddress]) -> bool:
        return any(address.ip in ips for address in self.addresses)

    def has_all(self, ips: Collection[IPAddress]) -> bool:
        return {address.ip for address in self.addresses} >= set(ips)

    @property
    def uplink(self) -> Uplink:
        routes = tuple(Route(route.destination, self.name, route.via) for route in self.routes)
        return Uplink(self.name, self.index, self.mac, self.mtu, self.addresses, routes)


def read(helper: IpHelper, name: str) -> WindowsAdapter | None:
    link = helper.link(name)
    if link is None:
        return None
    addresses = tuple(
        row.interface for row in helper.addresses() if row.index == link.index and is_global(row.address.ip)
    )
    routes = (row for row in helper.routes() if row.index == link.index and _is_configured(row, addresses))
    found = sorted((WindowsRoute(row.destination, row.via, row.metric) for row in routes), key=str)
    return WindowsAdapter(link.alias, link.index, link.mac, link.mtu, addresses, tuple(found))


def holders(helper: IpHelper, ips: Collection[IPAddress]) -> set[str]:
    """The names of the interfaces that have one of these addresses."""
    indices = {row.index for row in helper.addresses() if row.address.ip in ips}
    return {link.alias for link in helper.links() if link.index in indices}


def is_global(ip: IPAddress) -> bool:
    return not (ip.is_loopback or ip.is_link_local or ip.is_multicast)


def _is_configured(row: ForwardRow, addresses: Collection[IPInterface]) -> bool:
    """Whether an administrator or DHCP added the route: not Windows itself for an address, and not Windlass."""
    destination = row.destination
    if row.metric == METRIC or row.loopback or destination.is_multicast or destination.is_link_local:
        return False
    if (
        destination.prefixlen == destination.max_prefixlen
        and destination.network_address == destination.broadcast_address
    ):
        ip = destination.network_address
        made = any(ip in {address.ip, address.network.broadcast_address} for address in addresses)
        return not made and str(ip) != "255.255.255.255"
    return row.via is not None or all(destination != address.network for address in addresses)
