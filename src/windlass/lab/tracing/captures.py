"""Captures TCP segments on all interfaces of all machines, also inside tunnels. `journeys` puts them together."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address

from windlass.host.linux import namespaces
from windlass.lab.probing.packets import TCP, UDP
from windlass.lab.tracing.megaflows import Ends, PacketHeader

SYN, ACK = 0x02, 0x10
_TUNNELS = {6081: "geneve", 4789: "vxlan"}  # by UDP port; both headers have 8 bytes without options
_EVERY_PROTOCOL = 0x0003
_SO_TIMESTAMPNS = 35
_LARGEST = 65536


@dataclass(frozen=True, slots=True)
class CapturedSegment:
    """A TCP segment with its header; `outer` is the header of the tunnel packet around it."""

    header: PacketHeader
    sequence: int
    acknowledged: int
    flags: int
    length: int
    outer: PacketHeader | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    machine: str  # as in RunningCluster.places: node/win-1, pod/default/web-0, externalHost/client
    interface: str
    leaving: bool  # sent by the machine's own network stack; otherwise received
    segment: CapturedSegment
    time: int  # nanoseconds


@contextmanager
def capturing(machines: Iterable[tuple[str, str]]) -> Iterator[list[Capture]]:
    """All TCP segments in each (namespace, machine) within the block, in the order in which they were read.

    The kernel starts to record times a moment after it was asked to: the first packets must be unimportant ones.
    """
    seen: list[Capture] = []
    with ExitStack() as closing:
        for namespace, machine in machines:
            with namespaces.entered(namespaces.path_of(namespace)):
                sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL))
            closing.callback(sock.close)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

            def read(sock: socket.socket = sock, machine: str = machine) -> None:
                with suppress(BlockingIOError):
                    while True:
                        seen.extend(_received(sock, machine))

            loop = asyncio.get_running_loop()
            loop.add_reader(sock, read)
            closing.callback(loop.remove_reader, sock)
        yield seen


def segment_of(frame: bytes) -> CapturedSegment | None:
    """The TCP segment in an Ethernet frame, or in a tunnel packet inside it."""
    found = _transport(frame)
    if found is None:
        return None
    number, source, destination, payload = found
    if number == UDP and len(payload) >= 16:
        ports = struct.unpack_from("!HH", payload)
        if ports[1] not in _TUNNELS:
            return None
        options = (payload[8] & 0x3F) * 4 if _TUNNELS[ports[1]] == "geneve" else 0
        inner = segment_of(payload[16 + options :])
        return inner and replace(inner, outer=_header(frame, source, destination, ports))
    if number != TCP or len(payload) < 20:
        return None
    ports = struct.unpack_from("!HH", payload)
    sequence, acknowledged = struct.unpack_from("!II", payload, 4)
    header = _header(frame, source, destination, ports)
    return CapturedSegment(header, sequence, acknowledged, payload[13] & 0x3F, len(payload) - (payload[12] >> 4) * 4)


def _header(frame: bytes, source: bytes, destination: bytes, ports: tuple[int, int]) -> PacketHeader:
    ends = Ends(ip_address(source), ports[0], ip_address(destination), ports[1])
    return PacketHeader(ends, eth_source=frame[6:12].hex(":"), eth_destination=frame[:6].hex(":"))


def _transport(frame: bytes) -> tuple[int, bytes, bytes, bytes] | None:
    """Protocol, source, destination and payload of an IP packet, without the padding of a short frame."""
    kind, packet = frame[12:14], frame[14:]
    if kind == b"\x08\x00" and len(packet) >= 20:
        header, (length,) = (packet[0] & 0xF) * 4, struct.unpack_from("!H", packet, 2)
        return packet[9], packet[12:16], packet[16:20], packet[header:length]
    if kind == b"\x86\xdd" and len(packet) >= 40:
        (length,) = struct.unpack_from("!H", packet, 4)
        return packet[6], packet[8:24], packet[24:40], packet[40 : 40 + length]
    return None


def _received(sock: socket.socket, machine: str) -> Iterator[Capture]:
    frame, ancillary, _, (interface, _, kind, *_) = sock.recvmsg(_LARGEST, 128)
    segment = segment_of(frame)
    if segment is None:
        return
    for level, what, value in ancillary:
        if (level, what) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("=qq", value[:16])
            time = seconds * 1_000_000_000 + nanoseconds
            yield Capture(machine, interface, kind == socket.PACKET_OUTGOING, segment, time)
