"""Select groups as bytes: the messages that add, change and remove one, and what a dump says."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

from windlass.openflow.flows import Bucket, Group
from windlass.openflow.wire import actions
from windlass.openflow.wire.messages import VERSION, MalformedMessage, Part, Type, multipart_request

ALL_GROUPS = 0xFFFFFFFC

# A group is described in one message. Open vSwitch 3.1 takes a larger one by several, and the next dump of its groups,
# whoever asks for it, ends ovs-vswitchd by an assertion. The bound leaves room for the headers of a bundle.
LONGEST_BUCKETS = 65448


class GroupTooLargeError(ValueError):
    """The switch could take this group, but not live with it."""


class EncodedGroup(Struct, frozen=True, gc=False):
    """A group as Open vSwitch reports it."""

    identity: int
    buckets: bytes


_BUCKET = struct.Struct("!HHI")
_WEIGHT = struct.Struct("!HHH2x")  # a property: its number, its length


def encode(group: Group) -> EncodedGroup:
    buckets = b"".join([_bucket(bucket) for bucket in group.buckets])
    if len(buckets) > LONGEST_BUCKETS:
        raise GroupTooLargeError(
            f"group {group.identity} ({group.why}): its {len(group.buckets)} buckets take {len(buckets)} bytes; "
            f"Open vSwitch can describe a group of {LONGEST_BUCKETS} bytes at most. Spread them over several groups"
        )
    return EncodedGroup(group.identity, buckets)


def _bucket(bucket: Bucket) -> bytes:
    does = actions.encode(bucket.actions)
    length = len(does)
    return _BUCKET.pack(length + 16, length, bucket.identity) + does + _WEIGHT.pack(0, 8, bucket.weight)


# header; command, type, group, length of the buckets, a bucket of theirs (none)
_GROUP_MOD = struct.Struct("!BBHI HBxIH2xI")
_ADD, _MODIFY, _DELETE = 0, 1, 2
_SELECT = 1
_NO_BUCKET = 0xFFFFFFFF


# A bucket is chosen by the datapath's own hash (`dp_hash`), over addresses and ports of every protocol: what Open
# vSwitch does by itself leaves the ports of UDP out, and all datagrams of a client would go to one endpoint.
_BY_HASH = struct.pack("!HHII4x16sQ", 0xFFFF, 40, 0x154D, 1, b"dp_hash", 0)


def add(group: EncodedGroup, xid: int) -> bytes:
    return _group_mod(_ADD, group.identity, group.buckets, xid, _BY_HASH)


def modify(group: EncodedGroup, xid: int) -> bytes:
    """Give the group these buckets in place of its own; flows that lead to it stay."""
    return _group_mod(_MODIFY, group.identity, group.buckets, xid, _BY_HASH)


def delete(identity: int, xid: int) -> bytes:
    """Delete the group, and with it every flow that leads to it."""
    return _group_mod(_DELETE, identity, b"", xid)


def delete_all(xid: int) -> bytes:
    return _group_mod(_DELETE, ALL_GROUPS, b"", xid)


def _group_mod(command: int, identity: int, buckets: bytes, xid: int, properties: bytes = b"") -> bytes:
    length = len(buckets)
    whole = 24 + length + len(properties)
    start = _GROUP_MOD.pack(VERSION, Type.GROUP_MOD, whole, xid, command, _SELECT, identity, length, _NO_BUCKET)
    return start + buckets + properties


def dump_request(xid: int) -> bytes:
    return multipart_request(Part.GROUPS, xid, struct.pack("!I4x", ALL_GROUPS))


_DUMPED = struct.Struct("!HBxIH6x")


def dumped(body: bytes) -> Iterator[EncodedGroup]:
    """The groups in one part of the answer to a dump request.

    One of another type or with other properties is foreign. It comes with its whole description as its buckets, which
    equals the buckets of no group of ours.
    """
    offset = 0
    while offset < len(body):
        length, kind, identity, buckets_length = _DUMPED.unpack_from(body, offset)
        if not 16 + buckets_length <= length <= len(body) - offset:
            raise MalformedMessage(f"group {identity} in a dump claims {length} bytes, which do not hold its parts")
        end = offset + 16 + buckets_length
        ours = kind == _SELECT and body[end : offset + length] == _BY_HASH
        yield EncodedGroup(identity, body[offset + 16 : end] if ours else body[offset : offset + length])
        offset += length
