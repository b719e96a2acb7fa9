"""Bundles: messages that the switch takes all together, in their order, or not at all."""

from __future__ import annotations

import struct
from enum import IntEnum

from msgspec import Struct

from windlass.openflow.wire.messages import VERSION, Type

_ATOMIC_AND_ORDERED = 3
# header; bundle, kind, flags
_BUNDLE = struct.Struct("!BBHI IHH")


class Kind(IntEnum):
    OPEN_REQUEST = 0
    OPEN_REPLY = 1
    CLOSE_REQUEST = 2
    CLOSE_REPLY = 3
    COMMIT_REQUEST = 4
    COMMIT_REPLY = 5
    DISCARD_REQUEST = 6
    DISCARD_REPLY = 7


class BundleReply(Struct, frozen=True, gc=False):
    bundle: int
    kind: int


def open_(bundle: int, xid: int) -> bytes:
    return _control(bundle, Kind.OPEN_REQUEST, xid)


def add(bundle: int, message: bytes) -> bytes:
    """The message as a part of the bundle. It keeps its xid: an error about it carries that one."""
    xid = int.from_bytes(message[4:8])
    return _BUNDLE.pack(VERSION, _ADD, 16 + len(message), xid, bundle, 0, _ATOMIC_AND_ORDERED) + message


def commit(bundle: int, xid: int) -> bytes:
    return _control(bundle, Kind.COMMIT_REQUEST, xid)


def discard(bundle: int, xid: int) -> bytes:
    return _control(bundle, Kind.DISCARD_REQUEST, xid)


def parse_reply(body: bytes) -> BundleReply:
    """The body of a `BUNDLE_CONTROL` from the switch."""
    bundle, kind = struct.unpack_from("!IH", body)
    return BundleReply(bundle, kind)


_ADD = Type.BUNDLE_ADD_MESSAGE


def _control(bundle: int, kind: Kind, xid: int) -> bytes:
    return _BUNDLE.pack(VERSION, Type.BUNDLE_CONTROL, 16, xid, bundle, kind, _ATOMIC_AND_ORDERED)
