"""A temporary Linux machine for tests: namespaces with a Node's interfaces, checked with `ip`."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from host_states import STATE
from ip_machines import IpMachine, entries

from windlass.host.linux import namespaces
from windlass.host.linux.hosts import LinuxHost
from windlass.host.plans import HostNames

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "wlhost-"
_counter = itertools.count(1)


def _why_not() -> str | None:
    if sys.platform != "linux":
        return "needs Linux network namespaces"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    return None


requires_namespaces = pytest.mark.skipif(_why_not() is not None, reason=_why_not() or "")

# eth0 is the NIC with its wire's other end in the namespace beside; veth pairs stand in for the ports of the switch.
_INTERFACES = """
link set lo up
link add eth0 address 02:00:00:00:00:05 mtu 1500 type veth peer name wire netns {wire}
link add windlass-gw0 type veth peer name gw-far
link set gw-far up
link set eth0 up
addr add 192.0.2.5/24 brd + dev eth0
addr add 192.0.2.77/24 dev eth0
addr add 2001:db8::5/64 dev eth0 nodad
addr add 2001:db8::77/64 dev eth0 nodad
route add 198.51.100.7 dev eth0 proto static scope link
route add default via 192.0.2.1 dev eth0 proto dhcp metric 100
route add 203.0.113.0/24 via 192.0.2.9 dev eth0 src 192.0.2.77 mtu 1400
route add ::/0 via 2001:db8::1 dev eth0 metric 512
route add 2001:db8:9::/48 via fe80::9 dev eth0
"""
_BRIDGE = """
link add br-int type veth peer name br-far
link set br-far up
"""
_WIRE = """
link set lo up
link set wire up
addr add 192.0.2.1/24 dev wire
addr add 2001:db8::1/64 dev wire nodad
"""


@dataclass
class LinuxMachine(IpMachine):
    """The thread of the test is inside the machine: sockets, `ip` and `/proc/sys` are the machine's."""

    state_directory: Path
    wire: str  # the namespace at the other end of the NIC
    _stack: ExitStack
    bridge_lines = _BRIDGE
    names = HostNames(uplink="eth0")
    state = STATE
    userspace = True
    node_ips = (ip_address("192.0.2.5"), ip_address("2001:db8::5"))
    refused_gateway = r"could not add the default route through 172\.16\.0\.1 to eth0"

    ip = staticmethod(lambda *arguments, stdin="": ip(*arguments, stdin=stdin))

    def open_host(self) -> LinuxHost:
        return LinuxHost(self.state_directory)

    def remake_bridge(self) -> None:
        ip("-batch", "-", stdin=f"link delete br-int\n{_BRIDGE}")

    def new_sandbox(self) -> str:
        return str(namespaces.path_of(_namespace(self._stack)))

    def remove_sandbox(self, path: str) -> None:
        namespaces.delete(Path(path).name)

    def add_conflicting_route(self, destination: str) -> None:
        """A route that the kernel does not allow to be added a second time."""
        self.add_foreign_route(destination)


def reaches(address: str, source: str = "") -> bool:
    """Whether the machine is reachable: it refuses a connection to a port without a listener."""
    try:
        socket.create_connection((address, 9), timeout=0.3, source_address=(source, 0) if source else None).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def linux_machine(state_directory: Path) -> Iterator[LinuxMachine]:
    for leftover in namespaces.NAMED.glob(f"{_PREFIX}*"):
        if not Path("/proc", leftover.name.removeprefix(_PREFIX).partition("-")[0]).exists():
            namespaces.delete(leftover.name)
    with ExitStack() as stack:
        node, wire = _namespace(stack), _namespace(stack)
        stack.enter_context(namespaces.entered(namespaces.path_of(node)))
        ip("-batch", "-", stdin=_INTERFACES.format(wire=wire) + _BRIDGE)
        ip("-n", wire, "-batch", "-", stdin=_WIRE)
        yield LinuxMachine(state_directory, wire, stack)


def ip(*arguments: str, stdin: str = "") -> str:
    done = subprocess.run(["ip", *arguments], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def ip_json(*arguments: str) -> list[dict[str, Any]]:
    return entries(ip("-json", "-details", *arguments))


def ip_batch(*commands: str) -> list[list[dict[str, Any]]]:
    """The output of `ip` for each command, in one process."""
    answers = ip("-json", "-details", "-batch", "-", stdin="\n".join(commands)).splitlines()
    return [[entry for entry in json.loads(answer) if entry] for answer in answers if answer.strip()]


@contextmanager
def new_namespace() -> Iterator[str]:
    name = f"{_PREFIX}{os.getpid()}-{next(_counter)}"
    namespaces.create(name)
    try:
        yield name
    finally:
        namespaces.delete(name)


def _namespace(stack: ExitStack) -> str:
    return stack.enter_context(new_namespace())
