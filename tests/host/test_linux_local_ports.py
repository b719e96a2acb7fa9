"""Ports that a Linux host reserves for SNAT: reserving, releasing, and connections that already use one of them."""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host_machines import LinuxMachine, ip, requires_namespaces

from windlass.host.protocol import HostError
from windlass.model.nodes import HostConnection
from windlass.model.services import Protocol
from windlass.pipeline.snat_ports import HOST_RESERVED

if TYPE_CHECKING:
    from windlass.host.linux.hosts import LinuxHost

OURS = "12288-28671,32768-49151"
ADDRESSES = (ip_address("127.0.0.1"), ip_address("::1"))

LOCAL, RESERVED = "ip_local_port_range", "ip_local_reserved_ports"


def read(name: str) -> str:
    return Path("/proc/sys/net/ipv4", name).read_text().strip()


def write(name: str, value: str) -> None:
    Path("/proc/sys/net/ipv4", name).write_text(value)


pytestmark = requires_namespaces


async def test_no_new_connection_of_the_host_gets_a_reserved_port(host: LinuxHost, machine: LinuxMachine):
    write(LOCAL, "32700 60999")
    assert await host.reserve_ports(HOST_RESERVED, ADDRESSES) == ()
    assert read(RESERVED) == OURS
    given = set()
    with ExitStack() as sockets:
        for _ in range(2000):
            opened = sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            opened.bind(("127.0.0.1", 0))
            given.add(opened.getsockname()[1])
    assert not any(32768 <= port <= 49151 for port in given)
    assert await host.clean(machine.names) == ()
    assert read(RESERVED) == ""


async def test_connections_to_different_servers_get_different_ports(host: LinuxHost, machine: LinuxMachine):
    """If a range began with reserved ports, more than half of the connections would get the first port after them."""
    ip("link", "set", "lo", "up")
    write(LOCAL, "32768 60999")
    await host.reserve_ports(HOST_RESERVED, ADDRESSES)
    given: Counter[int] = Counter()
    with ExitStack() as sockets:
        server = sockets.enter_context(socket.create_server(("", 20_000), backlog=100))
        for number in range(1, 101):
            client = sockets.enter_context(socket.socket())
            client.connect((f"127.0.1.{number}", server.getsockname()[1]))
            given[client.getsockname()[1]] += 1
    assert max(given.values()) < 10, given.most_common(3)
    assert read(LOCAL).split() == ["49152", "60999"]
    assert await host.clean(machine.names) == ()
    assert read(LOCAL).split() == ["32768", "60999"]


async def test_a_range_stays_if_no_part_of_it_is_long_enough(host: LinuxHost, machine: LinuxMachine):
    write(LOCAL, "27000 54000")  # with 4,096 ports between the reserved ones and 4,849 after them
    await host.reserve_ports(HOST_RESERVED, ADDRESSES)
    assert read(LOCAL).split() == ["27000", "54000"]


async def test_ports_that_others_reserved_are_kept(host: LinuxHost, machine: LinuxMachine):
    write(RESERVED, "8080,20000-20010")
    await host.reserve_ports(HOST_RESERVED, ADDRESSES)
    assert read(RESERVED) == f"8080,{OURS}"
    write(RESERVED, f"8080,9090,{OURS}")  # another program adds one
    await host.reserve_ports(HOST_RESERVED, ADDRESSES)
    assert await host.clean(machine.names) == ()
    assert read(RESERVED) == "8080,9090,20000-20010"


async def test_a_list_that_another_program_replaced_is_completed(host: LinuxHost, machine: LinuxMachine):
    await host.reserve_ports(HOST_RESERVED, ADDRESSES)
    write(RESERVED, "8080")
    await host.reserve_ports(HOST_RESERVED, ADDRESSES)
    assert read(RESERVED) == f"8080,{OURS}"
    assert await host.clean(machine.names) == ()
    assert read(RESERVED) == "8080"


@pytest.mark.parametrize(("local", "left"), [("32768 49151", 0), ("40000 57000", 7849)])
async def test_a_host_that_would_have_too_few_ports_keeps_them(
    host: LinuxHost, machine: LinuxMachine, local: str, left: int
):
    write(LOCAL, local)
    with pytest.raises(HostError, match=f"of which {left} would be left"):
        await host.reserve_ports(HOST_RESERVED, ADDRESSES)
    assert read(RESERVED) == ""


async def test_earlier_connections_from_reserved_ports_are_reported(host: LinuxHost, machine: LinuxMachine):
    """In both families; without connections from other ports, and without listening sockets."""
    ip("link", "set", "lo", "up")
    with ExitStack() as sockets:
        remotes = []
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            server = sockets.enter_context(socket.create_server((address, 0), family=family))
            remotes.append(server.getsockname()[1])
            for port in (40_001, 60_001):
                client = sockets.enter_context(socket.socket(family))
                client.bind((address, port))
                client.connect(server.getsockname())
            asked = sockets.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            asked.bind((address, 41_000))
            asked.connect((address, 53))
        sockets.enter_context(socket.create_server(("127.0.0.1", 42_000)))
        anywhere = sockets.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        anywhere.bind(("::", 43_000))
        assert set(await host.reserve_ports(HOST_RESERVED, ADDRESSES)) == {
            HostConnection(Protocol.TCP, 40_001, ADDRESSES[0], remotes[0]),
            HostConnection(Protocol.TCP, 40_001, ADDRESSES[1], remotes[1]),
            HostConnection(Protocol.UDP, 41_000, ADDRESSES[0], 53),
            HostConnection(Protocol.UDP, 41_000, ADDRESSES[1], 53),
            HostConnection(Protocol.UDP, 43_000),
        }
