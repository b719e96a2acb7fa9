"""Matches as OXM, in the form in which Open vSwitch reports them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from windlass.openflow.fields import FIELDS, REGISTERS, Field, Term
from windlass.openflow.matches import Match
from windlass.openflow.wire.oxm import OXM_FIELDS, header

# A register of OpenFlow 1.5 has 64 bits, a pair of Open vSwitch's registers: a match is always reported with those.
_PACKET_REGISTERS = 0x8001
_PAIRS = tuple(header(_PACKET_REGISTERS, number, 8) for number in range(len(REGISTERS) // 2))
_MASKED_PAIRS = tuple(header(_PACKET_REGISTERS, number, 8, masked=True) for number in range(len(REGISTERS) // 2))
_WHOLE_PAIR = (1 << 64) - 1
_WHOLE_REGISTER = (1 << 32) - 1

_MATCH_HEADER = struct.Struct("!HH")
_OXM = 1
_PADDING = tuple(bytes(-(length + 4) % 8) for length in range(8))


def _template(field: Field) -> tuple[int, int, int, int, int]:
    """A condition is built as one number: its header, then the value, then the mask, each shifted into place."""
    if field in REGISTERS:
        pair, low = divmod(field.number, 2)
        return 0, 0, 0, pair, 0 if low else 32
    oxm = OXM_FIELDS[field.order]
    bits = 8 * oxm.size
    exact, masked = int.from_bytes(oxm.header) << bits, int.from_bytes(oxm.masked_header) << 2 * bits
    return exact, 4 + oxm.size, masked, bits, 4 + 2 * oxm.size


_TEMPLATES = tuple(map(_template, FIELDS))


def encode(match: Match) -> bytes:
    """The conditions alone, without the header and the padding of a match in a message."""
    encoded = b""  # conditions are few, so this is faster than a join
    pair, pair_value, pair_mask = -1, 0, 0  # of registers: not encoded until both have been met
    for term in match:
        exact, exact_size, masked, bits, masked_size = _TEMPLATES[term.field.order]
        mask = term.mask
        if pair >= 0 and (exact or bits != pair):
            encoded += _register_pair(pair, pair_value, pair_mask)
            pair, pair_value, pair_mask = -1, 0, 0
        if exact:
            if mask is None:
                encoded += (exact | term.value).to_bytes(exact_size)
            elif mask:
                encoded += (masked | term.value << bits | mask).to_bytes(masked_size)
        elif mask != 0:
            pair = bits
            pair_value |= term.value << masked_size
            pair_mask |= (_WHOLE_REGISTER if mask is None else mask) << masked_size
    return encoded + _register_pair(pair, pair_value, pair_mask) if pair >= 0 else encoded


def _register_pair(pair: int, value: int, mask: int) -> bytes:
    if mask == _WHOLE_PAIR:
        return _PAIRS[pair] + value.to_bytes(8)
    return _MASKED_PAIRS[pair] + value.to_bytes(8) + mask.to_bytes(8)


def padding(oxm: bytes) -> bytes:
    """The padding after these conditions in a message."""
    return _PADDING[len(oxm) & 7]


def structure(oxm: bytes) -> bytes:
    """The conditions as a match in a message, with its header and padding."""
    return _MATCH_HEADER.pack(_OXM, len(oxm) + 4) + oxm + padding(oxm)


def decode(oxm: bytes) -> Match:
    """The conditions of a match or of a packet's metadata. Unknown fields are left out."""
    terms = sorted(_terms(oxm), key=lambda term: term.field.order)
    return tuple(terms)


_FIELDS: dict[bytes, Field] = {OXM_FIELDS[field.order].header[:2] + bytes([field.number]): field for field in FIELDS}


def _terms(oxm: bytes) -> Iterator[Term]:
    offset = 0
    while offset < len(oxm):
        oxm_class, number, length = struct.unpack_from("!HBB", oxm, offset)
        body = oxm[offset + 4 : offset + 4 + length]
        offset += 4 + length
        size = length >> (number & 1)
        value = int.from_bytes(body[:size])
        mask = int.from_bytes(body[size:]) if number & 1 else None
        if oxm_class == _PACKET_REGISTERS:
            yield from _registers(number >> 1, value, _WHOLE_PAIR if mask is None else mask)
        elif (field := _FIELDS.get(struct.pack("!HB", oxm_class, number >> 1))) is not None:
            yield field(value, mask)


def _registers(pair: int, value: int, mask: int) -> Iterator[Term]:
    for register, shift in ((REGISTERS[2 * pair], 32), (REGISTERS[2 * pair + 1], 0)):
        if register_mask := mask >> shift & _WHOLE_REGISTER:
            yield register(value >> shift & register_mask, register_mask)
