"""Select groups as bytes: the messages that add, change and remove them, and dumps."""

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

# A dump describes a group in one message. Open vSwitch 3.1 accepts a larger group by several messages, but the next
# dump of its groups, by any client, crashes ovs-vswitchd. The limit leaves room for the headers of a bundle.
LONGEST_BUCKETS = 65424


class GroupTooLargeError(ValueError):
    """The switch would accept this group, but crash at the next dump of its groups."""


class EncodedGroup(Struct, frozen=True, gc=False):
    """A group as Open vSwitch reports it."""

    identity: int
    buckets: bytes
    selection: bytes  # how a bucket is chosen: a property of the group


# The datapath's own hash (`dp_hash`) over addresses and ports of every protocol chooses a bucket. The default of Open
# vSwitch leaves out the ports of UDP: all datagrams of a client would go to one endpoint.
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
    """The same group with another hash basis: a packet may get a different bucket than before."""
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
            f"the limit of Open vSwitch is {LONGEST_BUCKETS} bytes. Spread them over several groups"
        )
    return EncodedGroup(group.identity, buckets, _selection(group.by))


def _bucket(bucket: Bucket) -> bytes:
    does = actions.encode(bucket.actions)
    length = len(does)
    return _BUCKET.pack(length + 16, length, bucket.identity) + does + _WEIGHT.pack(0, 8, bucket.weight)


def _translations(buckets: Translations) -> bytes:
    """The same bytes as of each bucket, but much faster: most bytes of a large cluster come from here."""
    templates = _templates(buckets.does)
    encoded: list[bytes] = []
    for identity, target in enumerate(buckets.to):
        address = target.packed
        layout, start, middle, end = templates[len(address)]
        encoded.append(layout.pack(start, identity, middle, address, target.port, end))
    return b"".join(encoded)


_Template = tuple[struct.Struct, bytes, bytes, bytes]


@cache
def _templates(does: Ct) -> Mapping[int, _Template]:
    """By the length of the address."""
    return {len(zero.packed): _template(does, zero) for zero in (IPv4Address(0), IPv6Address(0))}


def _template(does: Ct, zero: IPAddress) -> _Template:
    """A bucket that translates to address 0, cut where its identity, the address and the port are."""
    bucket = _bucket(Bucket(0, (replace(does, nat=Nat(to=zero, ports=(0, 0))),)))
    address = _BUCKET.size + actions.NAT_TARGET_OFFSET
    port = address + len(zero.packed)
    start, middle, end = bucket[:4], bucket[_BUCKET.size : address], bucket[port + 2 :]
    return struct.Struct(f"!4sI{len(middle)}s{port - address}sH{len(end)}s"), start, middle, end


# header; command, type, group, length of the buckets, number of one bucket (none)
_GROUP_MOD = struct.Struct("!BBHI HBxIH2xI")
_ADD, _MODIFY, _DELETE = 0, 1, 2
_SELECT = 1
_NO_BUCKET = 0xFFFFFFFF


def add(group: EncodedGroup, xid: int) -> bytes:
    return _group_mod(_ADD, group.identity, group.buckets, xid, group.selection)


def modify(group: EncodedGroup, xid: int) -> bytes:
    """Replace the buckets of the group; flows that lead to it stay."""
    return _group_mod(_MODIFY, group.identity, group.buckets, xid, group.selection)


def delete(identity: int, xid: int) -> bytes:
    """Delete the group, and with it every flow that leads to it."""
    return _group_mod(_DELETE, identity, b"", xid)


def _group_mod(command: int, identity: int, buckets: bytes, xid: int, properties: bytes = b"") -> bytes:
    length = len(buckets)
    whole = 24 + length + len(properties)
    start = _GROUP_MOD.pack(VERSION, Type.GROUP_MOD, whole, xid, command, _SELECT, identity, length, _NO_BUCKET)
    return start + buckets + properties


def dump_request(xid: int) -> bytes:
    return multipart_request(MultipartType.GROUPS, xid, struct.pack("!I4x", ALL_GROUPS))


_DUMPED = struct.Struct("!HBxIH6x")


def dumped(body: bytes) -> Iterator[EncodedGroup]:
    """The groups in one part of the reply to a dump request.

    A group of another type is not ours. Its whole description is returned as its buckets, which never equals the
    buckets of our groups.
    """
    offset = 0
    while offset < len(body):
        length, kind, identity, buckets_length = _DUMPED.unpack_from(body, offset)
        if not 16 + buckets_length <= length <= len(body) - offset:
            raise MalformedMessage(
                f"group {identity} in a dump has a length of {length} bytes, which is too short for its parts"
            )
        end = offset + 16 + buckets_length
        buckets = body[offset + 16 : end] if kind == _SELECT else body[offset : offset + length]
        yield EncodedGroup(identity, buckets, body[end : offset + length])
        offset += length
