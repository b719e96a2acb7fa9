"""The Linux host: each method of the protocol runs a function of another module in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TypeAlias

from windlass.host.forwarded_clients import ForwardedClients
from windlass.host.linux import facts, items, leftovers, local_ports, pods, records, rtnetlink, service_tables, uplinks
from windlass.host.linux.former_settings import FormerSettings
from windlass.host.linux.kernel_threads import KernelThreads
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.nftables import Nftables
from windlass.host.linux.records import RecordFile
from windlass.host.linux.watches import InterfaceWatch, TableWatch
from windlass.host.plans import HostChange, HostNames, HostPlan
from windlass.host.preflight import Facts
from windlass.host.protocol import Adopted, AttachedLink, Host, HostError, HostPods, HostUplink, PodLink, Uplink
from windlass.model.families import IPAddress, IPNetwork
from windlass.model.nodes import HostConnection

_Watch: TypeAlias = InterfaceWatch | TableWatch


class LinuxUplink(HostUplink):
    def __init__(self, threads: KernelThreads, file: RecordFile, formers: FormerSettings) -> None:
        self._run = threads.run
        self._file = file
        self._formers = formers

    async def find(
        self, bridge: str, node_ips: Collection[IPAddress], name: str | None = None, port: str | None = None
    ) -> Uplink:
        return (await self._run(uplinks.find, self._file, bridge, node_ips, name, port)).uplink

    async def prepare(
        self,
        uplink: str,  # noqa: ARG002
        bridge: str,  # noqa: ARG002
        node_ips: Collection[IPAddress],  # noqa: ARG002
        pod_cidrs: Collection[IPNetwork],  # noqa: ARG002
    ) -> bool:
        """Does nothing: the switch makes the bridge interface."""
        return False

    async def adopt(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> Adopted:
        await self._run(uplinks.keep_later_addresses, self._formers, uplink)
        return await self._run(uplinks.adopt, self._file, uplink, bridge, node_ips)

    async def bypass(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> str:
        return await self._run(uplinks.bypass, self._file, self._formers, uplink, bridge, node_ips)

    async def end_bypass(self, uplink: str, bridge: str) -> None:
        await self._run(uplinks.end_bypass, uplink, bridge)

    async def needs_wire(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> bool:
        return await self._run(uplinks.needs_wire, uplink, bridge, node_ips)

    async def release(self, uplink: str, bridge: str, *, keep_record: bool = False) -> None:
        await self._run(uplinks.release, self._file, uplink, bridge, keep_record=keep_record)

    async def recorded(self, *, since_boot: bool = False) -> str | None:
        return await self._run(uplinks.recorded, self._file, since_boot=since_boot)

    async def lend(self, uplink: str, bridge: str) -> None:
        await self._run(uplinks.lend, self._file, uplink, bridge)

    async def detach(self, names: HostNames) -> None:
        await self._run(leftovers.detach, names)


class LinuxPods(HostPods):
    appear_later = False

    def __init__(self, threads: KernelThreads) -> None:
        self._run = threads.run
        self._deletions: set[asyncio.Task[None]] = set()  # deletions continue after their caller was cancelled

    async def attach(self, link: PodLink) -> None:
        await self._run(pods.attach, link)

    async def appeared(self, host_interface: str, mtu: int) -> None:
        """Returns at once: `attach` has made the interface."""

    async def detach(self, host_interface: str) -> None:
        """Returns when the kernel announces the deletion, after about 1 ms. The request itself takes some 20 ms more,
        until no CPU can refer to the interface and the kernel frees its memory.
        """
        watch = await self._run(InterfaceWatch, (host_interface,))
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()

        def look() -> None:
            watch.changed()
            if host_interface in watch.gone:
                gone.set()

        loop.add_reader(watch.fileno(), look)
        announced = loop.create_task(gone.wait())
        deletion = loop.create_task(self._run(pods.detach, host_interface))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)
        try:
            await asyncio.wait({announced, deletion}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            announced.cancel()
            loop.remove_reader(watch.fileno())
            watch.close()
        if deletion.done():
            deletion.result()

    async def check(self, link: PodLink) -> tuple[str, ...]:
        return await self._run(pods.check, link)

    async def links(self) -> tuple[AttachedLink, ...]:
        return await self._run(pods.attached)

    async def close(self) -> None:
        await asyncio.gather(*self._deletions, return_exceptions=True)


class LinuxHost(Host):
    def __init__(self, state_directory: Path) -> None:
        self._file = RecordFile(state_directory / "uplink.json")
        self._formers = FormerSettings(state_directory / "former-settings.json")
        self._threads = self._start_threads()
        self._run = self._threads.run
        self._nftables = Nftables()
        self.uplink: HostUplink = LinuxUplink(self._threads, self._file, self._formers)
        self.pods: LinuxPods = LinuxPods(self._threads)
        self.boot = records.boot()

    def forward_clients(self, clients: ForwardedClients) -> None:
        """The kernel translates their packets, and the switch sees them."""

    async def installed(self, names: HostNames) -> HostPlan:
        return await self._run(items.installed, self._nftables, names)

    async def apply(self, change: HostChange) -> tuple[str, ...]:
        return await self._run(items.apply, self._nftables, self._formers, change)

    async def reserve_ports(
        self, ports: Collection[tuple[int, int]], addresses: Collection[IPAddress]
    ) -> tuple[HostConnection, ...]:
        return await self._run(local_ports.reserve, self._formers, ports, addresses)

    async def facts(self, bridge: str, uplink: str | None = None) -> Facts:
        return await self._run(facts.gather, self._file, bridge, uplink)

    async def held_addresses(self) -> frozenset[IPAddress]:
        return await self._run(_held_addresses)

    async def clean(self, names: HostNames) -> tuple[str, ...]:
        return await self._run(leftovers.clean, self._nftables, self._formers, names)

    async def watch(self, names: HostNames) -> AsyncGenerator[frozenset[str], None]:
        loop = asyncio.get_running_loop()
        changed = set(names)
        wake = asyncio.Event()
        watches: list[_Watch] = []

        def look() -> None:
            for watch in watches:
                changed.update(watch.changed())
            if changed:
                wake.set()

        with ExitStack() as opened:

            async def open_watch(opening: Coroutine[None, None, _Watch]) -> None:
                watch = opened.enter_context(closing(await _opened(opening)))
                loop.add_reader(watch.fileno(), look)
                opened.callback(loop.remove_reader, watch.fileno())
                watches.append(watch)

            await open_watch(self._run(InterfaceWatch, names))
            with suppress(HostError):  # a kernel without nftables
                await open_watch(self._run(TableWatch, service_tables.NAME, names.gateway))
            while True:
                event = frozenset(changed)
                changed.clear()
                wake.clear()
                yield event
                await wake.wait()

    async def close(self) -> None:
        await self.pods.close()
        await self._threads.close()
        self._nftables.close()

    def _start_threads(self) -> KernelThreads:
        return KernelThreads()


async def _opened(opening: Coroutine[None, None, _Watch]) -> _Watch:
    """The watch; closed again if the caller is cancelled meanwhile."""
    task = asyncio.get_running_loop().create_task(opening)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_close)
        raise


def _close(opened: asyncio.Task[_Watch]) -> None:
    if opened.exception() is None:
        opened.result().close()


def _held_addresses(netlink: Netlink) -> frozenset[IPAddress]:
    return frozenset(rtnetlink.global_addresses(netlink))
