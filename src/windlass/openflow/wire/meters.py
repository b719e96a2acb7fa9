"""Meters as bytes: the messages that add, change and remove them, dumps and statistics."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

from windlass.openflow.flows import Meter
from windlass.openflow.wire.messages import MalformedMessage, MultipartType, Type, message, multipart_request

ALL_METERS = 0xFFFFFFFF


class EncodedMeter(Struct, frozen=True, gc=False):
    """A meter as Open vSwitch reports it."""

    identity: int
    flags: int
    bands: bytes


_PACKETS_PER_SECOND, _WITH_BURST, _WITH_STATISTICS = 2, 4, 8
_DROP = 1
_BAND = struct.Struct("!HHII4x")  # type, length, rate, burst


def encode(meter: Meter) -> EncodedMeter:
    flags = _PACKETS_PER_SECOND | _WITH_BURST | _WITH_STATISTICS
    return EncodedMeter(meter.identity, flags, _BAND.pack(_DROP, _BAND.size, meter.per_second, meter.burst))


_METER_MOD = struct.Struct("!HHI")  # command, flags, meter
_ADD, _MODIFY, _DELETE = 0, 1, 2


def add(meter: EncodedMeter, xid: int) -> bytes:
    return _meter_mod(_ADD, meter, xid)


def modify(meter: EncodedMeter, xid: int) -> bytes:
    return _meter_mod(_MODIFY, meter, xid)


def delete(meter: EncodedMeter, xid: int) -> bytes:
    """Flows that use the meter stay, and their packets are not limited any more."""
    return message(Type.METER_MOD, xid, _METER_MOD.pack(_DELETE, 0, meter.identity))


def _meter_mod(command: int, meter: EncodedMeter, xid: int) -> bytes:
    return message(Type.METER_MOD, xid, _METER_MOD.pack(command, meter.flags, meter.identity) + meter.bands)


def dump_request(xid: int) -> bytes:
    return multipart_request(MultipartType.METERS, xid, struct.pack("!I4x", ALL_METERS))


_DUMPED = struct.Struct("!HHI")  # length, flags, meter


def dumped(body: bytes) -> Iterator[EncodedMeter]:
    """The meters in one part of the reply to a dump request."""
    offset = 0
    while offset < len(body):
        length, flags, identity = _DUMPED.unpack_from(body, offset)
        if not _DUMPED.size <= length <= len(body) - offset:
            raise MalformedMessage(
                f"meter {identity} in a dump has a length of {length} bytes, but {len(body) - offset} are left"
            )
        yield EncodedMeter(identity, flags, body[offset + _DUMPED.size : offset + length])
        offset += length


def statistics_request(xid: int) -> bytes:
    return multipart_request(MultipartType.METER_STATISTICS, xid, struct.pack("!I4x", ALL_METERS))


_COUNTED = struct.Struct("!IH6xIQQII")  # meter, length, flows, packets, bytes, seconds, nanoseconds
_DROPPED = struct.Struct("!QQ")  # of a band: packets, bytes


def packets_dropped(body: bytes) -> Iterator[tuple[int, int]]:
    """The number of each meter in one part of the reply, and how many packets it has dropped."""
    offset = 0
    while offset < len(body):
        identity, length, *_ = _COUNTED.unpack_from(body, offset)
        if not _COUNTED.size <= length <= len(body) - offset:
            raise MalformedMessage(
                f"the statistics of meter {identity} have a length of {length} bytes, but {len(body) - offset} are left"
            )
        bands = body[offset + _COUNTED.size : offset + length]
        yield identity, sum(packets for packets, _ in _DROPPED.iter_unpack(bands))
        offset += length
