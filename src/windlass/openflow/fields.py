"""The packet and metadata fields that the pipeline can match on and write, each declared once.

The order of the declarations is the order in which Open vSwitch reports a match, so that a match that the agent sends
equals the match in a dump, byte for byte (see `wire`).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from msgspec import Struct


class Notation(Enum):
    """How the value of a field is written as text."""

    DECIMAL = "decimal"
    HEX = "hex"
    MAC = "mac"
    IPV4 = "ipv4"
    IPV6 = "ipv6"


class Field:
    """One OXM or NXM field. Each exists once, so fields are compared by identity."""

    __slots__ = ("bits", "maskable", "name", "notation", "number", "order", "oxm_class")

    def __init__(
        self, order: int, name: str, bits: int, oxm_class: int, number: int, notation: Notation, *, maskable: bool
    ) -> None:
        self.order = order
        self.name = name  # as ovs-ofctl writes it
        self.bits = bits  # without the padding to whole bytes on the wire
        self.oxm_class = oxm_class
        self.number = number
        self.notation = notation
        self.maskable = maskable

    def __call__(self, value: int, mask: int | None = None) -> Term:
        """The condition that this field has this value, in the bits of `mask`."""
        every_bit = (1 << self.bits) - 1
        if mask is None or mask == every_bit:
            if value & ~every_bit:
                raise ValueError(f"{self.name}: {value:#x} does not fit its {self.bits} bits")
            return Term(self, value)
        if not self.maskable:
            raise ValueError(f"{self.name}: Open vSwitch cannot match it with a mask ({mask:#x})")
        if mask & ~every_bit or value & ~mask:
            raise ValueError(f"{self.name}: {value:#x}/{mask:#x} does not fit its {self.bits} bits or its mask")
        return Term(self, value, mask)

    def __getitem__(self, bits: slice | int) -> Bits:
        """`field[0:16]` are the bits 0 to 15, `field[17]` is one bit."""
        if isinstance(bits, int):
            return Bits(self, bits, 1)
        return Bits(self, bits.start, bits.stop - bits.start)

    @property
    def whole(self) -> Bits:
        return Bits(self, 0, self.bits)

    def __repr__(self) -> str:
        return self.name


class Term(Struct, frozen=True, gc=False):
    """One condition of a match: a field, its value, and its mask (None: all bits)."""

    field: Field
    value: int
    mask: int | None = None


class Bits(Struct, frozen=True, gc=False):
    """A run of bits of a field."""

    field: Field
    low: int
    width: int

    @property
    def mask(self) -> int:
        return ((1 << self.width) - 1) << self.low

    def __call__(self, value: int) -> Term:
        if value >> self.width:
            raise ValueError(f"{self.field.name}[{self.low}:{self.low + self.width}]: {value:#x} does not fit")
        return self.field(value << self.low, self.mask)


_BASIC = 0x8000
_NICIRA = 0x0001
_ERICSSON = 0x1000
_declared: list[Field] = []


def _field(
    name: str,
    bits: int,
    number: int,
    notation: Notation = Notation.DECIMAL,
    oxm_class: int = _BASIC,
    *,
    maskable: bool = True,
) -> Field:
    field = Field(len(_declared), name, bits, oxm_class, number, notation, maskable=maskable)
    _declared.append(field)
    return field


IN_PORT = _field("in_port", 32, 0, maskable=False)
ETH_SRC = _field("eth_src", 48, 4, Notation.MAC)
ETH_DST = _field("eth_dst", 48, 3, Notation.MAC)
ETH_TYPE = _field("eth_type", 16, 5, Notation.HEX, maskable=False)
VLAN_VID = _field("vlan_vid", 13, 6, Notation.HEX)  # including the bit that says whether there is a tag
IPV4_SRC = _field("ip_src", 32, 11, Notation.IPV4)
IPV4_DST = _field("ip_dst", 32, 12, Notation.IPV4)
IPV6_SRC = _field("ipv6_src", 128, 26, Notation.IPV6)
IPV6_DST = _field("ipv6_dst", 128, 27, Notation.IPV6)
IP_FRAG = _field("ip_frag", 2, 26, Notation.HEX, _NICIRA)
IP_PROTO = _field("ip_proto", 8, 10, maskable=False)
TCP_SRC = _field("tcp_src", 16, 13)
TCP_DST = _field("tcp_dst", 16, 14)
TCP_FLAGS = _field("tcp_flags", 12, 42, Notation.HEX)
UDP_SRC = _field("udp_src", 16, 15)
UDP_DST = _field("udp_dst", 16, 16)
SCTP_SRC = _field("sctp_src", 16, 17)
SCTP_DST = _field("sctp_dst", 16, 18)
ICMP_TYPE = _field("icmp_type", 8, 19, maskable=False)
ICMP_CODE = _field("icmp_code", 8, 20, maskable=False)
ICMPV6_TYPE = _field("icmpv6_type", 8, 29, maskable=False)
ICMPV6_CODE = _field("icmpv6_code", 8, 30, maskable=False)
ND_RESERVED = _field("nd_reserved", 32, 1, Notation.HEX, _ERICSSON, maskable=False)
ND_TARGET = _field("nd_target", 128, 31, Notation.IPV6)
ND_OPTIONS_TYPE = _field("nd_options_type", 8, 2, oxm_class=_ERICSSON, maskable=False)
ND_SLL = _field("nd_sll", 48, 32, Notation.MAC)
ND_TLL = _field("nd_tll", 48, 33, Notation.MAC)
ARP_OP = _field("arp_op", 16, 21, maskable=False)
ARP_SPA = _field("arp_spa", 32, 22, Notation.IPV4)
ARP_TPA = _field("arp_tpa", 32, 23, Notation.IPV4)
ARP_SHA = _field("arp_sha", 48, 24, Notation.MAC)
ARP_THA = _field("arp_tha", 48, 25, Notation.MAC)
TUN_IPV4_SRC = _field("tun_src", 32, 31, Notation.IPV4, _NICIRA)
TUN_IPV4_DST = _field("tun_dst", 32, 32, Notation.IPV4, _NICIRA)
TUN_IPV6_SRC = _field("tun_ipv6_src", 128, 109, Notation.IPV6, _NICIRA)
TUN_IPV6_DST = _field("tun_ipv6_dst", 128, 110, Notation.IPV6, _NICIRA)
REGISTERS = tuple(_field(f"reg{n}", 32, n, Notation.HEX, _NICIRA) for n in range(16))
PKT_MARK = _field("pkt_mark", 32, 33, Notation.HEX, _NICIRA)
CT_STATE = _field("ct_state", 32, 105, Notation.HEX, _NICIRA)
CT_ZONE = _field("ct_zone", 16, 106, oxm_class=_NICIRA, maskable=False)
CT_MARK = _field("ct_mark", 32, 107, Notation.HEX, _NICIRA)
CT_LABEL = _field("ct_label", 128, 108, Notation.HEX, _NICIRA)
CT_IPV6_DST = _field(
    "ct_ipv6_dst", 128, 123, Notation.IPV6, _NICIRA
)  # the destination of the connection's first packet

FIELDS: tuple[Field, ...] = tuple(_declared)


class FieldSet(NamedTuple):
    """Fields that belong together, such as the same field in both families."""

    name: str
    fields: tuple[Field, ...]


PROTOCOL = FieldSet("protocol", (ETH_TYPE, IP_PROTO))
IP_SOURCE = FieldSet("IP source", (IPV4_SRC, IPV6_SRC))
IP_DESTINATION = FieldSet("IP destination", (IPV4_DST, IPV6_DST))
SOURCE_PORT = FieldSet("source port", (TCP_SRC, UDP_SRC, SCTP_SRC))
DESTINATION_PORT = FieldSet("destination port", (TCP_DST, UDP_DST, SCTP_DST))
ICMP_KIND = FieldSet("ICMP type", (ICMP_TYPE, ICMPV6_TYPE))
ARP_SENDER = FieldSet("ARP sender", (ARP_SPA, ARP_SHA))
ARP_TARGET = FieldSet("ARP target", (ARP_TPA, ARP_THA))
TUNNEL_SOURCE = FieldSet("tunnel source", (TUN_IPV4_SRC, TUN_IPV6_SRC))
TUNNEL_DESTINATION = FieldSet("tunnel destination", (TUN_IPV4_DST, TUN_IPV6_DST))

LOCAL_PORT = 0xFFFFFFFE
IN_PORT_PORT = 0xFFFFFFF8

TCP, UDP, SCTP, ICMP, ICMPV6 = 6, 17, 132, 1, 58
IPV6_FRAGMENT = 44  # the protocol that Open vSwitch sees in later fragments of an IPv6 packet


def reg(number: int) -> Field:
    return REGISTERS[number]


def mac(text: str) -> int:
    return int(text.replace(":", ""), 16)
