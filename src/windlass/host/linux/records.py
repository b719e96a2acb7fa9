"""The record of an adopted uplink, on disk."""

from __future__ import annotations

from dataclasses import asdict
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

import msgspec
from msgspec import structs

from windlass import files
from windlass.host.linux.adapter_state import Adapter, AdapterAddress, AdapterRoute, NextHop
from windlass.host.linux.migrations import UplinkRecord
from windlass.host.protocol import attempting
from windlass.model.families import IPAddress

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _StoredAddress(msgspec.Struct, omit_defaults=True, rename="camel"):
    interface: str
    valid_until: int | None = None
    preferred_until: int | None = None
    peer: str | None = None
    broadcast: str | None = None
    metric: int = 0
    scope: int = 0
    flags: int = 0


class _StoredHop(msgspec.Struct, omit_defaults=True):
    via: str | None = None
    interface: int = 0
    weight: int = 0
    onlink: bool = False


class _StoredRoute(msgspec.Struct, omit_defaults=True, rename="camel"):
    destination: str
    via: str | None = None
    source: str | None = None
    metric: int = 0
    onlink: bool = False
    table: int = 0
    protocol: int = 0
    options: bytes = b""
    hops: list[_StoredHop] = []
    tos: int = 0
    scope: int | None = None
    preference: int = 0
    expires_at: int | None = None


class _StoredRecord(msgspec.Struct, rename="camel"):
    uplink: str
    index: int
    mac: str
    mtu: int
    addresses: list[_StoredAddress | str]  # a string in files of earlier versions
    routes: list[_StoredRoute]
    bridge: str
    boot: str
    settled_on: int | None


def boot() -> str:
    """The ID of the current boot of the machine."""
    return _BOOT.read_text().strip()


class RecordFile:
    """The file of the record. A record that could not be written is kept in memory until a write succeeds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unwritten: UplinkRecord | None = None

    def __str__(self) -> str:
        return str(self.path)

    def load(self) -> UplinkRecord | None:
        return self.unwritten or load(self.path)

    def write(self, record: UplinkRecord) -> None:
        """The record is on the disk when this returns; HostError if it cannot be written."""
        with attempting(f"write the record {self}"):
            save(self.path, record)
        self.unwritten = None

    def remove(self) -> None:
        self.unwritten = None
        with attempting(f"remove the record {self}"):
            files.remove(self.path)


def load(path: Path) -> UplinkRecord | None:
    """None without a readable record; what the interfaces hold is all that is known then."""
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_StoredRecord)
        uplink = Adapter(
            stored.uplink,
            stored.index,
            stored.mac,
            stored.mtu,
            tuple(_read_address(address) for address in stored.addresses),
            tuple(_read_route(route) for route in stored.routes),
        )
    except (OSError, msgspec.DecodeError, ValueError):
        return None
    return UplinkRecord(uplink, stored.bridge, stored.boot, stored.settled_on)


def save(path: Path, record: UplinkRecord) -> None:
    uplink = record.uplink
    stored = _StoredRecord(
        uplink=uplink.name,
        index=uplink.index,
        mac=uplink.mac,
        mtu=uplink.mtu,
        addresses=[_stored_address(address) for address in uplink.addresses],
        routes=[_stored_route(route) for route in uplink.routes],
        bridge=record.bridge,
        boot=record.boot,
        settled_on=record.settled_on,
    )
    files.write(path, msgspec.json.format(msgspec.json.encode(stored)) + b"\n")


def _read_address(stored: _StoredAddress | str) -> AdapterAddress:
    if isinstance(stored, str):
        return AdapterAddress(ip_interface(stored))
    ips = {"peer": _read_ip(stored.peer), "broadcast": _read_ip(stored.broadcast)}
    return AdapterAddress(**structs.asdict(stored) | ips | {"interface": ip_interface(stored.interface)})


def _stored_address(address: AdapterAddress) -> _StoredAddress:
    ips = {"peer": _text(address.peer), "broadcast": _text(address.broadcast)}
    return _StoredAddress(**asdict(address) | ips | {"interface": str(address.interface)})


def _read_route(stored: _StoredRoute) -> AdapterRoute:
    ips = {"via": _read_ip(stored.via), "source": _read_ip(stored.source)}
    hops = tuple(NextHop(**structs.asdict(hop) | {"via": _read_ip(hop.via)}) for hop in stored.hops)
    return AdapterRoute(**structs.asdict(stored) | ips | {"destination": ip_network(stored.destination), "hops": hops})


def _stored_route(route: AdapterRoute) -> _StoredRoute:
    ips = {"via": _text(route.via), "source": _text(route.source)}
    hops = [_StoredHop(**asdict(hop) | {"via": _text(hop.via)}) for hop in route.hops]
    return _StoredRoute(**asdict(route) | ips | {"destination": str(route.destination), "hops": hops})


def _read_ip(text: str | None) -> IPAddress | None:
    return ip_address(text) if text else None


def _text(ip: IPAddress | None) -> str | None:
    return str(ip) if ip is not None else None
