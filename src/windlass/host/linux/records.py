"""The record of an adopted uplink on disk: it survives a crash at any moment."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

import msgspec

from windlass import files
from windlass.host.migrations import Record
from windlass.host.protocol import Adapter, NextHop, UplinkAddress, UplinkRoute
from windlass.model.families import IPAddress

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Address(msgspec.Struct, omit_defaults=True, rename="camel"):
    interface: str
    valid_until: int | None = None
    preferred_until: int | None = None
    peer: str | None = None
    broadcast: str | None = None
    metric: int = 0
    scope: int = 0
    flags: int = 0


class _Hop(msgspec.Struct, omit_defaults=True):
    via: str | None = None
    interface: int = 0
    weight: int = 0
    onlink: bool = False


class _Route(msgspec.Struct, omit_defaults=True, rename="camel"):
    destination: str
    via: str | None = None
    source: str | None = None
    metric: int = 0
    onlink: bool = False
    table: int = 0
    protocol: int = 0
    options: bytes = b""
    hops: list[_Hop] = []
    tos: int = 0
    scope: int | None = None
    preference: int = 0
    expires_at: int | None = None


class _Record(msgspec.Struct, rename="camel"):
    uplink: str
    index: int
    mac: str
    mtu: int
    addresses: list[_Address | str]  # a string: as former versions wrote it
    routes: list[_Route]
    bridge: str
    boot: str
    settled_on: int | None


def boot() -> str:
    """Which run of the machine this is."""
    return _BOOT.read_text().strip()


def load(path: Path) -> Record | None:
    """None if there is none, or none that can be read: then what the interfaces hold has to do."""
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_Record)
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
    return Record(uplink, stored.bridge, stored.boot, stored.settled_on)


def save(path: Path, record: Record) -> None:
    """The record is on the disk when this returns."""
    uplink = record.uplink
    stored = _Record(
        uplink=uplink.name,
        index=uplink.index,
        mac=uplink.mac,
        mtu=uplink.mtu,
        addresses=[_written_address(address) for address in uplink.addresses],
        routes=[_written_route(route) for route in uplink.routes],
        bridge=record.bridge,
        boot=record.boot,
        settled_on=record.settled_on,
    )
    files.write(path, msgspec.json.format(msgspec.json.encode(stored)) + b"\n")


def _read_address(address: _Address | str) -> UplinkAddress:
    if isinstance(address, str):
        return UplinkAddress(ip_interface(address))
    return UplinkAddress(
        ip_interface(address.interface),
        address.valid_until,
        address.preferred_until,
        _read_ip(address.peer),
        _read_ip(address.broadcast),
        address.metric,
        address.scope,
        address.flags,
    )


def _written_address(address: UplinkAddress) -> _Address:
    return _Address(
        str(address.interface),
        address.valid_until,
        address.preferred_until,
        _written_ip(address.peer),
        _written_ip(address.broadcast),
        address.metric,
        address.scope,
        address.flags,
    )


def _read_route(route: _Route) -> UplinkRoute:
    return UplinkRoute(
        ip_network(route.destination),
        _read_ip(route.via),
        _read_ip(route.source),
        route.metric,
        route.onlink,
        route.table,
        route.protocol,
        route.options,
        tuple(NextHop(_read_ip(hop.via), hop.interface, hop.weight, hop.onlink) for hop in route.hops),
        route.tos,
        route.scope,
        route.preference,
        route.expires_at,
    )


def _written_route(route: UplinkRoute) -> _Route:
    return _Route(
        str(route.destination),
        _written_ip(route.via),
        _written_ip(route.source),
        route.metric,
        route.onlink,
        route.table,
        route.protocol,
        route.options,
        [_Hop(_written_ip(hop.via), hop.interface, hop.weight, hop.onlink) for hop in route.hops],
        route.tos,
        route.scope,
        route.preference,
        route.expires_at,
    )


def _read_ip(text: str | None) -> IPAddress | None:
    return ip_address(text) if text else None


def _written_ip(ip: IPAddress | None) -> str | None:
    return str(ip) if ip is not None else None
