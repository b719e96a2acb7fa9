"""The reply that rejects a packet: a TCP reset, or ICMP "port unreachable". Pure: frames in, frames out."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

from windlass.switch.checksums import with_checksum

_ETHERNET = 14
_IPV4, _IPV6 = 0x0800, 0x86DD
_TCP, _ICMP, _ICMPV6 = 6, 1, 58
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16
_QUOTED_IPV4, _QUOTED_IPV6 = 548, 1232  # bytes of the rejected packet, so that the reply fits the minimum MTU
_HOPS = 64


def rejection(frame: bytes) -> bytes | None:
    """The frame to send back to the sender; None where a reply is not allowed or makes no sense."""
    (ethertype,) = struct.unpack_from("!H", frame, 12) if len(frame) >= _ETHERNET else (0,)
    packet = frame[_ETHERNET:]
    if ethertype == _IPV4 and len(packet) >= 20:
        reply = _reject_ipv4(packet)
    elif ethertype == _IPV6 and len(packet) >= 40:
        reply = _reject_ipv6(packet)
    else:
        return None
    return None if reply is None else frame[6:12] + frame[0:6] + frame[12:14] + reply


def _reject_ipv4(packet: bytes) -> bytes | None:
    header = (packet[0] & 0xF) * 4
    total = struct.unpack_from("!H", packet, 2)[0]
    protocol = packet[9]
    source, destination = packet[12:16], packet[16:20]
    fragment = struct.unpack_from("!H", packet, 6)[0] & 0x1FFF
    if header < 20 or len(packet) < header or fragment or IPv4Address(source).is_multicast:
        return None
    payload = packet[header:total]
    if protocol == _TCP:
        segment = _reset(payload)
        if segment is None:
            return None
        segment = with_checksum(segment, 16, destination + source + struct.pack("!BBH", 0, _TCP, len(segment)))
    elif protocol == _ICMP:
        return None  # no error about an error, nor about an echo
    else:
        protocol = _ICMP
        segment = with_checksum(struct.pack("!BBHI", 3, 3, 0, 0) + packet[:_QUOTED_IPV4], 2, b"")
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0x4000, _HOPS, protocol, 0) + destination + source
    return with_checksum(ip, 10, b"") + segment


def _reject_ipv6(packet: bytes) -> bytes | None:
    length, protocol = struct.unpack_from("!HB", packet, 4)
    source, destination = packet[8:24], packet[24:40]
    if IPv6Address(source).is_multicast or IPv6Address(source).is_unspecified or protocol == _ICMPV6:
        return None
    if protocol == _TCP:
        segment = _reset(packet[40 : 40 + length])
        if segment is None:
            return None
        place = 16
    else:
        protocol = _ICMPV6
        segment = struct.pack("!BBHI", 1, 4, 0, 0) + packet[:_QUOTED_IPV6]
        place = 2
    segment = with_checksum(segment, place, destination + source + struct.pack("!II", len(segment), protocol))
    return struct.pack("!IHBB", 6 << 28, len(segment), protocol, _HOPS) + destination + source + segment


def _reset(segment: bytes) -> bytes | None:
    """RFC 9293: a reset is never answered, and its numbers match the segment that it answers."""
    if len(segment) < 20:
        return None
    source, destination, sequence, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", segment)
    if flags & _RST:
        return None
    if flags & _ACK:
        numbers = (acknowledged, 0, _RST)
    else:
        length = max(len(segment) - (offset >> 4) * 4, 0) + bool(flags & _SYN) + bool(flags & _FIN)
        numbers = (0, (sequence + length) & 0xFFFFFFFF, _RST | _ACK)
    return struct.pack("!HHIIBBHHH", destination, source, numbers[0], numbers[1], 5 << 4, numbers[2], 0, 0, 0)
