"""The Windows host: each method of the protocol runs a function of another module in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from windlass.host.plans import HostChange, HostNames, HostPlan, ServiceAccess, ServicePortItem
from windlass.host.preflight import Facts
from windlass.host.protocol import (
    OTHER_INTERFACES,
    Adopted,
    AttachedLink,
    Host,
    HostError,
    HostPods,
    HostUplink,
    PodLink,
    Uplink,
)
from windlass.host.windows import adapters, items, uplinks
from windlass.host.windows.ip_helper import LIBRARY, IpHelper
from windlass.model.families import IPAddress
from windlass.model.nodes import HostConnection

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 4
_NOT_BUILT = "Windlass cannot attach Pods on Windows yet"


class IpHelperThreads:
    """Calls of IP Helper may take milliseconds: they are made in threads."""

    def __init__(self, helper: IpHelper) -> None:
        self._helper = helper
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ip-helper")

    async def run(self, function: Callable[Concatenate[IpHelper, P], T], /, *arguments: P.args, **named: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: function(self._helper, *arguments, **named))
        except OSError as error:
            raise HostError(f"Windows refused a request: {error.strerror or error}") from error

    def close(self) -> None:
        self._threads.shutdown()


class WindowsUplink(HostUplink):
    def __init__(self, threads: IpHelperThreads, record_file: Path) -> None:
        self._run = threads.run
        self._record_file = record_file

    async def find(
        self, bridge: str, node_ips: Collection[IPAddress], name: str | None = None, port: str | None = None
    ) -> Uplink:
        return (await self._run(uplinks.find, self._record_file, bridge, node_ips, name, port)).uplink

    async def adopt(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> Adopted:
        return await self._run(uplinks.adopt, self._record_file, uplink, bridge, node_ips)

    async def bypass(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> str:  # noqa: ARG002
        return "Windows cannot connect two interfaces past the switch"

    async def end_bypass(self, uplink: str, bridge: str) -> None:
        """There is none."""

    async def needs_wire(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> bool:
        return await self._run(uplinks.needs_wire, uplink, bridge, node_ips)

    async def release(self, uplink: str, bridge: str, *, keep_record: bool = False) -> None:
        await self._run(uplinks.release, self._record_file, uplink, bridge, keep_record=keep_record)

    async def recorded(self, *, since_boot: bool = False) -> str | None:
        """Windows has no ID of a boot: nothing is known to be of this one."""
        return None if since_boot else await self._run(uplinks.recorded, self._record_file)

    async def lend(self, uplink: str, bridge: str) -> None:
        """Nothing: Windows refuses an address on two interfaces, and the bridge interface is not the switch's own."""

    async def detach(self, names: HostNames) -> None:
        """Nothing: the datapath is an extension of HNS' switch, which outlives the daemon."""


class WindowsPods(HostPods):
    async def attach(self, link: PodLink) -> None:
        raise HostError(f"{link.host_interface}: {_NOT_BUILT}")

    async def detach(self, host_interface: str) -> None:
        """There is none."""

    async def check(self, link: PodLink) -> tuple[str, ...]:
        return (f"{link.host_interface}: {_NOT_BUILT}",)

    async def links(self) -> tuple[AttachedLink, ...]:
        return ()


class WindowsHost(Host):
    def __init__(self, state_directory: Path, ip_helper: str = LIBRARY) -> None:
        """`ip_helper`: the library with its calls."""
        helper = IpHelper(ip_helper)
        self._helper = helper
        self._threads = IpHelperThreads(helper)
        self._run = self._threads.run
        self._uplink = WindowsUplink(self._threads, state_directory / "uplink.json")
        self._pods = WindowsPods()
        # Windows needs nothing for these. The switch serves NodePorts at the Node IP, and the routes lead to Services.
        self._without_effect: set[ServiceAccess | ServicePortItem] = set()

    @property
    def uplink(self) -> HostUplink:
        return self._uplink

    @property
    def pods(self) -> HostPods:
        return self._pods

    @property
    def boot(self) -> str:
        return ""

    async def installed(self, names: HostNames) -> HostPlan:
        return await self._run(items.installed, names) | HostPlan(items=frozenset(self._without_effect))

    async def apply(self, change: HostChange) -> tuple[str, ...]:
        problems = await self._run(items.apply, change)
        self._without_effect -= {item for item in change.removed if isinstance(item, ServiceAccess | ServicePortItem)}
        self._without_effect |= {item for item in change.added if isinstance(item, ServiceAccess | ServicePortItem)}
        return problems

    async def reserve_ports(
        self,
        ports: Collection[tuple[int, int]],  # noqa: ARG002
        addresses: Collection[IPAddress],  # noqa: ARG002
    ) -> tuple[HostConnection, ...]:
        raise HostError("Windlass cannot reserve ports on Windows yet")

    async def facts(self, bridge: str, uplink: str | None = None) -> Facts:
        return await self._run(_facts, bridge, uplink)

    async def held_addresses(self) -> frozenset[IPAddress]:
        return await self._run(_held_addresses)

    async def clean(self, names: HostNames) -> tuple[str, ...]:
        return await self._run(items.clean, names)

    async def watch(self, names: HostNames) -> AsyncGenerator[frozenset[str], None]:
        """A notification of Windows says only that something changed: after each, what matters is read and compared."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        before = await self._run(_look)
        with self._helper.watching(lambda: loop.call_soon_threadsafe(woken.set)):
            yield frozenset(names)
            while True:
                await woken.wait()
                woken.clear()
                now = await self._run(_look)
                changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
                before = now
                known = frozenset(names)
                event = (changed & known) | ({OTHER_INTERFACES} if changed - known else set())
                if event:
                    yield frozenset(event)

    async def close(self) -> None:
        self._threads.close()


def _look(helper: IpHelper) -> dict[str, tuple[object, ...]]:
    """What each interface has, by its name."""
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
