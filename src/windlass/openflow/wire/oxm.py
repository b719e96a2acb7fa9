"""The headers by which a message names a field: OXM, and the older NXM. They do not include values and masks."""

from __future__ import annotations

import struct

from msgspec import Struct

from windlass.openflow import fields
from windlass.openflow.fields import FIELDS, Field


class OxmField(Struct, frozen=True, gc=False):
    """How a message encodes one field."""

    header: bytes  # of a value
    masked_header: bytes  # of a value and its mask
    size: int  # bytes of a value


def header(oxm_class: int, number: int, size: int, *, masked: bool = False) -> bytes:
    return struct.pack("!HBB", oxm_class, number << 1 | masked, size << masked)


def _oxm_field(field: Field) -> OxmField:
    size = (field.bits + 7) // 8
    return OxmField(
        header(field.oxm_class, field.number, size), header(field.oxm_class, field.number, size, masked=True), size
    )


# By `Field.order`: each term of each match needs a look-up, and an index into a tuple is the fastest.
OXM_FIELDS: tuple[OxmField, ...] = tuple(map(_oxm_field, FIELDS))


def oxm_field(field: Field) -> OxmField:
    return OXM_FIELDS[field.order]


# `learn` and `output` to a register are older than OXM: Open vSwitch reports them with the NXM class and number of a
# field, if the field has those.
_OLDER_NAMES: dict[Field, tuple[int, int]] = {
    fields.ETH_SRC: (0, 2),
    fields.ETH_DST: (0, 1),
    fields.ETH_TYPE: (0, 3),
    fields.IPV4_SRC: (0, 7),
    fields.IPV4_DST: (0, 8),
    fields.IPV6_SRC: (1, 19),
    fields.IPV6_DST: (1, 20),
    fields.IP_PROTO: (0, 6),
    fields.TCP_SRC: (0, 9),
    fields.TCP_DST: (0, 10),
    fields.TCP_FLAGS: (1, 34),
    fields.UDP_SRC: (0, 11),
    fields.UDP_DST: (0, 12),
    fields.ICMP_TYPE: (0, 13),
    fields.ICMP_CODE: (0, 14),
    fields.ICMPV6_TYPE: (1, 21),
    fields.ICMPV6_CODE: (1, 22),
    fields.ND_TARGET: (1, 23),
    fields.ND_SLL: (1, 24),
    fields.ND_TLL: (1, 25),
    fields.ARP_OP: (0, 15),
    fields.ARP_SPA: (0, 16),
    fields.ARP_TPA: (0, 17),
    fields.ARP_SHA: (1, 17),
    fields.ARP_THA: (1, 18),
}


def older_header(field: Field) -> bytes:
    oxm_class, number = _OLDER_NAMES.get(field, (field.oxm_class, field.number))
    return header(oxm_class, number, oxm_field(field).size)
