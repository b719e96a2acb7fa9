"""Packets that the switch sends to the agent, with a reason, and packets that the agent has the switch send."""

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
    cookie: int  # of the flow that sent it
    metadata: Match  # the ingress port, and the registers that are not 0
    userdata: bytes

    @property
    def in_port(self) -> int | None:
        return next((term.value for term in self.metadata if term.field is IN_PORT), None)


def ask_for_userdata(xid: int) -> bytes:
    """Request packets in the format of Open vSwitch: that of OpenFlow 1.5 has no userdata."""
    return experimenter(_SET_PACKET_IN_FORMAT, xid, struct.pack("!I", 2))


_PACKET_IN_START = struct.pack("!II", NICIRA, _PACKET_IN2)


def is_packet_in(body: bytes) -> bool:
    """Whether the body of an `EXPERIMENTER` message holds a packet; much cheaper than parsing it."""
    return body.startswith(_PACKET_IN_START)


_PACKET, _TABLE, _COOKIE, _METADATA, _USERDATA = 0, 3, 4, 6, 7


def parse_packet_in(body: bytes) -> PacketIn:
    """The packet in the body of an `EXPERIMENTER` message for which `is_packet_in` holds."""
    properties = _properties(body, 8)
    return PacketIn(
        properties.get(_PACKET, b""),
        int.from_bytes(properties.get(_TABLE, b"")),
        int.from_bytes(properties.get(_COOKIE, b"")[-8:]),  # after 4 bytes of padding
        matches.decode(properties.get(_METADATA, b"")),
        properties.get(_USERDATA, b""),
    )


def packet_out(packet: bytes, in_port: int, does: Actions, xid: int) -> bytes:
    """Have the switch process the packet as if received on `in_port`, with these actions."""
    acts = actions.encode(does)
    metadata = matches.structure(matches.encode((IN_PORT(in_port),)))
    return message(Type.PACKET_OUT, xid, struct.pack("!IH2x", 0xFFFFFFFF, len(acts)) + metadata + acts + packet)


def _properties(body: bytes, offset: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while offset < len(body):
        kind, length = struct.unpack_from("!HH", body, offset)
        if not 4 <= length <= len(body) - offset:
            raise MalformedMessage(
                f"property {kind} of a packet has a length of {length} bytes, but {len(body) - offset} are left"
            )
        found[kind] = body[offset + 4 : offset + length]
        offset += length + -length % 8
    return found
