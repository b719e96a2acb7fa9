"""Flow monitors: the switch reports each change of its flows, also those that another controller made."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

from windlass.openflow.wire import matches
from windlass.openflow.wire.flows import ALL_TABLES, EncodedFlow
from windlass.openflow.wire.messages import MalformedMessage, MultipartType, multipart_request


class FlowUpdate(Struct, frozen=True, gc=False):
    """A flow that was added, changed or removed. An added flow may have replaced another with the same key."""

    flow: EncodedFlow
    removed: bool = False
    timed_out: bool = False  # removed by its idle timeout


_ANY = 0xFFFFFFFF
_ADD, _DELETE = 0, 2
_ADDED, _REMOVED, _MODIFIED, _WITH_INSTRUCTIONS = 2, 4, 8, 16
_REQUEST = struct.Struct("!IIIHBB")


def monitor_request(monitor: int, xid: int) -> bytes:
    """Have the switch report flows that are added, changed and removed from now on."""
    events = _ADDED | _REMOVED | _MODIFIED | _WITH_INSTRUCTIONS
    return _request(monitor, xid, events, _ADD)


def cancel_request(monitor: int, xid: int) -> bytes:
    return _request(monitor, xid, 0, _DELETE)


def _request(monitor: int, xid: int, events: int, command: int) -> bytes:
    body = _REQUEST.pack(monitor, _ANY, _ANY, events, ALL_TABLES, command) + matches.structure(b"")
    return multipart_request(MultipartType.FLOW_MONITOR, xid, body)


# length, event; then table, reason, timeouts (not ours), priority, cookie; length of the match
_UPDATE = struct.Struct("!HH")
_FLOW = struct.Struct("!4xBB4xH4xQ2xH")
_IDLE = 0  # a reason
_REMOVAL, _LAST_OF_FLOWS = 2, 3  # events; later ones are about our own messages, by xid only, and about pauses


def updates(body: bytes) -> Iterator[FlowUpdate]:
    """The changes by other clients in one part of a monitor's reply. Replies keep coming, with xid 0."""
    offset = 0
    while offset < len(body):
        length, event = _UPDATE.unpack_from(body, offset)
        if not 8 <= length <= len(body) - offset:
            raise MalformedMessage(f"a flow update has a length of {length} bytes, but {len(body) - offset} are left")
        if event <= _LAST_OF_FLOWS:
            flow, reason = _flow(body, offset, length)
            yield FlowUpdate(flow, event == _REMOVAL, timed_out=event == _REMOVAL and reason == _IDLE)
        offset += length


def _flow(body: bytes, offset: int, length: int) -> tuple[EncodedFlow, int]:
    table, reason, priority, cookie, match_length = _FLOW.unpack_from(body, offset)
    match = offset + 28
    instructions = offset + 24 + (match_length + 7 & ~7)
    conditions, rest = body[match : match + match_length - 4], body[instructions : offset + length]
    return EncodedFlow((table, priority, conditions), rest, cookie), reason
