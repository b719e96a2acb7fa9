"""The record of an adopted uplink on disk: it survives a crash at any moment."""

from __future__ import annotations

import os
from contextlib import suppress
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

import msgspec

from windlass.host.migrations import Record
from windlass.host.protocol import Adapter, UplinkRoute


class _Route(msgspec.Struct, omit_defaults=True):
    destination: str
    via: str | None = None
    source: str | None = None
    metric: int = 0
    onlink: bool = False
    table: int = 0
    protocol: int = 0
    options: bytes = b""


class _Record(msgspec.Struct, rename="camel"):
    uplink: str
    index: int
    mac: str
    mtu: int
    addresses: list[str]
    routes: list[_Route]
    bridge: str
    boot: str
    settled_on: int | None


def load(path: Path) -> Record | None:
    """None if there is none, or none that can be read: then what the interfaces hold has to do."""
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_Record)
        uplink = Adapter(
            stored.uplink,
            stored.index,
            stored.mac,
            stored.mtu,
            tuple(ip_interface(address) for address in stored.addresses),
            tuple(_read(route) for route in stored.routes),
        )
    except (OSError, msgspec.DecodeError, ValueError):
        return None
    return Record(uplink, stored.bridge, stored.boot, stored.settled_on)


def save(path: Path, record: Record) -> None:
    """It is on the disk, whole, when this returns."""
    uplink = record.uplink
    stored = _Record(
        uplink=uplink.name,
        index=uplink.index,
        mac=uplink.mac,
        mtu=uplink.mtu,
        addresses=[str(address) for address in uplink.addresses],
        routes=[_written(route) for route in uplink.routes],
        bridge=record.bridge,
        boot=record.boot,
        settled_on=record.settled_on,
    )
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    try:
        with beside.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(stored)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)  # half a file on a full disk helps no one
        raise
    _sync_directory(path.parent)


def forget(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(route: _Route) -> UplinkRoute:
    return UplinkRoute(
        ip_network(route.destination),
        ip_address(route.via) if route.via else None,
        ip_address(route.source) if route.source else None,
        route.metric,
        route.onlink,
        route.table,
        route.protocol,
        route.options,
    )


def _written(route: UplinkRoute) -> _Route:
    return _Route(
        str(route.destination),
        str(route.via) if route.via else None,
        str(route.source) if route.source else None,
        route.metric,
        route.onlink,
        route.table,
        route.protocol,
        route.options,
    )
