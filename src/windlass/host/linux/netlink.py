"""Netlink: requests, replies and attributes as bytes. `rtnetlink` has their meaning.

The kernel executes a request during `send`, so the reply is ready when `send` returns, and no event loop is needed. For
this reason no library is used; a request also takes about 40 us instead of 400.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

NETLINK_NETFILTER = 12
SOL_NETLINK = 270
NETLINK_CAP_ACK = 10  # an acknowledgement does not repeat the request
NETLINK_EXT_ACK = 11  # but contains an error message
NETLINK_GET_STRICT_CHK = 12  # the kernel filters dumps

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_DUMP = 0x300
NLM_F_CAPPED = 0x100
NLM_F_ACK_TLVS = 0x200

_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_NLMSGERR_ATTR_MSG = 1
_NLA_TYPE_MASK = 0x3FFF
_NLA_F_NESTED = 0x8000
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")
_LONGEST = 1 << 16
# The kernel copies the sequence number of a request into its notifications about the change. The numbers of this
# process begin with these bits, so that it recognises notifications about its own requests.
_NUMBERS = 1 << 12
_OWN = secrets.randbelow(1 << 20) * _NUMBERS

Attributes = dict[int, bytes]


class NetlinkError(OSError):
    """The kernel refused a request."""


@contextmanager
def ignoring(*codes: int) -> Iterator[None]:
    """Ignore refusals within the block that have one of these error numbers."""
    try:
        yield
    except NetlinkError as error:
        if error.errno not in codes:
            raise


class Netlink:
    """A netlink socket in the namespace of the thread that opens it."""

    def __init__(self, groups: int = 0, protocol: int = socket.NETLINK_ROUTE) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._sequence = _OWN
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._socket.bind((0, groups))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def do(self, kind: int, body: bytes, flags: int = 0) -> None:
        """Send a change and wait for its acknowledgement."""
        for _ in self._ask(kind, NLM_F_ACK | flags, body):
            pass

    def get(self, kind: int, body: bytes) -> bytes:
        """Get one object. NetlinkError if it does not exist."""
        return next(self._ask(kind, 0, body))

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        return self._ask(kind, NLM_F_DUMP, body)

    def announced(self) -> Iterator[tuple[int, bytes, bool]]:
        """The messages that the groups of this socket have received: kind, body, and whether this process caused it."""
        while True:
            try:
                data = self._socket.recv(_LONGEST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            for kind, _, sequence, body in _messages(data):
                yield kind, body, sequence // _NUMBERS * _NUMBERS == _OWN

    def _ask(self, kind: int, flags: int, body: bytes) -> Iterator[bytes]:
        self._sequence = _OWN + (self._sequence + 1) % _NUMBERS
        self._socket.send(_HEADER.pack(_HEADER.size + len(body), kind, NLM_F_REQUEST | flags, self._sequence, 0) + body)
        while True:
            for kind_, flags_, sequence, body_ in _messages(self._socket.recv(_LONGEST)):
                if sequence != self._sequence:
                    continue  # the rest of an earlier dump
                if kind_ in {_NLMSG_ERROR, _NLMSG_DONE}:
                    _raise_refusal(kind_, flags_, body_)
                    return
                yield body_
                if not flags & (NLM_F_ACK | NLM_F_DUMP):
                    return


def attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | _NLA_F_NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    return attribute(kind, value.to_bytes(4, sys.byteorder))


def attributes(data: bytes, offset: int = 0) -> Attributes:
    found = {}
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _NLA_TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += length + -length % 4
    return found


def as_text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


def as_number(value: bytes) -> int:
    return int.from_bytes(value, sys.byteorder)


def _messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        yield kind, flags, sequence, data[offset + _HEADER.size : offset + length]
        offset += length + -length % 4


def _raise_refusal(kind: int, flags: int, body: bytes) -> None:
    code = -struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
    if code == 0:
        return
    # An error repeats the header of the request (or the whole request, if not capped) before the message.
    message_at = 4
    if kind == _NLMSG_ERROR:
        message_at += _HEADER.size if flags & NLM_F_CAPPED else _HEADER.unpack_from(body, 4)[0]
    words = attributes(body, message_at).get(_NLMSGERR_ATTR_MSG, b"") if flags & NLM_F_ACK_TLVS else b""
    reason = f"{as_text(words).rstrip('.')} ({os.strerror(code)})" if words else os.strerror(code)
    raise NetlinkError(code, reason)
