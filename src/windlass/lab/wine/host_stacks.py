"""Plays the parts of a Windows host that Wine lacks, as a process in the Node's namespace.

The kernel of the namespace is the IP stack of the host. This process connects its interfaces with the ports of Open
vSwitch for Windows, whose datapath is a dummy: the bridge interface and internal ports are TAP devices, the uplink is
the NIC. It gives the switch the routes of the bridge interface for tunnels, which the Windows datapath asks the host
for. And it makes the named pipes of the Node Unix sockets, for Linux programs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path

import msgspec

from windlass.host.linux import ingress, rtnetlink
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.route_messages import TABLE_LOCAL
from windlass.lab.wine.frames import Wire, open_nic, open_tap
from windlass.lab.wine.relays import relay
from windlass.model.families import IPInterface
from windlass.switch.controls import ask
from windlass.switch.operations import Operation, put_keys
from windlass.switch.ovsdb import Database, SwitchRefusedError, open_database
from windlass.switch.rows import InterfaceRow, View
from windlass.switch.streams import SwitchUnreachableError
from windlass.switch.tunnel_routes import TunnelRoute, set_routes, shown_routes

SECONDS_TO_START = 600.0  # the lab has its own, shorter limit
SECONDS_BETWEEN_ATTEMPTS = 0.1
IPV4 = 4
_IPV4_ADDRESSES, _IPV4_ROUTES = 0x10, 0x40  # groups of netlink notifications


class HostStack(msgspec.Struct, frozen=True):
    """What this process needs to know. It is its only argument, as JSON."""

    relays: dict[str, str]  # paths of Unix sockets, with the paths by which Windows programs know them
    relay_port: int  # of pipe_relays.py
    database: str  # Unix sockets
    control: str
    bridge: str
    taps: dict[str, str]  # interfaces of the host that exist from the start, with the NIC whose MAC they have


class Wires:
    """The connected ports."""

    def __init__(self) -> None:
        self._wires: dict[str, Wire] = {}
        self._closed: dict[str, int] = {}  # NICs whose packets the kernel does not get, with their indices

    async def connect(self, name: str, mac: str | None = None) -> None:
        """Connects a TAP device that belongs to the host."""
        if name not in self._wires:
            self._wires[name] = await Wire.open(open_tap(name))
            # Windows forwards a packet that has an address of this host as its source; Linux drops it by default.
            Path(f"/proc/sys/net/ipv4/conf/{name}/accept_local").write_text("1")  # noqa: ASYNC240
        with Netlink() as netlink:
            rtnetlink.set_link(netlink, _index(netlink, name), up=True, mac=mac)

    async def follow(self, database: Database) -> None:
        """Connects the ports in the database."""
        ports = {interface.name: interface for interface in database.view.interfaces.values() if _has_frames(interface)}
        for name, interface in ports.items():
            if interface.type == "internal":
                await self.connect(name, interface.mac)
            elif name not in self._wires:
                await self._connect_nic(name)
        for name in self._closed.keys() - ports.keys():
            self._release_nic(name)
        await database.change(self._addresses)

    async def _connect_nic(self, name: str) -> None:
        with Netlink() as netlink:
            index = _index(netlink, name)
            if not index:  # not there yet: the next change of the database tries again
                return
            ingress.close(netlink, index)
        self._closed[name] = index
        self._wires[name] = await Wire.open(open_nic(name))

    def _release_nic(self, name: str) -> None:
        self._wires.pop(name).close()
        with Netlink() as netlink:
            ingress.open_again(netlink, self._closed.pop(name))

    def _addresses(self, view: View) -> list[Operation]:
        return [
            put_keys(interface, "options", {"stream": wire.address})
            for name, wire in self._wires.items()
            if (interface := view.interfaces.get(name)) and interface.options.get("stream") != wire.address
        ]


def _has_frames(interface: InterfaceRow) -> bool:
    return interface.type in {"", "internal"}


async def give_tunnel_routes(stack: HostStack) -> None:
    """Gives the switch the addresses and routes of the bridge interface."""
    addresses, routes = _kernel_routes(stack.bridge)
    if not addresses:
        return
    wanted = {*routes, *(TunnelRoute(ip_network(address.ip)) for address in addresses)}
    known = set(shown_routes(await ask(stack.control, "ovs/route/show"), stack.bridge))
    if wanted <= known:
        return
    for address in addresses:
        await ask(stack.control, "netdev-dummy/ip4addr", stack.bridge, str(address))
    in_order = sorted(wanted, key=lambda route: (route.via is not None, -route.destination.prefixlen))
    await set_routes(stack.control, stack.bridge, in_order, [address.ip for address in addresses])


def _kernel_routes(name: str) -> tuple[list[IPInterface], list[TunnelRoute]]:
    """The IPv4 addresses and routes of this interface."""
    with Netlink() as netlink:
        index = _index(netlink, name)
        addresses = [address for _, address in rtnetlink.addresses(netlink, index) if address.version == IPV4]
        routes = [
            TunnelRoute(found.route.destination, found.route.via)
            for found in rtnetlink.routes(netlink, index=index)
            if found.route.destination.version == IPV4 and found.route.table != TABLE_LOCAL
        ]
    return addresses, routes


def _index(netlink: Netlink, name: str) -> int:
    link = rtnetlink.link(netlink, name)
    return link.index if link else 0


async def _run(stack: HostStack) -> None:
    servers = [await relay(Path(path), pipe, stack.relay_port) for path, pipe in stack.relays.items()]
    wires = Wires()
    for name, nic in stack.taps.items():
        await wires.connect(name, _mac_of(nic) if nic else None)
    changed = asyncio.Event()
    with Netlink(_IPV4_ADDRESSES | _IPV4_ROUTES) as kernel:
        asyncio.get_running_loop().add_reader(kernel.fileno(), _note, kernel, changed)
        async with open_database(stack.database, SECONDS_TO_START) as database, asyncio.TaskGroup() as tasks:
            tasks.create_task(_tell(database, changed))
            tasks.create_task(_follow(stack, wires, database, changed))
    for server in servers:
        server.close()


async def _tell(database: Database, changed: asyncio.Event) -> None:
    changed.set()
    async for _ in database.changes(database.view):
        changed.set()


async def _follow(stack: HostStack, wires: Wires, database: Database, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        try:
            await wires.follow(database)
            if stack.bridge in database.view.bridges:
                await give_tunnel_routes(stack)
        except (SwitchRefusedError, SwitchUnreachableError) as error:  # it starts, or starts again
            print(error, file=sys.stderr, flush=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(SECONDS_BETWEEN_ATTEMPTS):
                    await changed.wait()
            changed.set()


def _note(kernel: Netlink, changed: asyncio.Event) -> None:
    os.read(kernel.fileno(), 1 << 16)
    changed.set()


def _mac_of(nic: str) -> str | None:
    with Netlink() as netlink:
        link = rtnetlink.link(netlink, nic)
        return link.mac if link else None


if __name__ == "__main__":
    asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=HostStack)))
