"""A canary route of each family, which shows whether the kernel itself has removed routes and addresses.

An interface that goes down loses its routes and its IPv6 addresses; with its last IPv4 address it loses its IPv4
routes. Windlass restores those, but not what a person or a network manager removes. The kernel removes the canary
together with the other routes; no other program does. It is in a routing table that no rule uses.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_network

from windlass.host.linux import rtnetlink
from windlass.host.linux.adapter_state import AdapterRoute
from windlass.host.linux.netlink import Netlink, NetlinkError
from windlass.model.families import Family, family_of

TABLE = 8787
_ROUTES = tuple(
    AdapterRoute(ip_network(destination), table=TABLE, protocol=rtnetlink.PROTOCOL, metric=1)
    for destination in ("192.0.0.8/32", "100::8/128")  # reserved addresses: RFC 7600, RFC 6666
)


def alive(netlink: Netlink, index: int) -> frozenset[Family]:
    found = rtnetlink.routes(netlink, protocol=rtnetlink.PROTOCOL, index=index)
    return frozenset(family_of(f.route.destination) for f in found if f.route.table == TABLE)


def place(netlink: Netlink, index: int) -> None:
    there = alive(netlink, index)
    for route in _ROUTES:
        if family_of(route.destination) not in there:
            with suppress(NetlinkError):  # IPv6 may be disabled
                rtnetlink.add_route(netlink, index, route)


def remove(netlink: Netlink, index: int) -> None:
    for route in _ROUTES:
        with suppress(NetlinkError):
            rtnetlink.delete_route(netlink, index, route)
