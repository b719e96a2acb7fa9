"""Builds and reads packets: SCTP where the kernel has none, ICMP echo, and spoofed packets. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from windlass.model.families import Family, IPAddress, family_of

TCP, UDP, ICMP, ICMPV6, SCTP = 6, 17, 1, 58, 132  # protocol numbers

# IP -------------------------------------------------------------------------------------------------------------


def with_ip_header(source: IPAddress, destination: IPAddress, protocol: int, payload: bytes) -> bytes:
    if family_of(source) is Family.IPV6:
        fixed = struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64)
        return fixed + source.packed + destination.packed + payload
    # Identification and checksum are 0: the kernel fills them in for a raw socket.
    fixed = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0)
    return fixed + source.packed + destination.packed + payload


def internet_checksum(data: bytes) -> int:
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def _with_pseudo_header(source: IPAddress, destination: IPAddress, protocol: int, segment: bytes) -> int:
    addresses = source.packed + destination.packed
    return internet_checksum(addresses + struct.pack("!IHH", len(segment), 0, protocol) + segment)


# TCP and UDP: only what a spoofed packet needs ------------------------------------------------------------------


def tcp_syn(source: IPAddress, destination: IPAddress, ports: tuple[int, int], sequence: int) -> bytes:
    def segment(checksum: int) -> bytes:
        return struct.pack("!HHIIBBHHH", *ports, sequence, 0, 5 << 4, 0x02, 64240, checksum, 0)

    return segment(_with_pseudo_header(source, destination, TCP, segment(0)))


def tcp_sequence(segment: bytes) -> int:
    number: int = struct.unpack_from("!I", segment, 4)[0]
    return number


def udp_datagram(source: IPAddress, destination: IPAddress, ports: tuple[int, int], payload: bytes) -> bytes:
    def datagram(checksum: int) -> bytes:
        return struct.pack("!HHHH", *ports, 8 + len(payload), checksum) + payload

    return datagram(_with_pseudo_header(source, destination, UDP, datagram(0)) or 0xFFFF)


# ICMP -----------------------------------------------------------------------------------------------------------

ECHO_REQUEST = {Family.IPV4: 8, Family.IPV6: 128}
ECHO_REPLY = {Family.IPV4: 0, Family.IPV6: 129}


def icmp_echo(identifier: int, payload: bytes, addresses: tuple[IPAddress, IPAddress]) -> bytes:
    source, destination = addresses
    kind = ECHO_REQUEST[family_of(source)]

    def message(checksum: int) -> bytes:
        return struct.pack("!BBHHH", kind, 0, checksum, identifier, 1) + payload

    if family_of(source) is Family.IPV4:
        return message(internet_checksum(message(0)))
    return message(_with_pseudo_header(source, destination, ICMPV6, message(0)))


def echo_payload(message: bytes) -> tuple[int, bytes] | None:
    """Identifier and payload of an echo request or reply."""
    if len(message) < 8:
        return None
    return struct.unpack_from("!H", message, 4)[0], message[8:]


# SCTP -----------------------------------------------------------------------------------------------------------


class Chunk(IntEnum):
    INIT = 1
    INIT_ACK = 2
    HEARTBEAT = 4
    HEARTBEAT_ACK = 5
    ABORT = 6


@dataclass(frozen=True, slots=True)
class SctpPacket:
    """A packet with one chunk, which is all that the lab needs."""

    source_port: int
    destination_port: int
    tag: int  # the receiver's verification tag
    chunk: Chunk
    value: bytes = b""

    def encode(self) -> bytes:
        length = 4 + len(self.value)
        chunk = struct.pack("!BBH", self.chunk, 0, length) + self.value + b"\0" * (-length % 4)
        ports = struct.pack("!HHI", self.source_port, self.destination_port, self.tag)
        return ports + struct.pack("<I", crc32c(ports + b"\0\0\0\0" + chunk)) + chunk


def decode_sctp(packet: bytes) -> SctpPacket | None:
    """None if it is too short, has another chunk or a wrong checksum."""
    if len(packet) < 16 or packet[12] not in list(Chunk):
        return None
    if struct.unpack_from("<I", packet, 8)[0] != crc32c(packet[:8] + b"\0\0\0\0" + packet[12:]):
        return None
    source, destination, tag = struct.unpack_from("!HHI", packet)
    (length,) = struct.unpack_from("!H", packet, 14)
    return SctpPacket(source, destination, tag, Chunk(packet[12]), packet[16 : 12 + length])


def init_value(tag: int, cookie: bytes = b"") -> bytes:
    """The value of an INIT or, with a state cookie, of an INIT-ACK. The cookie holds the name of the server."""
    fixed = struct.pack("!IIHHI", tag, 65536, 1, 1, tag)
    if not cookie:
        return fixed
    length = 4 + len(cookie)
    return fixed + struct.pack("!HH", 7, length) + cookie + b"\0" * (-length % 4)


def init_tag(value: bytes) -> int:
    tag: int = struct.unpack_from("!I", value)[0]
    return tag


def init_cookie(value: bytes) -> bytes:
    (length,) = struct.unpack_from("!H", value, 18)
    return value[20 : 16 + length]


def heartbeat_value(payload: bytes) -> bytes:
    """A peer sends it back unchanged: the echo of SCTP."""
    return struct.pack("!HH", 1, 4 + len(payload)) + payload


def heartbeat_payload(value: bytes) -> bytes:
    (length,) = struct.unpack_from("!H", value, 2)
    return value[4:length]


def _crc32c_table() -> tuple[int, ...]:
    def entry(byte: int) -> int:
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        return byte

    return tuple(map(entry, range(256)))


_CRC32C = _crc32c_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
