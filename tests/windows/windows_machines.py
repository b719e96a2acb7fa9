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
import uuid
import zlib
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from host_states import PEERS, STATE
from ip_machines import IpMachine, entries

from windlass.host.plans import HostNames
from windlass.host.windows.metrics import METRIC
from windlass.model.families import Family
from windlass.model.nodes import NodeState, OperatingSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from windlass.host.windows.hosts import WindowsHost

LIBRARY_VARIABLE = "WINDLASS_STAND_IN_IPHLPAPI"
# What changes the stand-ins; host_network_service.py says how.
_FAULT = Path("C:/fault")
_LATE = Path("C:/late")
_NO_EXTENSION = Path("C:/no-extension")
_FORGETS = Path("C:/forgets")
_STAND_INS = {
    "ip_helper": os.environ.get(LIBRARY_VARIABLE, ""),
    "compute_network": os.environ.get("WINDLASS_STAND_IN_HCN", ""),
    "network_service": os.environ.get("WINDLASS_STAND_IN_HCN", ""),
    "netsh": os.environ.get("WINDLASS_STAND_IN_NETSH", ""),
}
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
# With indices of their own: Wine 8 never forgets the first index of a name. host_network_service.py has this, too.
_BRIDGE_INDEX = 1000 + zlib.crc32(b"br-int") % 1_000_000
_BRIDGE = f"""
link add br-int index {_BRIDGE_INDEX} address {_STATE.node.uplink_mac} type veth peer name br-far index 16
link set br-far up
link set br-int up
"""
_GATEWAY = f"""
link add windlass-gw0 index 13 address {_STATE.node.gateway_mac} type veth peer name gw-far index 14
link set gw-far up
link set windlass-gw0 up
"""
_INTERFACES = f"""{_GATEWAY}
link set lo up
link add eth0 index 11 address {_STATE.node.uplink_mac} mtu 1500 type veth peer name wire index 12
link set wire up
link set eth0 up
addr add 192.0.2.5/24 brd + dev eth0
addr add 192.0.2.77/24 dev eth0
route add 198.51.100.7 dev eth0 proto static scope link
route add default via 192.0.2.1 dev eth0 proto dhcp metric 100
route add 203.0.113.0/24 via 192.0.2.9 dev eth0
"""


@dataclass
class WindowsMachine(IpMachine):
    state_directory: Path
    sandboxes: list[str] = field(default_factory=list)
    bridge_lines = _BRIDGE
    names = HostNames(uplink="eth0")
    state = _STATE
    userspace = False
    node_ips = (ip_address("192.0.2.5"),)
    refused_gateway = "HcnModifyNamespace: the address cannot be used in this network .*invalid gateway"

    ip = staticmethod(lambda *arguments, stdin="": ip(*arguments, stdin=stdin))

    def open_host(self, **parts: str) -> WindowsHost:
        """`parts`: other libraries or programs than the stand-ins."""
        from windlass.host.windows.hosts import WindowsHost, WindowsParts  # noqa: PLC0415 - only on Windows

        return WindowsHost(self.state_directory, replace(WindowsParts(**_STAND_INS), **parts))

    def new_sandbox(self) -> str:
        name = str(uuid.uuid4())
        ip("netns", "add", name)
        self.sandboxes.append(name)
        return name

    def remove_sandbox(self, name: str) -> None:
        ip("netns", "delete", name)

    def first_frame(self, sandbox: str, destination: str) -> list[str]:
        """The state of the Pod's TAP device once it is open, and the MAC by which the Pod asks for the destination."""
        program = Path(__file__).with_name("pod_frames.py").as_posix().removeprefix("Z:")
        status, said = unix("timeout", "20", "ip", "netns", "exec", sandbox, "python3", program, destination)
        assert status == 0, said
        return said.split()

    def start_container(self, endpoint: str) -> None:
        """Its interface appears, which did not within `late_interfaces`."""
        ip("link", "set", endpoint, "alias", f"vEthernet ({endpoint})")

    def service_state(self) -> dict[str, Any]:
        """What HNS has, as its stand-in keeps it."""
        status, said = unix("sh", "-c", "cat $WINEPREFIX/host-network-service.json")
        return json.loads(said) if status == 0 else {"networks": {}, "endpoints": {}}

    def replace_gateway(self) -> None:
        """As when ovs-vswitchd restarts."""
        ip("link", "delete", "windlass-gw0")
        ip("-batch", "-", stdin=_GATEWAY)

    def forwards(self, interface: str) -> bool:
        return unix("cat", f"/proc/sys/net/ipv4/conf/{interface}/forwarding")[1].strip() == "1"

    def reboot(self) -> None:
        """HNS has lost its network and its endpoints; the NIC has its addresses."""
        self.remove_interfaces()
        ip("-batch", "-", stdin=_INTERFACES + _BRIDGE)

    def remove_interfaces(self) -> None:
        """All of them; the stand-in of HNS forgets its networks and endpoints."""
        endpoints = [endpoint["document"]["Name"] for endpoint in self.service_state()["endpoints"].values()]
        for name in (*endpoints, "eth0", "windlass-gw0", "br-int", "eth0-far"):
            unix("ip", "link", "delete", name)
        unix("sh", "-c", "rm -f $WINEPREFIX/host-network-service.json")

    def late_interfaces(self) -> AbstractContextManager[None]:
        return _with_file(_LATE)

    def without_extension(self) -> AbstractContextManager[None]:
        return _with_file(_NO_EXTENSION)

    def forgetful_service(self) -> AbstractContextManager[None]:
        """HNS loses addresses and routes instead of moving them."""
        return _with_file(_FORGETS)

    def add_conflicting_route(self, destination: str) -> None:
        """One that the kernel lets nobody add a second time, with the metric of Windlass' routes."""
        ip("route", "add", destination, "dev", "gw-far", "metric", str(METRIC))

    def refusing(self, call: str, code: int | str) -> AbstractContextManager[None]:
        """Within the block, Windows refuses this call with this code, or does not return (`hang`)."""
        return _with_file(_FAULT, f"{call} {code}\n")


@contextmanager
def _with_file(file: Path, content: str = "") -> Iterator[None]:
    file.write_text(content)
    try:
        yield
    finally:
        file.unlink()


@contextmanager
def windows_machine(state_directory: Path) -> Iterator[WindowsMachine]:
    ip("-batch", "-", stdin=_INTERFACES + _BRIDGE)
    machine = WindowsMachine(state_directory)
    try:
        yield machine
    finally:
        machine.remove_interfaces()
        for name in machine.sandboxes:
            unix("ip", "netns", "delete", name)
        for address in ip_json("address", "show", "dev", "lo", "scope", "global"):
            for info in filter(None, address["addr_info"]):
                ip("address", "delete", f"{info['local']}/{info['prefixlen']}", "dev", "lo")


def ip(*arguments: str, stdin: str = "") -> str:
    status, said = unix("ip", *arguments, stdin=stdin)
    assert status == 0, f"ip {' '.join(arguments)}: {said}"
    return said


def ip_json(*arguments: str) -> list[dict[str, Any]]:
    return entries(ip("-json", "-details", *arguments))


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
