"""Addresses for Pods, by the `host-local` plugin of the CNI project. Where an address is configured is not its matter.

host-local keeps one file for each address that is held, named by the address and naming the holder. We read these
files (who holds what), but only host-local, under its lock, writes them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Literal

import msgspec

from windlass.cni.attachments import Attachment
from windlass.cni.errors import Code, RequestError
from windlass.model.families import Family, IPAddress, IPInterface, IPNetwork, family_of

_NETWORK = "pods"  # host-local's name for a set of ranges: a folder in the data directory
_SECONDS = 10  # it takes 5 ms; a stuck one must not hold a Pod's request for ever


class HostLocal:
    """Debian's 1.1.1 and later ones alike: garbage collection is ours, since that one does not know it."""

    def __init__(self, executable: Path, data_directory: Path) -> None:
        self._executable = executable
        self._data_directory = data_directory

    async def allocate(
        self, attachment: Attachment, pod_cidrs: Mapping[Family, IPNetwork], wished: Sequence[IPAddress]
    ) -> tuple[IPInterface, ...]:
        _refuse_impossible(pod_cidrs, wished)
        # host-local itself notices that the attachment holds an address, but not if it is asked for a certain one.
        if wished and (kept := await self._kept(attachment, pod_cidrs, wished)):
            return kept
        try:
            return await self._given(attachment, pod_cidrs, wished)
        except _DuplicateError:
            # An agent was killed between this and the port: the Pod goes on with what it has.
            kept = await self._kept(attachment, pod_cidrs, wished)
            return kept or await self._given(attachment, pod_cidrs, wished)

    async def release(self, attachment: Attachment) -> None:
        # It releases by holder, whatever the ranges, but wants to see one: any will do, and the Node's own may have
        # changed or not be known yet.
        try:
            await self._run("DEL", attachment, [[{"subnet": "192.0.2.0/24"}]], ())
        except _HostLocalError as error:
            raise RequestError(
                Code.ADDRESSES_FAILED,
                f"host-local could not release the addresses of container {attachment.container_id}",
                str(error),
            ) from error

    async def check(self, attachment: Attachment, addresses: Sequence[IPAddress]) -> list[str]:
        files = [self._folder / _file_name(address) for address in addresses]
        held = await asyncio.to_thread(_read_holders, files)
        return [
            f"{address} is not reserved for the Pod but {_holder_in_words(held.get(address))}"
            for address in addresses
            if held.get(address) != attachment
        ]

    async def holders(self) -> frozenset[Attachment]:
        return frozenset((await self._held()).values())

    def unavailable(self) -> str:
        if os.access(self._executable, os.X_OK):
            return ""
        return (
            f"the address plugin {self._executable} is not there or not executable; install the package "
            f"containernetworking-plugins"
        )

    @property
    def _folder(self) -> Path:
        return self._data_directory / _NETWORK

    async def _held(self) -> dict[IPAddress, Attachment]:
        # Hundreds of small files: the event loop has better to do than to wait for a disk.
        return await asyncio.to_thread(_read_folder, self._folder)

    async def _kept(
        self, attachment: Attachment, pod_cidrs: Mapping[Family, IPNetwork], wished: Sequence[IPAddress]
    ) -> tuple[IPInterface, ...]:
        """What it holds already, if that is all that it should hold; else it holds nothing any more."""
        held = [address for address, holder in (await self._held()).items() if holder == attachment]
        complete = _complete(held, pod_cidrs, wished)
        if held and not complete:
            await self.release(attachment)
        return complete

    async def _given(
        self, attachment: Attachment, pod_cidrs: Mapping[Family, IPNetwork], wished: Sequence[IPAddress]
    ) -> tuple[IPInterface, ...]:
        ranges = [[{"subnet": str(c), "gateway": str(c.network_address + 1)}] for c in pod_cidrs.values()]
        try:
            result = await self._run("ADD", attachment, ranges, wished)
        except _HostLocalError as error:
            if "duplicate allocation is not allowed" in str(error):
                raise _DuplicateError(str(error)) from error
            raise await self._explained(error, pod_cidrs, wished) from error
        return tuple(ip_interface(ip.address) for ip in msgspec.json.decode(result, type=_IpamResult).ips)

    async def _explained(
        self, error: _HostLocalError, pod_cidrs: Mapping[Family, IPNetwork], wished: Sequence[IPAddress]
    ) -> RequestError:
        held = await self._held()
        for cidr in pod_cidrs.values():
            count = sum(address in cidr for address in held)
            if f"no IP addresses available in range set: {cidr.network_address + 1}-" in str(error):
                return RequestError(
                    Code.NO_FREE_ADDRESS,
                    f"no address is free in {cidr}, the podCIDR of this Node: {count} are held",
                    "Lower the Node's maxPods, give it a larger podCIDR, or have the runtime collect garbage (CNI GC).",
                )
        for address in wished:
            if f"requested IP address {address} is not available" in str(error):
                return RequestError(
                    Code.ADDRESS_REFUSED,
                    f"the wished address {address} is {_holder_in_words(held.get(address))}",
                    "Wish for another one, or remove that container.",
                )
        return RequestError(Code.ADDRESSES_FAILED, "host-local could not allocate an address", str(error))

    async def _run(
        self,
        command: Literal["ADD", "DEL"],
        attachment: Attachment,
        ranges: Sequence[Sequence[Mapping[str, str]]],
        wished: Sequence[IPAddress],
    ) -> bytes:
        config = {
            "cniVersion": "1.0.0",  # the newest that Debian's knows
            "name": _NETWORK,
            "ipam": {"type": "host-local", "dataDir": str(self._data_directory), "ranges": ranges},
            "args": {"cni": {"ips": [str(address) for address in wished]}},
        }
        environment = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": attachment.container_id,
            "CNI_IFNAME": attachment.ifname,
            "CNI_PATH": str(self._executable.parent),
            # It never enters the namespace; later versions would compare it with their own.
            "CNI_NETNS": "none",
            "CNI_NETNS_OVERRIDE": "1",
        }
        try:
            process = await asyncio.create_subprocess_exec(
                self._executable,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            raise _HostLocalError(self.unavailable() or f"{self._executable} does not start: {error}") from error
        try:
            async with asyncio.timeout(_SECONDS):
                output, complaints = await process.communicate(msgspec.json.encode(config))
        except TimeoutError as error:
            raise _HostLocalError(f"{self._executable} did not end within {_SECONDS} s") from error
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0:
            raise _HostLocalError(_message(output, complaints) or f"it ended with status {process.returncode}")
        return output


class _HostLocalError(Exception):
    """host-local's own words."""


class _DuplicateError(Exception):
    """The attachment holds an address of one of the ranges."""


class _IpamAddress(msgspec.Struct):
    address: str


class _IpamResult(msgspec.Struct):
    ips: tuple[_IpamAddress, ...]


class _IpamError(msgspec.Struct):
    msg: str
    details: str = ""


def _message(output: bytes, complaints: bytes) -> str:
    try:
        error = msgspec.json.decode(output, type=_IpamError)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return (output + complaints).decode(errors="replace").strip()[:1000]
    return f"{error.msg}; {error.details}" if error.details else error.msg


def _refuse_impossible(pod_cidrs: Mapping[Family, IPNetwork], wished: Sequence[IPAddress]) -> None:
    for address in wished:
        cidr = pod_cidrs.get(family_of(address))
        if cidr is None or address not in cidr:
            cidrs = " and ".join(str(cidr) for cidr in pod_cidrs.values())
            raise RequestError(
                Code.ADDRESS_REFUSED,
                f"the wished address {address} is not in the podCIDR of this Node, {cidrs}",
                "Wish for an address of this Node, or for none.",
            )
        if address == cidr.network_address + 1:
            raise RequestError(
                Code.ADDRESS_REFUSED,
                f"the wished address {address} is the gateway of {cidr}",
                "Wish for another address of this Node, or for none.",
            )


def _complete(
    held: Sequence[IPAddress], pod_cidrs: Mapping[Family, IPNetwork], wished: Sequence[IPAddress]
) -> tuple[IPInterface, ...]:
    """The held addresses, if they are one for each range and what is wished is among them; else none."""
    found = [
        ip_interface(f"{address}/{cidr.prefixlen}")
        for cidr in pod_cidrs.values()
        for address in held
        if address in cidr
    ]
    as_wished = set(wished) <= set(held)
    return tuple(found) if as_wished and len(found) == len(held) == len(pod_cidrs) else ()


def _read_folder(folder: Path) -> dict[IPAddress, Attachment]:
    try:
        return _read_holders(sorted(folder.iterdir()))
    except FileNotFoundError:
        return {}  # nobody has asked for an address yet


def _read_holders(files: Iterable[Path]) -> dict[IPAddress, Attachment]:
    found: dict[IPAddress, Attachment] = {}
    for file in files:
        try:
            address = ip_address(file.name.replace("_", ":"))
            container_id, ifname = file.read_text().split()
        except (ValueError, FileNotFoundError):
            continue  # its lock and its memory of the last address; or released in this moment
        found[address] = Attachment(container_id, ifname)
    return found


def _file_name(address: IPAddress) -> str:
    return str(address).replace(":", "_") if os.name == "nt" else str(address)  # as host-local does


def _holder_in_words(holder: Attachment | None) -> str:
    return "free" if holder is None else f"held by container {holder.container_id} ({holder.ifname})"
