"""The uplink of the host protocol: the HNS network on the NIC, and the move of the NIC's addresses."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from windlass.host.plans import HostNames
from windlass.host.protocol import Adopted, HostError, HostUplink, Uplink
from windlass.host.windows import adapters, networks, uplinks
from windlass.host.windows.bounded_calls import run_bounded
from windlass.host.windows.hcn import ComputeNetwork, HcnDocument
from windlass.host.windows.hcn_errors import MissingCallError
from windlass.host.windows.hns import HostNetworkService
from windlass.host.windows.ip_helper import IpHelper
from windlass.host.windows.ip_helper_threads import IpHelperThreads
from windlass.host.windows.networks import interface_of
from windlass.model.families import IPAddress, IPNetwork

# Seconds.
_SECONDS_TO_READ = 30.0
_SECONDS_TO_CREATE = 60.0  # HNS stops and starts the NIC
_SECONDS_TO_APPEAR = 30.0
_SECONDS_FOR_ADDRESSES = 20.0  # HNS moves them, or DHCP gives them again

_log = structlog.get_logger(__name__)


class WindowsUplink(HostUplink):
    def __init__(
        self,
        threads: IpHelperThreads,
        hcn: ComputeNetwork,
        hns: HostNetworkService,
        netsh: str,
        powershell: str,
        record_file: Path,
    ) -> None:
        self._threads = threads
        self._run = threads.run
        self._hcn = hcn
        self._hns = hns
        self._netsh = netsh
        self._powershell = powershell
        self._record_file = record_file
        self._prepared = False  # the last call of `prepare` by this process has succeeded

    async def find(
        self, bridge: str, node_ips: Collection[IPAddress], name: str | None = None, port: str | None = None
    ) -> Uplink:
        """Asks HNS first: its network's interface may have the Node IPs, and is not the NIC."""
        if name is None:
            network = await self._network()
            name = networks.adapter_of(network) if network else None
        return (await self._run(uplinks.find, self._record_file, bridge, node_ips, name, port)).uplink

    async def prepare(
        self, uplink: str, bridge: str, node_ips: Collection[IPAddress], pod_cidrs: Collection[IPNetwork]
    ) -> bool:
        """True also at the first call and after a failed one: the extension may have been enabled before this call."""
        must_retry, self._prepared = not self._prepared, False
        network = await self._network()
        if network is None:
            await self._run(uplinks.record, self._record_file, uplink, bridge)
            what = f"creating HNS network {networks.NAME} on {uplink}"
            create = partial(networks.create, self._hcn, uplink, pod_cidrs)
            network = await run_bounded(what, _SECONDS_TO_CREATE, create)
        networks.require_subnets(network, pod_cidrs)
        if not await self._run(_exists, bridge):
            await self._make_bridge_interface(networks.adapter_of(network) or uplink, bridge)
        if not await self._threads.until(partial(_has_any, bridge, node_ips), _SECONDS_FOR_ADDRESSES):
            await self.adopt(uplink, bridge, node_ips)
        enable = partial(networks.enable_extension, self._hns, network)
        enabled = await run_bounded("enabling the extension of Open vSwitch", _SECONDS_TO_CREATE, enable)
        if enabled:
            await self._turn_on_segment_merging()
        self._prepared = True
        return enabled or must_retry

    async def _make_bridge_interface(self, uplink: str, bridge: str) -> None:
        made = interface_of(uplink)
        if not await self._threads.until(lambda helper: _exists(helper, made), _SECONDS_TO_APPEAR):
            raise HostError(f"HNS network {networks.NAME} has no interface {made} after {_SECONDS_TO_APPEAR:g} s")
        rename = partial(networks.rename_interface, self._netsh, made, bridge)
        await run_bounded(f"renaming {made}", _SECONDS_TO_APPEAR, rename)
        if not await self._threads.until(lambda helper: _exists(helper, bridge), _SECONDS_TO_APPEAR):
            raise HostError(f"{made} was renamed, but there is no interface {bridge}")

    async def _turn_on_segment_merging(self) -> None:
        """The Node works without it, only slower."""
        work = partial(networks.turn_on_segment_merging, self._powershell)
        try:
            await run_bounded("turning on software RSC", _SECONDS_TO_CREATE, work)
        except HostError as error:
            _log.warning("software RSC is off", reason=str(error))

    async def adopt(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> Adopted:
        return await self._run(uplinks.adopt, self._record_file, uplink, bridge, node_ips)

    async def bypass(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> str:  # noqa: ARG002
        return "Windows cannot connect two interfaces past the switch"

    async def end_bypass(self, uplink: str, bridge: str) -> None:
        """Windows has no bypass."""

    async def needs_wire(self, uplink: str, bridge: str, node_ips: Collection[IPAddress]) -> bool:
        return await self._run(uplinks.needs_wire, uplink, bridge, node_ips)

    async def release(self, uplink: str, bridge: str, *, keep_record: bool = False) -> None:
        """HNS returns the addresses to the NIC when its network is deleted; the record has those that it loses."""
        network = await self._network()
        if network is not None:
            delete = partial(networks.delete, self._hcn, network)
            await run_bounded(f"deleting HNS network {networks.NAME}", _SECONDS_TO_CREATE, delete)
            await self._threads.until(lambda helper: not _exists(helper, bridge), _SECONDS_TO_APPEAR)
            await self._threads.until(partial(uplinks.is_back, self._record_file, uplink), _SECONDS_FOR_ADDRESSES)
        await self._run(uplinks.release, self._record_file, uplink, bridge, keep_record=keep_record)

    async def recorded(self, *, since_boot: bool = False) -> str | None:
        """Windows has no boot ID, so it is not known whether the record is of this boot."""
        return None if since_boot else await self._run(uplinks.recorded, self._record_file)

    async def lend(self, uplink: str, bridge: str) -> None:
        """Does nothing: Windows refuses an address on two interfaces, and HNS owns the bridge interface."""

    async def detach(self, names: HostNames) -> None:
        """Does nothing: the datapath is an extension of the Hyper-V switch, which outlives the daemon."""

    async def _network(self) -> HcnDocument | None:
        """Also None without the library of HNS: `networks.create` reports that."""
        with suppress(MissingCallError):
            return await run_bounded("reading the networks of HNS", _SECONDS_TO_READ, partial(networks.find, self._hcn))
        return None


def _exists(helper: IpHelper, name: str) -> bool:
    return helper.link(name) is not None


def _has_any(bridge: str, node_ips: Collection[IPAddress], helper: IpHelper) -> bool:
    adapter = adapters.read(helper, bridge)
    return adapter is not None and adapter.has_any(node_ips)
