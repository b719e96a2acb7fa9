"""Pod links of the host protocol: endpoints by HCN, interfaces by IP Helper."""

from __future__ import annotations

import asyncio
from functools import partial

from windlass.host.protocol import AttachedLink, HostPods, PodLink
from windlass.host.windows import pods
from windlass.host.windows.bounded_calls import bounded, run_bounded, start
from windlass.host.windows.hcn import ComputeNetwork
from windlass.host.windows.hns import HostNetworkService
from windlass.host.windows.ip_helper import NOT_FOUND, IpHelper
from windlass.host.windows.ip_helper_threads import IpHelperThreads
from windlass.host.windows.networks import interface_of
from windlass.model.families import Family

# Seconds, less than the timeouts of CNI requests.
_SECONDS_TO_READ = 10.0
_SECONDS_TO_ATTACH = 15.0
_SECONDS_TO_DELETE = 8.0  # HNS sometimes hangs


class WindowsPods(HostPods):
    appear_later = True

    def __init__(self, threads: IpHelperThreads, hcn: ComputeNetwork, hns: HostNetworkService) -> None:
        self._threads = threads
        self._hcn = hcn
        self._hns = hns
        self._deletions: dict[str, asyncio.Future[None]] = {}  # that HNS has not finished

    async def attach(self, link: PodLink) -> None:
        what = f"creating and attaching endpoint {link.host_interface}"
        await run_bounded(what, _SECONDS_TO_ATTACH, partial(pods.attach, self._hcn, self._hns, link))

    async def appeared(self, host_interface: str, mtu: int) -> None:
        await self._threads.until(lambda helper: _set_mtu(helper, interface_of(host_interface), mtu))

    async def detach(self, host_interface: str) -> None:
        """A repeated request waits for the unfinished deletion instead of starting another one."""
        what = f"deleting endpoint {host_interface}"
        deletion = self._deletions.get(host_interface)
        if deletion is None:
            deletion = start(what, partial(pods.detach, self._hcn, host_interface))
            self._deletions[host_interface] = deletion
            deletion.add_done_callback(lambda _: self._deletions.pop(host_interface))
        await bounded(what, _SECONDS_TO_DELETE, deletion)

    async def check(self, link: PodLink) -> tuple[str, ...]:
        mtu = await self._threads.run(_mtu, interface_of(link.host_interface))
        what = f"reading endpoint {link.host_interface}"
        return await run_bounded(what, _SECONDS_TO_READ, lambda: pods.check(self._hcn, link, mtu))

    async def links(self) -> tuple[AttachedLink, ...]:
        return await run_bounded("reading the endpoints of HNS", _SECONDS_TO_READ, partial(pods.attached, self._hcn))


def _set_mtu(helper: IpHelper, name: str, mtu: int) -> bool:
    """False if the interface does not exist yet, or lacks IPv4."""
    found = helper.link_in_any_compartment(name)
    if found is None:
        return False
    index, compartment = found
    try:
        with helper.in_compartment(compartment):
            helper.change_settings(index, Family.IPV4, mtu=mtu)
    except OSError as error:
        if error.winerror != NOT_FOUND:
            raise
        return False
    return True


def _mtu(helper: IpHelper, name: str) -> int | None:
    found = helper.link_in_any_compartment(name)
    if found is None:
        return None
    index, compartment = found
    with helper.in_compartment(compartment):
        return int(helper.settings(index, Family.IPV4).mtu)
