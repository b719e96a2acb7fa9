"""The addresses and ports of a packet that the switch sent to the agent. Pure."""

from __future__ import annotations

import struct
from ipaddress import ip_address

from msgspec import Struct

from windlass.model.families import IPAddress
from windlass.model.services import Protocol

_ETHERNET = 14
_IPV4, _IPV6 = 0x0800, 0x86DD
_NUMBERS = {protocol.value: protocol for protocol in Protocol}


class PacketHeaders(Struct, frozen=True, gc=False):
    source: IPAddress
    destination: IPAddress
    protocol: Protocol | None  # None: one without ports
    source_port: int | None = None
    port: int | None = None


def packet_headers(frame: bytes) -> PacketHeaders | None:
    """None for what is not IP, or too short."""
    if len(frame) < _ETHERNET:
        return None
    (ethertype,) = struct.unpack_from("!H", frame, 12)
    packet = frame[_ETHERNET:]
    if ethertype == _IPV4 and len(packet) >= 20:
        length, number = (packet[0] & 0xF) * 4, packet[9]
        is_fragment = bool(struct.unpack_from("!H", packet, 6)[0] & 0x1FFF)
        source, destination = packet[12:16], packet[16:20]
    elif ethertype == _IPV6 and len(packet) >= 40:
        length, number, is_fragment = 40, packet[6], False
        source, destination = packet[8:24], packet[24:40]
    else:
        return None
    ends, protocol = (ip_address(source), ip_address(destination)), _NUMBERS.get(number)
    if protocol is None or is_fragment or len(packet) < length + 4:
        return PacketHeaders(*ends, protocol)
    return PacketHeaders(*ends, protocol, *struct.unpack_from("!HH", packet, length))
