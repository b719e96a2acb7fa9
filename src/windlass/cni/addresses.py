"""Address management for Pods, by the `host-local` plugin of the CNI project.

host-local keeps one file for each allocated address: the address is its name, the holder its content. This module reads
the files; only host-local writes them, under its lock.
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

_NETWORK = "pods"  # the name of the network: host-local's directory in the data directory
_SECONDS = 10  # host-local takes 5 ms; a process that hangs must not block a request


class HostLocal:
    """Works with version 1.1.1 (Debian 12) and later. Garbage collection is done here: 1.1.1 does not have it."""

    def __init__(self, executable: Path, data_directory: Path) -> None:
        self._executable = executable
        self._data_directory = data_directory

    async def allocate(
        self, attachment: Attachment, pod_cidrs: Mapping[Family, IPNetwork], requested: Sequence[IPAddress]
    ) -> tuple[IPInterface, ...]:
        """One address of each range, in this order. An attachment that holds addresses keeps them."""
        _refuse_impossible(pod_cidrs, requested)
        # host-local detects that the attachment holds an address, but not if a certain address is requested.
        if requested and (kept := await self._held_by(attachment, pod_cidrs, requested)):
            return kept
        try:
            return await self._allocate(attachment, pod_cidrs, requested)
        except _DuplicateError:
            # An agent was killed between allocation and port: the Pod keeps its addresses.
            kept = await self._held_by(attachment, pod_cidrs, requested)
            return kept or await self._allocate(attachment, pod_cidrs, requested)

    async def release(self, attachment: Attachment) -> None:
        # host-local releases by holder, but requires a range in its configuration. Any range will do; the ranges of the
        # Node may have changed, or may be unknown yet.
        try:
            await self._run("DEL", attachment, [[{"subnet": "192.0.2.0/24"}]], ())
        except _HostLocalError as error:
            raise RequestError(
                Code.ADDRESSES_FAILED,
                f"host-local could not release the addresses of container {attachment.container_id}",
                str(error),
            ) from error

    async def check(self, attachment: Attachment, addresses: Sequence[IPAddress]) -> list[str]:
        """A sentence for each of these addresses that is not reserved for the attachment."""
        files = [self._folder / _file_name(address) for address in addresses]
        held = await asyncio.to_thread(_read_holders, files)
        return [
            f"{address} is not reserved for the Pod but {_describe_holder(held.get(address))}"
            for address in addresses
            if held.get(address) != attachment
        ]

    async def holders(self) -> frozenset[Attachment]:
        """All attachments that hold an address, for garbage collection."""
        return frozenset((await self._held()).values())

    def unavailable(self) -> str:
        """Why no address can be allocated at all; empty if addresses can be allocated."""
        if os.access(self._executable, os.X_OK):
            return ""
        return (
            f"the address plugin {self._executable} is missing or not executable; "
            "install the package containernetworking-plugins"
        )

    @property
    def _folder(self) -> Path:
        return self._data_directory / _NETWORK

    async def _held(self) -> dict[IPAddress, Attachment]:
        # Hundreds of small files: in a thread.
        return await asyncio.to_thread(_read_folder, self._folder)

    async def _held_by(
        self, attachment: Attachment, pod_cidrs: Mapping[Family, IPNetwork], requested: Sequence[IPAddress]
    ) -> tuple[IPInterface, ...]:
        """The addresses that the attachment holds, if they are complete; otherwise they are released."""
        held = [address for address, holder in (await self._held()).items() if holder == attachment]
        complete = _complete(held, pod_cidrs, requested)
        if held and not complete:
            await self.release(attachment)
        return complete

    async def _allocate(
        self, attachment: Attachment, pod_cidrs: Mapping[Family, IPNetwork], requested: Sequence[IPAddress]
    ) -> tuple[IPInterface, ...]:
        ranges = [[{"subnet": str(c), "gateway": str(c.network_address + 1)}] for c in pod_cidrs.values()]
        try:
            result = await self._run("ADD", attachment, ranges, requested)
        except _HostLocalError as error:
            if "duplicate allocation is not allowed" in str(error):
                raise _DuplicateError(str(error)) from error
            raise await self._explained(error, pod_cidrs, requested) from error
        return tuple(ip_interface(ip.address) for ip in msgspec.json.decode(result, type=_IpamResult).ips)

    async def _explained(
        self, error: _HostLocalError, pod_cidrs: Mapping[Family, IPNetwork], requested: Sequence[IPAddress]
    ) -> RequestError:
        held = await self._held()
        for cidr in pod_cidrs.values():
            count = sum(address in cidr for address in held)
            if f"no IP addresses available in range set: {cidr.network_address + 1}-" in str(error):
                return RequestError(
                    Code.NO_FREE_ADDRESS,
                    f"no address is free in {cidr}, the podCIDR of this Node: {count} are in use",
                    "Lower maxPods of the Node, give it a larger podCIDR, or let the runtime run CNI GC.",
                )
        for address in requested:
            if f"requested IP address {address} is not available" in str(error):
                return RequestError(
                    Code.ADDRESS_REFUSED,
                    f"the requested address {address} is {_describe_holder(held.get(address))}",
                    "Request a different one, or remove that container.",
                )
        return RequestError(Code.ADDRESSES_FAILED, "host-local could not allocate an address", str(error))

    async def _run(
        self,
        command: Literal["ADD", "DEL"],
        attachment: Attachment,
        ranges: Sequence[Sequence[Mapping[str, str]]],
        requested: Sequence[IPAddress],
    ) -> bytes:
        config = {
            "cniVersion": "1.0.0",  # the newest that 1.1.1 supports
            "name": _NETWORK,
            "ipam": {"type": "host-local", "dataDir": str(self._data_directory), "ranges": ranges},
            "args": {"cni": {"ips": [str(address) for address in requested]}},
        }
        environment = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": attachment.container_id,
            "CNI_IFNAME": attachment.ifname,
            "CNI_PATH": str(self._executable.parent),
            # host-local does not enter the namespace; later versions would compare it with their own.
            "CNI_NETNS": "none",
            "CNI_NETNS_OVERRIDE": "1",
            **{name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ},  # Windows' programs need it
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
            raise _HostLocalError(self.unavailable() or f"{self._executable} cannot be started: {error}") from error
        try:
            async with asyncio.timeout(_SECONDS):
                output, errors = await process.communicate(msgspec.json.encode(config))
        except TimeoutError as error:
            raise _HostLocalError(f"{self._executable} did not finish within {_SECONDS} s") from error
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0:
            raise _HostLocalError(_message(output, errors) or f"exit status {process.returncode}")
        return output


class _HostLocalError(Exception):
    """The message of host-local."""


class _DuplicateError(Exception):
    """The attachment already holds an address of one of the ranges."""


class _IpamAddress(msgspec.Struct):
    address: str


class _IpamResult(msgspec.Struct):
    ips: tuple[_IpamAddress, ...]


class _IpamError(msgspec.Struct):
    msg: str
    details: str = ""


def _message(output: bytes, errors: bytes) -> str:
    try:
        error = msgspec.json.decode(output, type=_IpamError)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return (output + errors).decode(errors="replace").strip()[:1000]
    return f"{error.msg}; {error.details}" if error.details else error.msg


def _refuse_impossible(pod_cidrs: Mapping[Family, IPNetwork], requested: Sequence[IPAddress]) -> None:
    for address in requested:
        cidr = pod_cidrs.get(family_of(address))
        if cidr is None or address not in cidr:
            cidrs = " and ".join(str(cidr) for cidr in pod_cidrs.values())
            raise RequestError(
                Code.ADDRESS_REFUSED,
                f"the requested address {address} is not in the podCIDR of this Node, {cidrs}",
                "Request an address of this Node, or none.",
            )
        if address == cidr.network_address + 1:
            raise RequestError(
                Code.ADDRESS_REFUSED,
                f"the requested address {address} is the gateway of {cidr}",
                "Request a different address of this Node, or none.",
            )


def _complete(
    held: Sequence[IPAddress], pod_cidrs: Mapping[Family, IPNetwork], requested: Sequence[IPAddress]
) -> tuple[IPInterface, ...]:
    """The held addresses, if there is one for each range and all requested ones are among them; otherwise none."""
    ranges = pod_cidrs.values()
    found = [ip_interface(f"{address}/{cidr.prefixlen}") for cidr in ranges for address in held if address in cidr]
    has_requested = set(requested) <= set(held)
    return tuple(found) if has_requested and len(found) == len(held) == len(pod_cidrs) else ()


def _read_folder(folder: Path) -> dict[IPAddress, Attachment]:
    try:
        return _read_holders(sorted(folder.iterdir()))
    except FileNotFoundError:
        return {}  # no address was allocated yet


def _read_holders(files: Iterable[Path]) -> dict[IPAddress, Attachment]:
    found: dict[IPAddress, Attachment] = {}
    for file in files:
        try:
            address = ip_address(file.name.replace("_", ":"))
            container_id, ifname = file.read_text().split()
        except (ValueError, FileNotFoundError):
            continue  # the lock file, the file of the last address, or an address that was just released
        found[address] = Attachment(container_id, ifname)
    return found


def _file_name(address: IPAddress) -> str:
    return str(address).replace(":", "_") if os.name == "nt" else str(address)  # as host-local names it


def _describe_holder(holder: Attachment | None) -> str:
    return "free" if holder is None else f"held by container {holder.container_id} ({holder.ifname})"
