"""The checksum of IP, TCP, UDP and ICMP."""

from __future__ import annotations

import struct


def with_checksum(data: bytes, place: int, pseudo_header: bytes) -> bytes:
    """The data with the internet checksum, over pseudo header and data, written at `place`."""
    covered = pseudo_header + data
    if len(covered) % 2:
        covered += b"\0"
    total = sum(struct.unpack(f"!{len(covered) // 2}H", covered))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return data[:place] + struct.pack("!H", ~total & 0xFFFF) + data[place + 2 :]
