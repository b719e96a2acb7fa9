"""A Node with a real kernel, Open vSwitch, disk and NIC, whose adoption fails in many ways."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import ip_address
from pathlib import Path

from disks import full, small_disk
from switches import Switch, run, running_switch
from windlass.agent.hosting import Hosting
from windlass.host.linux.hosts import LinuxHost, LinuxUplink
from windlass.host.linux.kernel_threads import KernelThreads
from windlass.host.linux.namespaces import entered, path_of
from windlass.host.linux.netlink import Netlink, NetlinkError
from windlass.host.linux.settings import set_offloads
from windlass.host.plans import HostChange, InterfaceSettings
from windlass.host.protocol import Adopted, HostError
from windlass.lab.network.ovs import datapath_type
from windlass.model.families import IPAddress
from windlass.switch.bridge_differences import uplink_of
from windlass.switch.bridge_specs import BridgeSpec
from windlass.switch.bridges import ensure_bridge, remove_uplink
from windlass.switch.operations import increment_next_cfg
from windlass.switch.ovsdb import Database, SwitchRefusedError, open_database
from windlass.switch.streams import SwitchUnreachableError

NODE_IPS = (ip_address("192.0.2.5"), ip_address("2001:db8::5"))
SPEC = BridgeSpec("br-int", datapath_type(), "02:00:00:00:00:05", "gw0", "02:00:00:00:00:06", "eth0", None, mtu=1500)
NIC = """
link add eth0 address 02:00:00:00:00:05 type veth peer name wire netns {wire}
link set eth0 up
addr add 192.0.2.5/24 brd + dev eth0
addr add 192.0.2.77/24 dev eth0 valid_lft 600 preferred_lft 600
addr add 2001:db8::5/64 dev eth0 nodad
route add default via 192.0.2.1 dev eth0 proto dhcp src 192.0.2.5 metric 100
route add ::/0 via 2001:db8::1 dev eth0 metric 512
"""
EMPTY = """
link del eth0
link set br-int down
addr flush dev br-int
"""
OTHER = """
link add gw-other up type veth peer name gw-far
link set gw-far up
"""
WIRE = """
link set wire up
addr add 192.0.2.1/24 dev wire
addr add 2001:db8::1/64 dev wire nodad
addr replace 198.18.7.7/32 dev lo
addr replace 2001:db8:7::7/128 dev lo nodad
link set lo up
"""
FAR = ("198.18.7.7", "2001:db8:7::7")  # of a client that the Node reaches by its router


class Fault(Enum):
    NONE = auto()
    REFUSED = auto()  # one change
    ALL_REFUSED = auto()  # from this one on
    KILLED = auto()
    KILLED_AFTER_MOVE = auto()  # when the addresses have moved, before anything else
    DISK_FULL = auto()
    DATABASE_AWAY = auto()
    DATABASE_GOES = auto()  # after the NIC has become a port


class KilledError(BaseException):
    """Simulates a killed agent."""


class FaultyNetlink(Netlink):
    def __init__(self, host: FaultyHost) -> None:
        super().__init__()
        self._host = host

    def do(self, kind: int, body: bytes, flags: int = 0) -> None:
        self._host.changes += 1
        fault, at = self._host.fault, self._host.at
        if fault is Fault.KILLED and self._host.changes >= at:
            raise KilledError
        is_due = self._host.changes == at if fault is Fault.REFUSED else self._host.changes >= at
        if fault in {Fault.REFUSED, Fault.ALL_REFUSED} and is_due:
            raise NetlinkError(errno.EIO, "refused by the test")
        super().do(kind, body, flags)


class FaultyThreads(KernelThreads):
    def __init__(self, host: FaultyHost) -> None:
        super().__init__()
        assert callable(super().connect), "else nothing would call the method below"
        self._host = host

    def connect(self) -> Netlink:
        return FaultyNetlink(self._host)


class FaultyUplink(LinuxUplink):
    host: FaultyHost

    async def adopt(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> Adopted:
        if self.host.fault is Fault.DATABASE_GOES:
            await self.host.switch.stop_database()
        adopted = await super().adopt(uplink, bridge, node_ips)
        if self.host.fault is Fault.KILLED_AFTER_MOVE:
            raise KilledError
        return adopted


class FaultyHost(LinuxHost):
    fault = Fault.NONE
    at = 0
    changes = 0
    switch: Switch

    def __init__(self, state_directory: Path) -> None:
        super().__init__(state_directory)
        assert isinstance(self._threads, FaultyThreads), "else no fault would occur"
        self.uplink = uplink = FaultyUplink(self._threads, self._file, self._formers)
        uplink.host = self

    def _start_threads(self) -> KernelThreads:
        return FaultyThreads(self)


@dataclass
class World:
    switch: Switch
    wire: str
    disk: Path
    database: Database

    async def attempt(self, tried: list[tuple[str, Fault, int]], *, far: bool = False) -> bool:
        """Returns whether each fault occurred. far: the Node also answers clients that it reaches by its router."""
        await self._reset()
        occurred = True
        for event, fault, at in tried:
            with suppress(RuntimeError):  # it may fail at this moment
                await run("ip", "-n", self.switch.namespace, *event.split()) if event else None
            occurred &= await self._pass(fault, at)
            await self._assert_answers(f"after {event or 'nothing'}, {fault.name} at {at} of {tried}", far=far)
        await self._pass(Fault.NONE, 0)
        await self._assert_answers(f"in the end of {tried}", far=far)
        held = await run("ip", "-n", self.switch.namespace, "-o", "address", "show", "dev", "br-int")
        assert all(f" {address}/" in held for address in NODE_IPS), held
        assert uplink_of(self.database.view, "br-int") == "eth0"
        return occurred

    async def _pass(self, fault: Fault, at: int) -> bool:
        """Does what an agent's pass does with the uplink. Returns whether it failed."""
        with entered(path_of(self.switch.namespace)):
            host = FaultyHost(self.disk)
        host.fault, host.at, host.switch = fault, at, self.switch
        hosting = Hosting(host, lambda *_: None, lambda: None)
        filling = ExitStack()
        if fault is Fault.DISK_FULL:
            filling.enter_context(full(self.disk))
        if fault is Fault.DATABASE_AWAY:
            await self.switch.stop_database()
            await self.database.wait_for(lambda view: view.problem)
        try:
            await hosting.take_uplink(self.database, SPEC, NODE_IPS)
            if SPEC.is_userspace:
                closed = InterfaceSettings("eth0", kernel_ingress=False)
                await host.apply(HostChange(settings=(closed,)))
        except (HostError, SwitchRefusedError, SwitchUnreachableError, KilledError):
            assert fault is not Fault.NONE
            return True
        finally:
            filling.close()
            await host.close()
            if fault in {Fault.DATABASE_AWAY, Fault.DATABASE_GOES}:
                # Meanwhile a userspace datapath forwards nothing, because ovs-vswitchd waits for the database.
                before = self.database.view.connections
                await self.switch.start_database()
                await self.database.wait_for(lambda view: view.connections > before and not view.problem)
                await self.database.carried_out(await self.database.change(lambda _: [increment_next_cfg()]))
        return False

    async def _reset(self) -> None:
        """A Node that has never been adopted."""
        await remove_uplink(self.database, "br-int")
        for entry in self.disk.iterdir():
            entry.unlink()
        name = self.switch.namespace
        await run("ip", "-n", name, "-force", "-batch", "-", stdin=EMPTY, checked=False)
        await run("ip", "-n", name, "route", "del", "203.0.113.0/24", checked=False)
        await run("ip", "-n", name, "-batch", "-", stdin=NIC.format(wire=self.wire))
        await run("ip", "-n", self.wire, "-batch", "-", stdin=WIRE)
        for namespace, interface in ((name, "eth0"), (self.wire, "wire")):
            with entered(path_of(namespace)), Netlink() as netlink:
                set_offloads(netlink, interface, on=False)  # the userspace datapath sees packets as they were left

    async def _assert_answers(self, when: str, *, far: bool) -> None:
        """Also later, when neighbours must be resolved again."""
        await run("ip", "-n", self.switch.namespace, "neigh", "flush", "all")
        with entered(path_of(self.wire)):
            silent = [
                f"{address} to {source or 'a neighbour'}"
                for address, router_client in zip(NODE_IPS, FAR, strict=True)
                for source in ("", *([router_client] if far else []))
                if not _reaches(str(address), source)
            ]
        if silent:
            shown = await run("ip", "-n", self.switch.namespace, "address")
            raise AssertionError(f"{silent} silent {when}; uplink {uplink_of(self.database.view, 'br-int')}\n{shown}")


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    async with (
        running_switch(folder) as switch,
        _wire(switch) as wire,
        open_database(str(switch.database), patience=5.0) as database,
    ):
        await ensure_bridge(database, SPEC)
        await switch.ofctl("add-flow", str(switch.management("br-int")), "actions=NORMAL")
        await run("ip", "-n", switch.namespace, "-batch", "-", stdin=OTHER)
        with small_disk(folder / "disk") as disk:
            yield World(switch, wire, disk, database)


@asynccontextmanager
async def _wire(switch: Switch) -> AsyncIterator[str]:
    name = f"{switch.namespace}-wire"
    await run("ip", "netns", "add", name)
    try:
        yield name
    finally:
        await run("ip", "netns", "delete", name)


def _reaches(address: str, source: str) -> bool:
    """No process listens at the port, so a reachable machine refuses the connection. ARP may be needed again."""
    for _ in range(4):
        try:
            socket.create_connection((address, 9), timeout=1.5, source_address=(source, 0)).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            continue
    return False
