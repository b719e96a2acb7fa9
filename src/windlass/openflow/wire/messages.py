"""The frame of every message, and the messages that carry no state of the switch: hello, echo, barrier, multipart."""

from __future__ import annotations

import struct
from enum import IntEnum

from msgspec import Struct

VERSION = 6  # OpenFlow 1.5
NICIRA = 0x2320

HEADER_SIZE = 8


class Type(IntEnum):
    HELLO = 0
    ERROR = 1
    ECHO_REQUEST = 2
    ECHO_REPLY = 3
    EXPERIMENTER = 4
    SET_CONFIG = 9
    PACKET_OUT = 13
    FLOW_MOD = 14
    GROUP_MOD = 15
    MULTIPART_REQUEST = 18
    MULTIPART_REPLY = 19
    BARRIER_REQUEST = 20
    BARRIER_REPLY = 21
    SET_ASYNC = 28
    METER_MOD = 29
    REQUEST_FORWARD = 32  # a change of groups or meters by another controller, which no monitor reports
    BUNDLE_CONTROL = 33
    BUNDLE_ADD_MESSAGE = 34


class MultipartType(IntEnum):
    """What a multipart request asks for."""

    FLOWS = 1
    GROUPS = 7
    METER_STATISTICS = 9
    METERS = 10
    FLOW_MONITOR = 16


class MalformedMessage(ValueError):
    """The peer sent what OpenFlow 1.5 does not allow: the connection must be closed."""


class Header(Struct, frozen=True, gc=False):
    version: int
    type: int
    length: int
    xid: int


class Multipart(Struct, frozen=True, gc=False):
    """One part of a reply; if `more`, others with the same xid follow."""

    part: int
    more: bool
    body: bytes


_HEADER = struct.Struct("!BBHI")
_MULTIPART = struct.Struct("!HH4x")
_MORE = 1


def header(kind: int, length: int, xid: int) -> bytes:
    return _HEADER.pack(VERSION, kind, length, xid)


def message(kind: int, xid: int, body: bytes = b"") -> bytes:
    return _HEADER.pack(VERSION, kind, HEADER_SIZE + len(body), xid) + body


def parse_header(data: bytes | bytearray | memoryview, offset: int = 0) -> Header:
    """The header of the message that starts there; at least 8 bytes must follow."""
    version, kind, length, xid = _HEADER.unpack_from(data, offset)
    if length < HEADER_SIZE:
        raise MalformedMessage(f"a message of type {kind} has a length of {length} bytes, less than its header")
    return Header(version, kind, length, xid)


def hello(xid: int) -> bytes:
    """The first message of either side. It offers the only version that we support."""
    return message(Type.HELLO, xid, struct.pack("!HHI", 1, 8, 1 << VERSION))


def versions(header: Header, body: bytes) -> frozenset[int]:
    """The versions that the peer's hello offers."""
    offset = 0
    while offset + 4 <= len(body):
        kind, length = struct.unpack_from("!HH", body, offset)
        if kind == 1 and length >= 8:
            bitmap: int = struct.unpack_from("!I", body, offset + 4)[0]
            return frozenset(version for version in range(32) if bitmap >> version & 1)
        offset += max(length + -length % 8, 8)
    return frozenset(range(1, header.version + 1))


def echo_request(xid: int, data: bytes = b"") -> bytes:
    return message(Type.ECHO_REQUEST, xid, data)


def echo_reply(xid: int, data: bytes = b"") -> bytes:
    """The reply to an echo request, with its xid and its data."""
    return message(Type.ECHO_REPLY, xid, data)


def barrier_request(xid: int) -> bytes:
    return message(Type.BARRIER_REQUEST, xid)


def multipart_request(part: MultipartType, xid: int, body: bytes = b"") -> bytes:
    return message(Type.MULTIPART_REQUEST, xid, _MULTIPART.pack(part, 0) + body)


def parse_multipart(body: bytes) -> Multipart:
    part, flags = _MULTIPART.unpack_from(body)
    return Multipart(part, bool(flags & _MORE), body[_MULTIPART.size :])


def ask_for_events(xid: int) -> bytes:
    """Have the switch send packets: on its management socket it does so only on request.

    The request is implied by the switch configuration, by the number of bytes wanted of a packet that misses a table.
    """
    return message(Type.SET_CONFIG, xid, struct.pack("!HH", 0, 0xFFFF))


_FORWARDED_TO_AN_EQUAL = 11  # the property for a controller that is not a secondary one
_OF_GROUPS, _OF_METERS = 1, 2


def ask_for_forwards(xid: int) -> bytes:
    """Have group and meter messages of other connections forwarded to this connection."""
    return message(Type.SET_ASYNC, xid, struct.pack("!HHI", _FORWARDED_TO_AN_EQUAL, 8, _OF_GROUPS | _OF_METERS))


def experimenter(subtype: int, xid: int, body: bytes = b"") -> bytes:
    """A message that Open vSwitch added to OpenFlow."""
    return message(Type.EXPERIMENTER, xid, struct.pack("!II", NICIRA, subtype) + body)
