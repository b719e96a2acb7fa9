"""The Linux host: the protocol's methods, each carried out in a thread of the namespace in which it was opened.

Requests to the kernel are synchronous and mostly take microseconds; but behind a long queue for its configuration lock
(a namespace with many interfaces going away, say) they take longer, and the event loop has other work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from windlass.host.linux import facts, items, leftovers, pods, rtnetlink, service_tables, uplinks
from windlass.host.linux.formers import Formers
from windlass.host.linux.namespaces import join
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.nftables import Nftables
from windlass.host.linux.watches import TableWatch, Watch
from windlass.host.plans import HostChange, HostNames, HostPlan
from windlass.host.preflight import Facts
from windlass.host.protocol import Adapter, Adopted, AttachedLink, Host, HostError, PodLink
from windlass.model.families import IPAddress

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W", Watch, TableWatch)
_THREADS = 16  # the kernel does one thing at a time, but takes its time to wipe up after a deletion


class LinuxHost(Host):
    def __init__(self, state_directory: Path) -> None:
        self._record_file = state_directory / "uplink.json"
        self._formers = Formers(state_directory / "former-settings.json")
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._threads = ThreadPoolExecutor(_THREADS, "host", initializer=join, initargs=(self._namespace,))
        self._nftables = Nftables()
        self._finishing: set[asyncio.Task[None]] = set()  # deletions, even when nobody waits any more

    @property
    def boot(self) -> str:
        return uplinks.boot()

    async def installed(self, names: HostNames) -> HostPlan:
        return await self._run(items.installed, self._nftables, names)

    async def apply(self, change: HostChange) -> tuple[str, ...]:
        return await self._run(items.apply, self._nftables, self._formers, change)

    async def facts(self, bridge: str, uplink: str | None = None) -> Facts:
        return await self._run(facts.gather, self._record_file, bridge, uplink)

    async def held_addresses(self) -> frozenset[IPAddress]:
        return await self._run(_held_addresses)

    async def find_uplink(
        self, bridge: str, addresses: Collection[IPAddress], name: str | None = None, port: str | None = None
    ) -> Adapter:
        return await self._run(uplinks.find, self._record_file, bridge, addresses, name, port)

    async def adopt_uplink(self, uplink: str, bridge: str, addresses: Collection[IPAddress]) -> Adopted:
        return await self._run(uplinks.adopt, self._record_file, uplink, bridge, addresses)

    async def needs_wire(self, uplink: str, bridge: str, addresses: Collection[IPAddress]) -> bool:
        return await self._run(uplinks.needs_wire, uplink, bridge, addresses)

    async def release_uplink(self, uplink: str, bridge: str, *, keep_record: bool = False) -> None:
        await self._run(uplinks.release, self._record_file, uplink, bridge, keep_record=keep_record)

    async def recorded_uplink(self) -> str | None:
        return await self._run(uplinks.recorded, self._record_file)

    async def lend_uplink(self, uplink: str, bridge: str) -> None:
        await self._run(uplinks.lend, self._record_file, uplink, bridge)

    async def detach_uplink(self, names: HostNames) -> None:
        await self._run(leftovers.detach, names)

    async def clean(self, names: HostNames) -> tuple[str, ...]:
        return await self._run(leftovers.clean, self._nftables, self._formers, names)

    async def attach_pod(self, link: PodLink) -> None:
        await self._run(pods.attach, link)

    async def detach_pod(self, host_interface: str) -> None:
        """Returns once the kernel has announced that the link is gone, which takes it a millisecond; for some 20 more
        it keeps whoever deleted it, to free the memory when no CPU looks at it any more.
        """
        watch = await self._run(Watch, (host_interface,))
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()

        def look() -> None:
            watch.changed()
            if host_interface in watch.gone:
                gone.set()

        loop.add_reader(watch.fileno(), look)
        announced = loop.create_task(gone.wait())
        deletion = loop.create_task(self._run(pods.detach, host_interface))
        self._finishing.add(deletion)
        deletion.add_done_callback(self._finishing.discard)
        try:
            await asyncio.wait({announced, deletion}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            announced.cancel()
            loop.remove_reader(watch.fileno())
            watch.close()
        if deletion.done():
            deletion.result()

    async def check_pod(self, link: PodLink) -> tuple[str, ...]:
        return await self._run(pods.check, link)

    async def pod_links(self) -> tuple[AttachedLink, ...]:
        return await self._run(pods.attached)

    async def watch(self, names: HostNames) -> AsyncGenerator[frozenset[str], None]:
        watches: list[Watch | TableWatch] = [await self._opened(self._run(Watch, names))]
        with suppress(HostError):  # of a kernel without nftables, which has no table either
            watches.append(await self._opened(self._run(TableWatch, service_tables.NAME, names.gateway)))
        loop = asyncio.get_running_loop()
        changed = set(names)
        wake = asyncio.Event()

        def look() -> None:
            for watch in watches:
                changed.update(watch.changed())
            if changed:
                wake.set()

        for watch in watches:
            loop.add_reader(watch.fileno(), look)
        try:
            while True:
                told = frozenset(changed)
                changed.clear()
                wake.clear()
                yield told
                await wake.wait()
        finally:
            for watch in watches:
                loop.remove_reader(watch.fileno())
                watch.close()

    async def _opened(self, opening: Coroutine[None, None, W]) -> W:
        """The watch; it is closed again if nobody waits for it any more."""
        task = asyncio.get_running_loop().create_task(opening)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_close)
            raise

    async def close(self) -> None:
        await asyncio.gather(*self._finishing, return_exceptions=True)
        await asyncio.to_thread(self._threads.shutdown)
        self._nftables.close()
        os.close(self._namespace)

    def _connect(self) -> Netlink:
        return Netlink()

    async def _run(self, do: Callable[Concatenate[Netlink, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        def connected() -> R:
            with self._connect() as netlink:
                return do(netlink, *args, **kwargs)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, connected)
        except OSError as error:
            raise HostError(f"the kernel refused: {error}") from error


def _close(opened: asyncio.Task[W]) -> None:
    if opened.exception() is None:
        opened.result().close()


def _held_addresses(netlink: Netlink) -> frozenset[IPAddress]:
    return frozenset(rtnetlink.global_addresses(netlink))
