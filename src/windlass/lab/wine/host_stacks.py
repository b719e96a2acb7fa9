"""A process in the Node's namespace that stands in for the parts of a Windows host that Wine lacks.

The kernel of the namespace is the IP stack of the host. This process connects its interfaces with the ports of Open
vSwitch for Windows, which has a dummy datapath. The gateway is a TAP device; the stand-in of HNS creates the other
interfaces, with a TAP device in the namespace of each Pod. The process copies the routes of the bridge interface to the
switch, for tunnels (the Windows datapath asks the host), and makes the Node's named pipes available as Unix sockets.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import msgspec

from windlass.host.linux import ingress, namespaces, rtnetlink
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.route_messages import TABLE_LOCAL
from windlass.lab.wine.frames import Wire, open_nic, open_tap
from windlass.lab.wine.pipe_relays import kept
from windlass.lab.wine.relays import relay
from windlass.model.families import IPInterface
from windlass.switch.controls import ask
from windlass.switch.operations import Operation, put_keys
from windlass.switch.ovsdb import Database, SwitchRefusedError, open_database
from windlass.switch.pod_ports import pod_ports
from windlass.switch.rows import InterfaceRow, View
from windlass.switch.streams import SwitchUnreachableError
from windlass.switch.tunnel_routes import TunnelRoute, set_routes, shown_routes

SECONDS_TO_START = 600.0  # the lab has its own, shorter limit
SECONDS_BETWEEN_ATTEMPTS = 0.1
IPV4 = 4
_SHORT_QUEUE = "4096 32768 65536"  # bytes of frames for the switch; the kernel's default is megabytes
_LINKS, _IPV4_ADDRESSES, _IPV4_ROUTES = 0x1, 0x10, 0x40  # groups of netlink notifications


class HostStack(msgspec.Struct, frozen=True):
    """The only argument of this process, as JSON."""

    relays: dict[str, str]  # paths of Unix sockets, and the paths that Windows programs use for them
    relay_port: int  # the port of pipe_relays.py
    database: str  # Unix sockets
    control: str
    settled: str
    bridge: str
    gateway: str
    uplink: str


@dataclass(frozen=True, slots=True)
class _Connected:
    wire: Wire
    index: int  # the index of its interface
    is_ours: bool = False  # this process has created the interface


class Wires:
    """The connected ports."""

    def __init__(self, bridge: str, uplink: str) -> None:
        self._bridge = bridge
        self._uplink = uplink
        self._bridge_end = f"{uplink}-far"  # the name that the stand-in of HNS gives to it
        self._connected: dict[str, _Connected] = {}

    async def add_tap(self, name: str) -> None:
        """Adds an interface to the host."""
        wire = await Wire.open(open_tap(name))
        # Windows forwards a packet that has an address of this host as its source; Linux drops it by default.
        Path(f"/proc/sys/net/ipv4/conf/{name}/accept_local").write_text("1")  # noqa: ASYNC240
        with Netlink() as netlink:
            index = _index(netlink, name)
            rtnetlink.set_link(netlink, index, up=True)
        self._connected[name] = _Connected(wire, index, is_ours=True)

    async def follow(self, database: Database) -> None:
        """Connects the ports in the database with the interfaces of the same names."""
        ports = {interface.name: interface for interface in database.view.interfaces.values() if _has_frames(interface)}
        for name in [name for name, known in self._connected.items() if not known.is_ours and name not in ports]:
            self._release(name)
        pods = {port.interface: port.netns for port in pod_ports(database.view, self._bridge)}
        for name, interface in ports.items():
            await self._connect(name, interface, pods.get(name, ""))
        await database.change(self._addresses)

    async def _connect(self, name: str, interface: InterfaceRow, pod: str) -> None:
        """`pod`: the namespace of the Pod whose port it is."""
        known = self._connected.get(name)
        device = self._bridge_end if name == self._bridge else name
        with Netlink() as netlink:
            # Without an HNS network, as after a reboot, the NIC belongs to the host.
            is_there = name != self._uplink or rtnetlink.link(netlink, self._bridge_end)
            link = rtnetlink.link(netlink, device) if is_there else None
            if known and known.is_ours:
                if link and interface.mac and link.mac != interface.mac:
                    rtnetlink.set_link(netlink, link.index, mac=interface.mac)
                return
            if known and (
                link is None or known.index != link.index
            ):  # it was deleted, or another interface has its name
                self._release(name)
            elif known:
                return
            if link is None:  # a notification about the link starts another attempt
                return
            if not pod:
                ingress.close(netlink, link.index)
        with suppress(FileNotFoundError):  # the Pod ends: its port will be deleted
            wire = await Wire.open(_open_pod(pod) if pod else open_nic(device))
            self._connected[name] = _Connected(wire, link.index)

    def _release(self, name: str) -> None:
        known = self._connected.pop(name)
        known.wire.close()
        with Netlink() as netlink, suppress(OSError):  # the interface may be gone, or is a Pod's
            ingress.open_again(netlink, known.index)

    def _addresses(self, view: View) -> list[Operation]:
        return [
            put_keys(interface, "options", {"stream": known.wire.address})
            for name, known in self._connected.items()
            if (interface := view.interfaces.get(name)) and interface.options.get("stream") != known.wire.address
        ]


def _open_pod(namespace: str) -> int:
    """Opens the TAP device that the Pod has as eth0. Returns a file descriptor."""
    with namespaces.entered(namespaces.path_of(namespace)):
        return open_tap("eth0")


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
    """The IPv4 addresses and routes of this interface; none without it, as after a reboot."""
    with Netlink() as netlink:
        index = _index(netlink, name)
        if not index:
            return [], []
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
    Path("/proc/sys/net/ipv4/tcp_rmem").write_text(_SHORT_QUEUE)  # noqa: ASYNC240
    servers = [await relay(Path(path), pipe, stack.relay_port) for path, pipe in stack.relays.items()]
    wires = Wires(stack.bridge, stack.uplink)
    await wires.add_tap(stack.gateway)
    changed = asyncio.Event()
    with Netlink(_LINKS | _IPV4_ADDRESSES | _IPV4_ROUTES) as kernel:
        asyncio.get_running_loop().add_reader(kernel.fileno(), _note, kernel, changed)
        async with open_database(stack.database, SECONDS_TO_START) as database, asyncio.TaskGroup() as tasks:
            follower = Follower(stack, wires, database)
            servers.append(await asyncio.start_unix_server(kept(follower.answer), stack.settled))
            tasks.create_task(_tell(database, changed))
            tasks.create_task(_follow(follower, changed))
    for server in servers:
        server.close()


class Follower:
    """Keeps connected ports and tunnel routes in line with the database and the kernel."""

    def __init__(self, stack: HostStack, wires: Wires, database: Database) -> None:
        self._stack = stack
        self._wires = wires
        self._database = database
        self._passes = asyncio.Lock()

    async def follow(self) -> None:
        """Returns when the switch has everything. Retries while the switch starts."""
        async with self._passes:
            while True:
                try:
                    await self._wires.follow(self._database)
                    if self._stack.bridge in self._database.view.bridges:
                        await give_tunnel_routes(self._stack)
                except (SwitchRefusedError, SwitchUnreachableError) as error:
                    print(error, file=sys.stderr, flush=True)
                    await asyncio.sleep(SECONDS_BETWEEN_ATTEMPTS)
                else:
                    return

    async def answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Closes the connection at the end of a pass that began after the connection was opened."""
        await self.follow()
        writer.close()


async def _tell(database: Database, changed: asyncio.Event) -> None:
    changed.set()
    async for _ in database.changes(database.view):
        changed.set()


async def _follow(follower: Follower, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        await follower.follow()


def _note(kernel: Netlink, changed: asyncio.Event) -> None:
    os.read(kernel.fileno(), 1 << 16)
    changed.set()


if __name__ == "__main__":
    asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=HostStack)))
