"""A Windows host for tests: Wine in a Linux network namespace, whose kernel plays the IP stack.

IP Helper's writes are made there by a stand-in library (stand_ins/iphlpapi.c), which Wine lacks; its reads are Wine's
own. `ip` is the independent judge. tools/test-windows makes the namespace and says where the library is.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from host_states import PEERS, STATE

from windlass.host.plans import HostNames
from windlass.host.windows.metrics import METRIC
from windlass.model.families import Family
from windlass.model.nodes import NodeState, OperatingSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from windlass.host.windows.hosts import WindowsHost

LIBRARY_VARIABLE = "WINDLASS_STAND_IN_IPHLPAPI"
_FAULT = Path("C:/fault")  # which call the library refuses, and with which code
_counter = itertools.count(1)

requires_stand_ins = pytest.mark.skipif(
    sys.platform != "win32" or LIBRARY_VARIABLE not in os.environ,
    reason="needs Wine in a namespace of its own: tools/test-windows",
)


def _ipv4_only(state: NodeState) -> NodeState:
    """Windows forwards IPv4 only."""
    only = lambda values: {Family.IPV4: values[Family.IPV4]}  # noqa: E731
    node = replace(
        state.node,
        os=OperatingSystem.WINDOWS,
        addresses=only(state.node.addresses),
        pod_cidrs=only(state.node.pod_cidrs),
    )
    peers = {
        name: replace(peer, addresses=only(peer.addresses), pod_cidrs=only(peer.pod_cidrs))
        for name, peer in PEERS.items()
    }
    return NodeState(node, peers)


_STATE = _ipv4_only(STATE)
# With numbers of their own: Wine 8 reads every number that it ever met, again and again.
_BRIDGE = f"""
link add br-int index 15 address {_STATE.node.uplink_mac} type veth peer name br-far index 16
link set br-far up
link set br-int up
"""
_INTERFACES = f"""
link set lo up
link add eth0 index 11 address {_STATE.node.uplink_mac} mtu 1500 type veth peer name wire index 12
link add windlass-gw0 index 13 address {_STATE.node.gateway_mac} type veth peer name gw-far index 14
link set wire up
link set gw-far up
link set windlass-gw0 up
link set eth0 up
addr add 192.0.2.5/24 brd + dev eth0
addr add 192.0.2.77/24 dev eth0
route add 198.51.100.7 dev eth0 proto static scope link
route add default via 192.0.2.1 dev eth0 proto dhcp metric 100
route add 203.0.113.0/24 via 192.0.2.9 dev eth0
"""


@dataclass
class WindowsMachine:
    state_directory: Path
    names = HostNames(uplink="eth0")
    state = _STATE
    userspace = False
    node_ips = (ip_address("192.0.2.5"),)

    def open_host(self) -> WindowsHost:
        from windlass.host.windows.hosts import WindowsHost  # noqa: PLC0415 - only on Windows

        return WindowsHost(self.state_directory, os.environ[LIBRARY_VARIABLE])

    def make_bridge(self) -> None:
        ip("-batch", "-", stdin=_BRIDGE)

    def remove_bridge(self) -> None:
        ip("link", "delete", "br-int")

    def add_foreign_route(self, destination: str) -> None:
        ip("route", "add", destination, "dev", "gw-far")

    def add_conflicting_route(self, destination: str) -> None:
        """One that the kernel lets nobody add a second time, with the metric of Windlass' routes."""
        ip("route", "add", destination, "dev", "gw-far", "metric", str(METRIC))

    def has_route(self, destination: str) -> bool:
        return bool(ip_json("route", "show", destination))

    def take_route_away(self, destination: str) -> None:
        ip("route", "delete", destination)

    def give_address(self, interface: str, address: str) -> None:
        ip("address", "add", address, "dev", interface)

    def take_address(self, interface: str, address: str) -> None:
        ip("address", "delete", address, "dev", interface)

    def holders(self, address: str) -> set[str]:
        """The interfaces that have it."""
        return {
            link["ifname"]
            for link in ip_json("address", "show")
            for info in link["addr_info"]
            if info["local"] == address
        }

    @contextmanager
    def refusing(self, call: str, code: int) -> Iterator[None]:
        """Within the block, IP Helper refuses this call with this code of Windows."""
        _FAULT.write_text(f"{call} {code}\n")
        try:
            yield
        finally:
            _FAULT.unlink()


@contextmanager
def windows_machine(state_directory: Path) -> Iterator[WindowsMachine]:
    ip("-batch", "-", stdin=_INTERFACES + _BRIDGE)
    try:
        yield WindowsMachine(state_directory)
    finally:
        for name in ("eth0", "windlass-gw0", "br-int"):
            unix("ip", "link", "delete", name)
        for address in ip_json("address", "show", "dev", "lo", "scope", "global"):
            for info in address["addr_info"]:
                ip("address", "delete", f"{info['local']}/{info['prefixlen']}", "dev", "lo")


def ip(*arguments: str, stdin: str = "") -> str:
    status, said = unix("ip", *arguments, stdin=stdin)
    assert status == 0, f"ip {' '.join(arguments)}: {said}"
    return said


def ip_json(*arguments: str) -> list[dict[str, Any]]:
    return [entry for entry in json.loads(ip("-json", "-details", *arguments) or "[]") if entry]


def unix(*command: str, stdin: str = "") -> tuple[int, str]:
    """The exit status and the output of a Linux program. Wine starts one, but gives no pipe to it."""
    name = f"windlass-test.{os.getpid()}.{next(_counter)}"
    given, said = Path(f"Z:/tmp/{name}.in"), Path(f"Z:/tmp/{name}.out")
    given.write_bytes(stdin.encode())
    try:
        quoted = " ".join(f"'{word}'" for word in command)
        line = f"{quoted} </tmp/{given.name} >/tmp/{said.name} 2>&1"
        words = (ctypes.c_char_p * 4)(b"/bin/sh", b"-c", line.encode(), None)
        status = ctypes.cdll.ntdll.__wine_unix_spawnvp(words, 1)
        return status, said.read_text(encoding="utf-8")
    finally:
        given.unlink(missing_ok=True)
        said.unlink(missing_ok=True)
