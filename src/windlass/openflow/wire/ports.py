"""Changes of ports, as the switch reports them."""

from __future__ import annotations

import struct
from enum import Enum

from msgspec import Struct

from windlass.openflow.wire.messages import MalformedMessage


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


# number, length, MAC, name, configuration, state
_PORT = struct.Struct("!IH2x6s2x16sII")
_TAKEN_DOWN = 1
_NO_LINK = 1


def parse_status(body: bytes) -> PortStatus:
    number, length, mac, name, configuration, state = _PORT.unpack_from(body, 8)
    if length < _PORT.size:
        raise MalformedMessage(f"port {number} has a length of {length} bytes, which is too short for a port")
    up = not (configuration & _TAKEN_DOWN or state & _NO_LINK)
    port = Port(number, name.rstrip(b"\0").decode(errors="replace"), int.from_bytes(mac), up)
    return PortStatus(PortChange(body[0]), port)
