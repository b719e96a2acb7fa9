"""Flows as bytes: how the switch stores them, the messages that add and remove them, and dumps."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b

from msgspec import Struct

from windlass.openflow.flows import Flow
from windlass.openflow.wire import actions, matches
from windlass.openflow.wire.messages import VERSION, MalformedMessage, MultipartType, Type, multipart_request

ALL_TABLES = 0xFF

Key = tuple[int, int, bytes]  # table, priority, conditions


class EncodedFlow(Struct, frozen=True, gc=False):
    """A flow as Open vSwitch reports it. The cookie is a digest of all other fields."""

    key: Key  # a switch holds one flow for each key; adding another with the same key replaces it
    instructions: bytes
    cookie: int

    @property
    def table(self) -> int:
        return self.key[0]

    @property
    def priority(self) -> int:
        return self.key[1]

    @property
    def match(self) -> bytes:
        return self.key[2]


_CONTENT = struct.Struct("!BHH")
_digest = blake2b(digest_size=8)  # of nothing: to copy it takes less time than to make another
_ALL_BITS = (1 << 64) - 1
_NOT_DIGESTS = (0, _ALL_BITS)  # the default cookie of a flow, and "any cookie" in requests


def encode(flow: Flow) -> EncodedFlow:
    match = matches.encode(flow.match)
    instructions = actions.instructions(flow.actions)
    table, priority = flow.table, flow.priority
    digest = _digest.copy()
    digest.update(_CONTENT.pack(table, priority, len(match)) + match + instructions)
    cookie = int.from_bytes(digest.digest())
    return EncodedFlow((table, priority, match), instructions, 1 if cookie in _NOT_DIGESTS else cookie)


# header; cookie, cookie mask, table, command, two timeouts, priority, buffer, out port, out group, flags, importance;
# header of the match
_FLOW_MOD = struct.Struct("!BBHI QQBBHHHIIIHH HH")
_TYPE = int(Type.FLOW_MOD)
_ADD, _DELETE_STRICT = 0, 4
_ANY = 0xFFFFFFFF
_OXM = 1


def add(flow: EncodedFlow, xid: int) -> bytes:
    """Add the flow; it replaces one with the same key."""
    table, priority, match = flow.key
    end = match + matches.padding(match) + flow.instructions
    # fmt: off
    return _FLOW_MOD.pack(
        VERSION, _TYPE, 52 + len(end), xid,
        flow.cookie, 0, table, _ADD, 0, 0, priority, _ANY, _ANY, _ANY, 0, 0,
        _OXM, len(match) + 4,
    ) + end
    # fmt: on


def delete(flow: EncodedFlow, xid: int) -> bytes:
    """Delete the flow with this key, whatever it does."""
    table, priority, match = flow.key
    end = match + matches.padding(match)
    # fmt: off
    return _FLOW_MOD.pack(
        VERSION, _TYPE, 52 + len(end), xid,
        0, 0, table, _DELETE_STRICT, 0, 0, priority, _ANY, _ANY, _ANY, 0, 0,
        _OXM, len(match) + 4,
    ) + end
    # fmt: on


def dump_request(xid: int, table: int = ALL_TABLES, cookie: int | None = None) -> bytes:
    """Requests the flows of one table or all, of one cookie or any."""
    any_cookie = (0, 0)
    wanted = any_cookie if cookie is None else (cookie, _ALL_BITS)
    body = struct.pack("!B3xII4xQQ", table, _ANY, _ANY, *wanted) + matches.structure(b"")
    return multipart_request(MultipartType.FLOWS, xid, body)


# length, table, priority, timeouts and flags (not read), cookie; length of the match
_DUMPED = struct.Struct("!H2xBxH8xQ2xH")
_STATISTICS = struct.Struct("!2xH")


def dumped(body: bytes) -> Iterator[EncodedFlow]:
    """The flows in one part of the reply to a dump request."""
    offset = 0
    end = len(body)
    while offset < end:
        length, table, priority, cookie, match_length = _DUMPED.unpack_from(body, offset)
        match = offset + 28
        statistics = offset + 24 + (match_length + 7 & ~7)
        instructions = statistics + (_STATISTICS.unpack_from(body, statistics)[0] + 7 & ~7)
        offset += length
        if not instructions <= offset <= end:
            raise MalformedMessage(f"a flow in a dump has a length of {length} bytes, which is too short for its parts")
        conditions = body[match : match + match_length - 4]
        yield EncodedFlow((table, priority, conditions), body[instructions:offset], cookie)


class LearnedFlow(Struct, frozen=True, gc=False):
    """A flow that the switch learned, and for how many seconds no packet has matched it."""

    flow: EncodedFlow
    idle: int
    idle_timeout: int  # seconds after which the switch deletes it; 0: never


_IDLE_TIMEOUT = struct.Struct("!8xH")
_OXS = struct.Struct("!HBB")  # class, field and flag, length
_BASIC = 0x8002  # the class of OpenFlow's own statistics
_IDLE_TIME, _PACKET_COUNT = 1, 4  # fields
_SECONDS = struct.Struct("!I4x")  # and nanoseconds
_COUNT = struct.Struct("!Q")


def learned(body: bytes) -> Iterator[LearnedFlow]:
    """The flows in one part of the reply to a dump request, with their idle times."""
    for flow, offset in _with_offsets(body):
        idle = _statistic(body, offset, flow, _IDLE_TIME, _SECONDS)
        yield LearnedFlow(flow, idle, _IDLE_TIMEOUT.unpack_from(body, offset)[0])


def counted(body: bytes) -> Iterator[tuple[EncodedFlow, int]]:
    """The flows in one part of the reply to a dump request, each with the number of packets that matched it."""
    for flow, offset in _with_offsets(body):
        yield flow, _statistic(body, offset, flow, _PACKET_COUNT, _COUNT)


def _with_offsets(body: bytes) -> Iterator[tuple[EncodedFlow, int]]:
    offset = 0
    for flow in dumped(body):
        yield flow, offset
        offset += _DUMPED.unpack_from(body, offset)[0]


def _statistic(body: bytes, offset: int, flow: EncodedFlow, field: int, value: struct.Struct) -> int:
    """One statistic of the flow at this offset; 0 if the switch does not give it."""
    start = offset + 24 + (len(flow.match) + 4 + 7 & ~7)
    place, end = start + 4, start + _STATISTICS.unpack_from(body, start)[0]
    while place + _OXS.size <= end:
        kind, field_and_flag, length = _OXS.unpack_from(body, place)
        place += _OXS.size
        if (kind, field_and_flag >> 1, length) == (_BASIC, field, value.size):
            (found,) = value.unpack_from(body, place)
            return int(found)
        place += length
    return 0
