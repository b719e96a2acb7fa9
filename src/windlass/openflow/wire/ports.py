"""Ports as the switch reports them: all of them on request, and each change."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum

from msgspec import Struct

from windlass.openflow.wire.messages import MalformedMessage, MultipartType, multipart_request


class Port(Struct, frozen=True, gc=False):
    number: int
    name: str  # cut to the length of an interface name of Linux
    mac: int
    up: bool


class PortChange(Enum):
    ADDED = 0
    DELETED = 1
    MODIFIED = 2


class PortStatus(Struct, frozen=True, gc=False):
    change: PortChange
    port: Port


_ANY_PORT = 0xFFFFFFFF
# number, length, MAC, name, configuration, state
_PORT = struct.Struct("!IH2x6s2x16sII")
_TAKEN_DOWN = 1
_NO_LINK = 1


def dump_request(xid: int) -> bytes:
    return multipart_request(MultipartType.PORTS, xid, struct.pack("!I4x", _ANY_PORT))


def dumped(body: bytes) -> Iterator[Port]:
    """The ports in one part of the reply to a dump request."""
    offset = 0
    while offset < len(body):
        port, length = _port(body, offset)
        yield port
        offset += length


def parse_status(body: bytes) -> PortStatus:
    return PortStatus(PortChange(body[0]), _port(body, 8)[0])


def _port(body: bytes, offset: int) -> tuple[Port, int]:
    number, length, mac, name, configuration, state = _PORT.unpack_from(body, offset)
    if length < _PORT.size:
        raise MalformedMessage(f"port {number} has a length of {length} bytes, which is too short for a port")
    up = not (configuration & _TAKEN_DOWN or state & _NO_LINK)
    return Port(number, name.rstrip(b"\0").decode(errors="replace"), int.from_bytes(mac), up), length
