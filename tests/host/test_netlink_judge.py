"""Our netlink messages, checked with pyroute2: it reads from the kernel what we wrote."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address, ip_interface, ip_network

from host_machines import LinuxMachine, requires_namespaces
from host_states import STATE
from pyroute2 import IPRoute

from windlass.host.linux.hosts import LinuxHost
from windlass.host.plans import HostAddress, Route, diff, plan

pytestmark = requires_namespaces


async def test_pyroute2_decodes_our_messages(machine: LinuxMachine, host: LinuxHost) -> None:
    await host.uplink.adopt(machine.names.uplink, machine.names.bridge, machine.node_ips)
    desired = plan(STATE, machine.names, 1500, userspace=True)
    assert await host.apply(diff(await host.installed(machine.names), desired)) == ()
    found = await asyncio.to_thread(_read_by_pyroute2)
    assert {item for item in desired.items if isinstance(item, HostAddress | Route)} <= found


def _read_by_pyroute2() -> set[HostAddress | Route]:
    """In its own thread, because pyroute2 runs an event loop; the thread is in the same namespace."""
    with IPRoute() as kernel:
        named = {link["index"]: link.get("ifname") for link in kernel.get_links()}
        addresses = {
            HostAddress(named[row["index"]], ip_interface(f"{row.get('address')}/{row['prefixlen']}"))
            for row in kernel.get_addr()
        }
        routes = {
            Route(
                destination=ip_network(f"{row.get('dst')}/{row['dst_len']}"),
                interface=named[row.get("oif")],
                via=ip_address(row.get("gateway")) if row.get("gateway") else None,
                onlink=bool(row["flags"] & 4),
            )
            for family in (socket.AF_INET, socket.AF_INET6)
            for row in kernel.get_routes(family=family)
            if row.get("dst") and row.get("oif") in named
        }
    return addresses | routes
