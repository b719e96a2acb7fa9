"""Empty UDP datagrams and TCP segments as frames. Pure."""

from __future__ import annotations

import struct
from ipaddress import ip_address

from windlass.switch.checksums import with_checksum

_IPV4, _IPV6 = 0x0800, 0x86DD
_TCP, _UDP = 6, 17
_SYN = 0x02
_HOPS = 64


def empty_datagram(source: str, source_port: int, destination: str, destination_port: int) -> bytes:
    ends = ip_address(source).packed + ip_address(destination).packed
    datagram = struct.pack("!HHHH", source_port, destination_port, 8, 0)
    datagram = with_checksum(datagram, 6, ends + struct.pack("!II", len(datagram), _UDP))
    if datagram.endswith(b"\0\0"):  # UDP sends this checksum as its complement: zero means that there is none
        datagram = datagram[:6] + b"\xff\xff"
    return _frame(ends, _UDP, datagram)


def empty_segment(source: str, source_port: int, destination: str, destination_port: int) -> bytes:
    """A SYN: connection tracking lets it pass for an open connection and changes nothing. The kernel would ignore other
    segments without the right sequence numbers, and with them the actions on the connection.
    """
    ends = ip_address(source).packed + ip_address(destination).packed
    segment = struct.pack("!HH8xBB6x", source_port, destination_port, 5 << 4, _SYN)
    return _frame(ends, _TCP, with_checksum(segment, 16, ends + struct.pack("!II", len(segment), _TCP)))


def _frame(ends: bytes, protocol: int, payload: bytes) -> bytes:
    if len(ends) == 8:
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, _HOPS, protocol, 0) + ends
        return struct.pack("!12xH", _IPV4) + with_checksum(header, 10, b"") + payload
    header = struct.pack("!IHBB", 6 << 28, len(payload), protocol, _HOPS) + ends
    return struct.pack("!12xH", _IPV6) + header + payload
