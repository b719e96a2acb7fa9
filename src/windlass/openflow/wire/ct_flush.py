"""Delete conntrack entries of a zone and protocol, by parts of their two tuples.

This is a message of Open vSwitch 3.1 and later. The switch scans all connections of the zone for each message.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from windlass.model.families import IPAddress
from windlass.openflow.wire.messages import experimenter

_CT_FLUSH = 32
_ORIGINAL_TUPLE, _REPLY_TUPLE, _ZONE = 0, 1, 2
_SOURCE, _DESTINATION, _SOURCE_PORT, _DESTINATION_PORT = 0, 1, 2, 3
_MAPPED = b"\0" * 10 + b"\xff\xff"  # the prefix of an IPv4-mapped IPv6 address


class Flush(Struct, frozen=True, gc=False):
    """Connections to this address and port, with replies from that one. None and 0: from any."""

    zone: int
    protocol: int
    to: IPAddress | None
    to_port: int
    replies_from: IPAddress | None = None
    replies_from_port: int = 0


def flush(what: Flush, xid: int) -> bytes:
    body = struct.pack("!B7x", what.protocol)
    body += _tuple(_ORIGINAL_TUPLE, _DESTINATION, what.to, _DESTINATION_PORT, what.to_port)
    body += _tuple(_REPLY_TUPLE, _SOURCE, what.replies_from, _SOURCE_PORT, what.replies_from_port)
    return experimenter(_CT_FLUSH, xid, body + _number(_ZONE, what.zone))


def _tuple(kind: int, of_address: int, address: IPAddress | None, of_port: int, port: int) -> bytes:
    parts = b""
    if address is not None:
        parts += _property(of_address, address.packed if address.version == 6 else _MAPPED + address.packed)
    if port:
        parts += _number(of_port, port)
    return _property(kind, b"\0" * 4 + parts) if parts else b""  # nested properties begin at a multiple of 8


def _number(kind: int, value: int) -> bytes:
    return _property(kind, struct.pack("!H2x", value))


def _property(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return struct.pack("!HH", kind, length) + value + b"\0" * (-length % 8)
