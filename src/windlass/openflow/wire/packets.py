"""Packets that the switch hands to us, with the reason why, and packets that we hand to the switch."""

from __future__ import annotations

import struct

from msgspec import Struct

from windlass.openflow.actions import Actions
from windlass.openflow.fields import IN_PORT
from windlass.openflow.matches import Match
from windlass.openflow.wire import actions, matches
from windlass.openflow.wire.messages import NICIRA, MalformedMessage, Type, experimenter, message

_SET_PACKET_IN_FORMAT = 16
_PACKET_IN2 = 30


class PacketIn(Struct, frozen=True, gc=False):
    """A packet that a `ToController` action sent."""

    packet: bytes
    table: int
    cookie: int  # of the flow whose action it was
    metadata: Match  # the port it came in by, the registers that are not 0
    userdata: bytes

    @property
    def in_port(self) -> int | None:
        return next((term.value for term in self.metadata if term.field is IN_PORT), None)


def ask_for_userdata(xid: int) -> bytes:
    """Have packets come in Open vSwitch's own form: that of OpenFlow 1.5 has no place for userdata."""
    return experimenter(_SET_PACKET_IN_FORMAT, xid, struct.pack("!I", 2))


_PACKET_IN_START = struct.pack("!II", NICIRA, _PACKET_IN2)


def is_packet_in(body: bytes) -> bool:
    """Whether the body of an `EXPERIMENTER` message holds a packet: much cheaper than to parse it."""
    return body.startswith(_PACKET_IN_START)


_PACKET, _TABLE, _COOKIE, _METADATA, _USERDATA = 0, 3, 4, 6, 7


def parse_packet_in(body: bytes) -> PacketIn:
    """The packet in the body of an `EXPERIMENTER` message for which `is_packet_in` holds."""
    properties = _properties(body, 8)
    return PacketIn(
        properties.get(_PACKET, b""),
        int.from_bytes(properties.get(_TABLE, b"")),
        int.from_bytes(properties.get(_COOKIE, b"")[-8:]),  # 4 bytes of padding stand before it
        matches.decode(properties.get(_METADATA, b"")),
        properties.get(_USERDATA, b""),
    )


def packet_out(packet: bytes, in_port: int, does: Actions, xid: int) -> bytes:
    """Have the switch treat the packet as one that came in by `in_port`, and do this with it."""
    acts = actions.encode(does)
    metadata = matches.structure(matches.encode((IN_PORT(in_port),)))
    return message(Type.PACKET_OUT, xid, struct.pack("!IH2x", 0xFFFFFFFF, len(acts)) + metadata + acts + packet)


def _properties(body: bytes, offset: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while offset < len(body):
        kind, length = struct.unpack_from("!HH", body, offset)
        if not 4 <= length <= len(body) - offset:
            raise MalformedMessage(f"property {kind} of a packet claims {length} bytes of {len(body) - offset}")
        found[kind] = body[offset + 4 : offset + length]
        offset += length + -length % 8
    return found
