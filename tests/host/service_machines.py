"""A throw-away Node for tests about Services: all machines around it answer with the client address that they saw.

Behind the gateway stands a namespace that plays the switch; on the wire of the bridge interface, and at a second NIC
that is no port of the switch, stand others.
"""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import socket
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host_machines import ip, new_namespace
from host_states import node

from windlass.host.linux import namespaces
from windlass.host.linux.hosts import LinuxHost
from windlass.host.linux.nftables import LIBRARY
from windlass.host.plans import ExternalPort, HostNames, HostPlan, NodePort, diff, plan_node
from windlass.host.services import plan_services
from windlass.model.families import Family
from windlass.model.nodes import TrafficMode
from windlass.model.services import Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from windlass.host.plans import Item


def _has_library() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


requires_nftables = pytest.mark.skipif(not _has_library(), reason=f"needs {LIBRARY}")
requires_nft = pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft, as an independent judge")

# No ports are reserved on these machines, so programs of the host use any ephemeral port.
NODE = replace(
    node(TrafficMode.ENCAP), ports_reserved=False
)  # 192.0.2.5 and 2001:db8::5 on the bridge, gateways 10.0.1.1 and 2001:db8:1::1
NAMES = HostNames(uplink="eth0")
SERVICE_CIDRS = (ip_network("10.96.0.0/16"), ip_network("fd00:10:96::/112"))
PATIENCE = 5.0
PORT = 30080
TCP, UDP, TCP6, UDP6 = (NodePort(f, p, PORT) for f in Family for p in (Protocol.TCP, Protocol.UDP))
EXTERNAL = ExternalPort(ip_address("203.0.113.80"), Protocol.TCP, 80)
EXTERNAL6 = ExternalPort(ip_address("2001:db8:cb::80"), Protocol.TCP, 80)

_VIRTUAL = ("169.254.169.110", "fd00:169:254:169::110")
_CLUSTER_IPS = ("10.96.0.10", "fd00:10:96::10")
_EXTERNAL = ("203.0.113.80", "2001:db8:cb::80")
_STAND_INS = ("240.0.2.5", "246.51.100.5", "4001:db8::5", "4001:db8:51::5")  # of the Node's own addresses
_ANSWERING = {
    "switch": (*_VIRTUAL, *_CLUSTER_IPS, *_EXTERNAL, *_STAND_INS),
    "wire": _EXTERNAL,
    "node": ("192.0.2.5", "2001:db8::5", "::1"),
}
_NODE = """
link set lo up
link add eth0 type veth peer name eth0-far
link add br-int address 02:00:00:00:00:05 type veth peer name far netns {wire}
link add windlass-gw0 type veth peer name far address aa:bb:cc:dd:ee:ff netns {switch}
link add eth1 type veth peer name far netns {client}
link set br-int up
link set eth1 up
link set windlass-gw0 up
addr add 192.0.2.5/24 dev br-int
addr add 2001:db8::5/64 dev br-int nodad
addr add 198.51.100.5/24 dev eth1
addr add 2001:db8:51::5/64 dev eth1 nodad
route add default via 192.0.2.1
route add default via 2001:db8::1 dev br-int
"""
_SWITCH = """
link set lo up
link set far up
addr add 169.254.169.110/32 dev lo
addr add fd00:169:254:169::110/128 dev lo nodad
addr add 10.96.0.10/32 dev lo
addr add fd00:10:96::10/128 dev lo nodad
addr add 203.0.113.80/32 dev lo
addr add 2001:db8:cb::80/128 dev lo nodad
addr add 240.0.2.5/32 dev lo
addr add 246.51.100.5/32 dev lo
addr add 4001:db8::5/128 dev lo nodad
addr add 4001:db8:51::5/128 dev lo nodad
addr add 198.51.100.77/32 dev lo
addr add 2001:db8:51::77/128 dev lo nodad
route add default via 10.0.1.1 dev far onlink
route add default via 2001:db8:1::1 dev far onlink
"""
_WIRE = """
link set lo up
link set far up
addr add 192.0.2.1/24 dev far
addr add 2001:db8::1/64 dev far nodad
addr add 203.0.113.80/32 dev lo
addr add 2001:db8:cb::80/128 dev lo nodad
route add 198.51.100.0/24 via 192.0.2.5
route add 2001:db8:51::/64 via 2001:db8::5
"""
_CLIENT = """
link set lo up
link set far up
addr add 198.51.100.9/24 dev far
addr add 2001:db8:51::9/64 dev far nodad
route add default via 198.51.100.5
route add default via 2001:db8:51::5
"""


@dataclass
class ServiceMachine:
    """The thread of the test is inside the Node: `ip`, `nft` and `/proc/sys` are the Node's."""

    state_directory: Path
    node: str
    switch: str
    wire: str
    client: str
    _servers: list[asyncio.Server] = field(default_factory=list)
    _transports: list[asyncio.Transport | asyncio.DatagramTransport] = field(default_factory=list)

    def open_host(self) -> LinuxHost:
        return LinuxHost(self.state_directory)

    async def answers(self, name: str, port: int) -> None:
        """Starts a TCP and UDP server in that namespace, which answers with its name and the client address."""
        loop = asyncio.get_running_loop()
        for address in _ANSWERING[name]:
            tcp = self.socket(name, address, socket.SOCK_STREAM)
            udp = self.socket(name, address, socket.SOCK_DGRAM)
            for made in (tcp, udp):
                made.bind((address, port))
            self._servers.append(await loop.create_server(lambda: _TCPGreeter(name, self._transports), sock=tcp))
            await loop.create_datagram_endpoint(lambda: _UDPGreeter(name, self._transports), sock=udp)

    async def ask(self, name: str, address: str, port: int, source: str = "") -> str:
        """The answer to a TCP connection from that namespace, or the error."""
        with self.socket(name, address, socket.SOCK_STREAM) as made:
            if source:
                made.bind((source, 0))
            try:
                await self.connect(made, address, port)
            except OSError as error:
                return "refused" if isinstance(error, ConnectionRefusedError) else str(error)
            return await told(made)

    async def connect(self, made: socket.socket, address: str, port: int) -> None:
        async with asyncio.timeout(PATIENCE):
            await asyncio.get_running_loop().sock_connect(made, (address, port))

    def socket(self, name: str, address: str, kind: socket.SocketKind) -> socket.socket:
        with namespaces.entered(namespaces.path_of(getattr(self, name))):
            made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
        made.setblocking(False)
        return made

    def send_from_switch(self, packet: bytes) -> None:
        """Any IPv4 packet, out to the gateway."""
        mac = bytes.fromhex(NODE.gateway_mac.replace(":", ""))
        with (
            namespaces.entered(namespaces.path_of(self.switch)),
            socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as any_packet,
        ):
            any_packet.sendto(packet, ("far", 0x0800, 0, 0, mac))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn


async def told(made: socket.socket, question: bytes = b"") -> str:
    """The other side's answer, or its greeting."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE):
            await loop.sock_sendall(made, question)
            return (await loop.sock_recv(made, 200)).decode()
    except ConnectionRefusedError:
        return "refused"


@dataclass
class _TCPGreeter(asyncio.Protocol):
    """Sends a greeting, and then echoes its input."""

    name: str
    transports: list[asyncio.Transport | asyncio.DatagramTransport]

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transports.append(transport)
        transport.write(f"{self.name} saw {transport.get_extra_info('peername')[0]}".encode())
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@dataclass
class _UDPGreeter(asyncio.DatagramProtocol):
    name: str
    transports: list[asyncio.Transport | asyncio.DatagramTransport]

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self.transports.append(transport)
        self._transport = transport

    def datagram_received(self, _: bytes, address: tuple[str, int]) -> None:
        self._transport.sendto(f"{self.name} saw {address[0]}".encode(), address)


@contextmanager
def service_machine(state_directory: Path) -> Iterator[ServiceMachine]:
    with ExitStack() as stack:
        inside, switch, wire, client = (stack.enter_context(new_namespace()) for _ in range(4))
        for name in (inside, switch, wire, client):
            with namespaces.entered(namespaces.path_of(name)):
                Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0")  # addresses are usable at once
        stack.enter_context(namespaces.entered(namespaces.path_of(inside)))
        ip("-batch", "-", stdin=_NODE.format(switch=switch, wire=wire, client=client))
        for name, commands in ((switch, _SWITCH), (wire, _WIRE), (client, _CLIENT)):
            ip("-n", name, "-batch", "-", stdin=commands)
        yield ServiceMachine(state_directory, inside, switch, wire, client)


def desired(*items: Item, networks: tuple[str, ...] = ()) -> HostPlan:
    """The whole plan of the Node for the kernel datapath, with these items of Services."""
    shared = plan_services(NODE, NAMES, SERVICE_CIDRS, tuple(map(ip_network, networks)), mtu=1450)
    return plan_node(NODE, NAMES, 1500, userspace=False) | shared | HostPlan(items=frozenset(items))


async def apply(host: LinuxHost, wanted: HostPlan) -> tuple[str, ...]:
    return await host.apply(diff(await host.installed(NAMES), wanted))


@pytest.fixture(name="machine")
def service_node(tmp_path: Path) -> Iterator[ServiceMachine]:
    with service_machine(tmp_path) as made:
        yield made


@pytest.fixture(name="host")
async def service_host(machine: ServiceMachine) -> AsyncIterator[LinuxHost]:
    opened = machine.open_host()
    yield opened
    await machine.close()
    await opened.close()


def sysctl(name: str, value: int | None = None) -> int:
    file = Path("/proc/sys/net/ipv4/conf", name)
    if value is not None:
        file.write_text(str(value))
    return int(file.read_text())


def nft(*arguments: str) -> str:
    return subprocess.run(["nft", *arguments], capture_output=True, text=True, check=True).stdout
