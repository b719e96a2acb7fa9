"""The Windows host: each method of the protocol runs a function of another module in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from windlass.host.forwarded_clients import Admission, ForwardedClient, ForwardedClients
from windlass.host.plans import HostChange, HostNames, HostPlan, NodePort, ServiceAccess, ServicePortItem
from windlass.host.preflight import Facts
from windlass.host.protocol import OTHER_INTERFACES, Host, HostError, HostPods, HostUplink
from windlass.host.windows import adapters, hcn, hns, ip_helper, items
from windlass.host.windows.hcn import ComputeNetwork
from windlass.host.windows.hns import HostNetworkService
from windlass.host.windows.ip_helper import IpHelper
from windlass.host.windows.ip_helper_threads import IpHelperThreads
from windlass.host.windows.pod_links import WindowsPods
from windlass.host.windows.port_forwarders import PROTOCOLS, Listener, PortForwarders, UdpSocket, udp_socket
from windlass.host.windows.uplink_hosts import WindowsUplink
from windlass.model.families import Family, IPAddress
from windlass.model.nodes import HostConnection


@dataclass(frozen=True, slots=True)
class WindowsParts:
    """The libraries and programs of Windows that Windlass uses."""

    ip_helper: str = ip_helper.LIBRARY
    compute_network: str = hcn.LIBRARY
    network_service: str = hns.LIBRARY
    netsh: str = "netsh.exe"
    powershell: str = "powershell.exe"
    open_udp_socket: UdpSocket = udp_socket


class WindowsHost(Host):
    boot = ""

    def __init__(self, state_directory: Path, parts: WindowsParts = WindowsParts()) -> None:  # noqa: B008 - frozen
        self._threads = threads = IpHelperThreads(IpHelper(parts.ip_helper))
        self._run = threads.run
        compute, service = ComputeNetwork(parts.compute_network), HostNetworkService(parts.network_service)
        record = state_directory / "uplink.json"
        self.uplink: HostUplink = WindowsUplink(threads, compute, service, parts.netsh, parts.powershell, record)
        self.pods: HostPods = WindowsPods(threads, compute, service)
        # Kept in this process only. The switch serves NodePorts at the Node IP, and routes lead packets for other
        # addresses of Services to it. The host serves NodePorts only at addresses whose packets do not reach it.
        self._of_services: set[ServiceAccess | ServicePortItem] = set()
        self._forwarders = PortForwarders(self._admit, parts.open_udp_socket)
        self._clients = ForwardedClients(lambda: None)

    def forward_clients(self, clients: ForwardedClients) -> None:
        self._clients = clients

    async def installed(self, names: HostNames) -> HostPlan:
        return await self._run(items.installed, names) | HostPlan(items=frozenset(self._of_services))

    async def apply(self, change: HostChange) -> tuple[str, ...]:
        problems = await self._run(items.apply, change)
        self._of_services -= {item for item in change.removed if isinstance(item, ServiceAccess | ServicePortItem)}
        self._of_services |= {item for item in change.added if isinstance(item, ServiceAccess | ServicePortItem)}
        return (*problems, *await self._forward())

    def _admit(self, listener: Listener, client: ForwardedClient) -> Admission | None:
        return self._clients.admit(listener.protocol, listener.port, client)

    async def _forward(self) -> tuple[str, ...]:
        access = next((item for item in self._of_services if isinstance(item, ServiceAccess)), None)
        ports = [item for item in self._of_services if isinstance(item, NodePort) and item.protocol in PROTOCOLS]
        held = {*await self.held_addresses(), ip_address("127.0.0.1")} if access and ports else ()
        networks = access.networks if access else ()
        served = [ip for ip in held if ip.version == 4 and any(ip in network for network in networks)]
        wanted = [
            Listener(port.protocol, ip, port.port) for port in ports if port.family is Family.IPV4 for ip in served
        ]
        return await self._forwarders.listen(wanted)

    async def reserve_ports(
        self,
        ports: Collection[tuple[int, int]],  # noqa: ARG002
        addresses: Collection[IPAddress],  # noqa: ARG002
    ) -> tuple[HostConnection, ...]:
        raise HostError("Windlass cannot reserve local ports on Windows yet")

    async def facts(self, bridge: str, uplink: str | None = None) -> Facts:
        return await self._run(_facts, bridge, uplink)

    async def held_addresses(self) -> frozenset[IPAddress]:
        return await self._run(_held_addresses)

    async def clean(self, names: HostNames) -> tuple[str, ...]:
        return await self._run(items.clean, names)

    async def watch(self, names: HostNames) -> AsyncGenerator[frozenset[str], None]:
        """Windows notifies of a change without details: read everything again after each, and compare."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        before = await self._run(_look)
        with self._threads.helper.watching(lambda: loop.call_soon_threadsafe(woken.set)):
            yield frozenset(names)
            while True:
                await woken.wait()
                woken.clear()
                now = await self._run(_look)
                changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
                before = now
                await self._forward()  # at the current addresses; the next `apply` reports what failed
                known = frozenset(names)
                event = (changed & known) | ({OTHER_INTERFACES} if changed - known else set())
                if event:
                    yield frozenset(event)

    async def close(self) -> None:
        await self._forwarders.close()
        self._threads.close()


def _look(helper: IpHelper) -> dict[str, tuple[object, ...]]:
    """The state of each interface, by name."""
    names = {link.index: link.alias for link in helper.links()}
    found: dict[str, set[object]] = {name: {index} for index, name in names.items()}
    for row in helper.addresses():
        if row.index in names:
            found[names[row.index]].add(row.interface)
    for route in helper.routes():
        if route.index in names:
            found[names[route.index]].add((route.destination, route.via, route.metric))
    return {name: tuple(sorted(map(str, things))) for name, things in found.items()}


def _held_addresses(helper: IpHelper) -> frozenset[IPAddress]:
    return frozenset(row.address.ip for row in helper.addresses() if adapters.is_global(row.address.ip))


def _facts(helper: IpHelper, bridge: str, name: str | None) -> Facts:
    adopted = adapters.read(helper, bridge)
    uplink = adapters.read(helper, name) if name else None
    if uplink is None:
        raise HostError(f"there is no interface {name or 'with a default route'}, which should be the uplink")
    addresses = uplink.addresses or (adopted.addresses if adopted else ())
    return Facts(uplink=uplink.name, addresses=addresses, mtu=uplink.mtu)
