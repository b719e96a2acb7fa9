"""Bundles: messages that the switch applies all together and in order, or not at all."""

from __future__ import annotations

import struct

from windlass.openflow.wire.messages import VERSION, Type

_ATOMIC_AND_ORDERED = 3
# header; bundle, kind, flags
_BUNDLE = struct.Struct("!BBHI IHH")
_OPEN, _COMMIT = 0, 4
_ADD = Type.BUNDLE_ADD_MESSAGE


def open_(bundle: int, xid: int) -> bytes:
    return _control(bundle, _OPEN, xid)


def add(bundle: int, message: bytes) -> bytes:
    """The message as part of the bundle. It keeps its xid, which an error about it carries."""
    xid = int.from_bytes(message[4:8])
    return _BUNDLE.pack(VERSION, _ADD, 16 + len(message), xid, bundle, 0, _ATOMIC_AND_ORDERED) + message


def commit(bundle: int, xid: int) -> bytes:
    return _control(bundle, _COMMIT, xid)


def _control(bundle: int, kind: int, xid: int) -> bytes:
    return _BUNDLE.pack(VERSION, Type.BUNDLE_CONTROL, 16, xid, bundle, kind, _ATOMIC_AND_ORDERED)
