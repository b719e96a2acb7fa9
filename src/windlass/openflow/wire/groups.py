"""Select groups as bytes: the messages that add, change and remove one, and what a dump says."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cache
from ipaddress import IPv4Address, IPv6Address

from msgspec import Struct
from msgspec.structs import replace

from windlass.model.families import IPAddress
from windlass.openflow.actions import Ct, Nat
from windlass.openflow.fields import Field
from windlass.openflow.flows import Bucket, Group, Translations
from windlass.openflow.wire import actions
from windlass.openflow.wire.messages import VERSION, MalformedMessage, MultipartType, Type, multipart_request
from windlass.openflow.wire.oxm import oxm_field

ALL_GROUPS = 0xFFFFFFFC

# A group is described in one message. Open vSwitch 3.1 takes a larger one by several, and the next dump of its groups,
# whoever asks for it, ends ovs-vswitchd by an assertion. The bound leaves room for the headers of a bundle.
LONGEST_BUCKETS = 65424


class GroupTooLargeError(ValueError):
    """The switch could take this group, but not live with it."""


class EncodedGroup(Struct, frozen=True, gc=False):
    """A group as Open vSwitch reports it."""

    identity: int
    buckets: bytes
    selection: bytes  # how a bucket is chosen: a property of the group


# A bucket is chosen by the datapath's own hash (`dp_hash`), over addresses and ports of every protocol: what Open
# vSwitch does by itself leaves the ports of UDP out, and all datagrams of a client would go to one endpoint.
_SELECTION = struct.Struct("!HHII4x16sQ")
_NETRONOME = 0x154D
_BY_CONNECTION = _SELECTION.pack(0xFFFF, _SELECTION.size, _NETRONOME, 1, b"dp_hash", 0)


@cache
def _selection(by: Field | None) -> bytes:
    if by is None:
        return _BY_CONNECTION
    every_bit = ((1 << by.bits) - 1).to_bytes(oxm_field(by).size)
    chosen = oxm_field(by).header + every_bit
    length = _SELECTION.size + len(chosen)
    return _SELECTION.pack(0xFFFF, length, _NETRONOME, 1, b"hash", 0) + chosen + bytes(-length % 8)


def turned(group: EncodedGroup) -> EncodedGroup:
    """The same group, which chooses otherwise: what met one of its buckets may meet another."""
    *head, basis = _SELECTION.unpack_from(group.selection)
    selection = _SELECTION.pack(*head, (basis + 1) % (1 << 64)) + group.selection[_SELECTION.size :]
    return EncodedGroup(group.identity, group.buckets, selection)


_BUCKET = struct.Struct("!HHI")
_WEIGHT = struct.Struct("!HHH2x")  # a property: its number, its length


def encode(group: Group) -> EncodedGroup:
    if isinstance(group.buckets, Translations):
        buckets = _translations(group.buckets)
    else:
        buckets = b"".join(map(_bucket, group.buckets))
    if len(buckets) > LONGEST_BUCKETS:
        raise GroupTooLargeError(
            f"group {group.identity} ({group.why}): its {len(group.buckets)} buckets take {len(buckets)} bytes; "
            f"Open vSwitch can describe a group of {LONGEST_BUCKETS} bytes at most. Spread them over several groups"
        )
    return EncodedGroup(group.identity, buckets, _selection(group.by))


def _bucket(bucket: Bucket) -> bytes:
    does = actions.encode(bucket.actions)
    length = len(does)
    return _BUCKET.pack(length + 16, length, bucket.identity) + does + _WEIGHT.pack(0, 8, bucket.weight)


def _translations(buckets: Translations) -> bytes:
    """As of each bucket by itself, and much quicker: most bytes of a large cluster are made here."""
    templates = _templates(buckets.does)
    encoded: list[bytes] = []
    for identity, place in enumerate(buckets.to):
        address = place.packed
        layout, start, middle, end = templates[len(address)]
        encoded.append(layout.pack(start, identity, middle, address, place.port, end))
    return b"".join(encoded)


_Template = tuple[struct.Struct, bytes, bytes, bytes]


@cache
def _templates(does: Ct) -> Mapping[int, _Template]:
    """By the length of the address."""
    return {len(nowhere.packed): _template(does, nowhere) for nowhere in (IPv4Address(0), IPv6Address(0))}


def _template(does: Ct, nowhere: IPAddress) -> _Template:
    """The bucket that translates to nowhere, cut at the places of its identity, the address and the port."""
    bucket = _bucket(Bucket(0, (replace(does, nat=Nat(to=nowhere, ports=(0, 0))),)))
    address = _BUCKET.size + actions.NAT_TARGET_OFFSET
    port = address + len(nowhere.packed)
    start, middle, end = bucket[:4], bucket[_BUCKET.size : address], bucket[port + 2 :]
    return struct.Struct(f"!4sI{len(middle)}s{port - address}sH{len(end)}s"), start, middle, end


# header; command, type, group, length of the buckets, a bucket of theirs (none)
_GROUP_MOD = struct.Struct("!BBHI HBxIH2xI")
_ADD, _MODIFY, _DELETE = 0, 1, 2
_SELECT = 1
_NO_BUCKET = 0xFFFFFFFF


def add(group: EncodedGroup, xid: int) -> bytes:
    return _group_mod(_ADD, group.identity, group.buckets, xid, group.selection)


def modify(group: EncodedGroup, xid: int) -> bytes:
    """Give the group these buckets in place of its own; flows that lead to it stay."""
    return _group_mod(_MODIFY, group.identity, group.buckets, xid, group.selection)


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
    return multipart_request(MultipartType.GROUPS, xid, struct.pack("!I4x", ALL_GROUPS))


_DUMPED = struct.Struct("!HBxIH6x")


def dumped(body: bytes) -> Iterator[EncodedGroup]:
    """The groups in one part of the answer to a dump request.

    One of another type is foreign. It comes with its whole description as its buckets, which equals the buckets of no
    group of ours.
    """
    offset = 0
    while offset < len(body):
        length, kind, identity, buckets_length = _DUMPED.unpack_from(body, offset)
        if not 16 + buckets_length <= length <= len(body) - offset:
            raise MalformedMessage(f"group {identity} in a dump claims {length} bytes, which do not hold its parts")
        end = offset + 16 + buckets_length
        buckets = body[offset + 16 : end] if kind == _SELECT else body[offset : offset + length]
        yield EncodedGroup(identity, buckets, body[end : offset + length])
        offset += length
