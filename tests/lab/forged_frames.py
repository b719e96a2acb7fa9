"""Ethernet frames that a test builds byte by byte, sends from one machine of the lab and captures on others."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from itertools import count
from typing import TYPE_CHECKING

from windlass.host.linux import namespaces
from windlass.lab.probing.packets import TCP, UDP, internet_checksum, udp_datagram
from windlass.lab.sandbox.time_limits import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from windlass.model.families import IPAddress

IPV4, IPV6, ARP, VLAN, SERVICE_VLAN = 0x0800, 0x86DD, 0x0806, 0x8100, 0x88A8
HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION_OPTIONS = 0, 43, 44, 60  # IPv6 extension headers
GENEVE, VXLAN = 6081, 4789
ROUNDS = 3
VIRTUAL_MAC = "aa:bb:cc:dd:ee:ff"
_EVERY_PROTOCOL, _OUTGOING = 3, 4
_numbers = count(1)


def token() -> bytes:
    """A payload that no other packet has."""
    return b"forged-%08d-" % next(_numbers)


def ethernet(to: str, source: str, kind: int, payload: bytes, *tags: int) -> bytes:
    """`tags`: the types of VLAN tags before the payload, the outermost first."""
    macs = bytes.fromhex(to.replace(":", "") + source.replace(":", ""))
    return macs + b"".join(struct.pack("!HH", tag, 100) for tag in tags) + struct.pack("!H", kind) + payload


def ip_type(address: IPAddress | str) -> int:
    return IPV4 if ip_address(str(address)).version == 4 else IPV6


def ip_packet(source: str, to: str, protocol: int, payload: bytes, *, identity: int = 0, fragment: int = 0) -> bytes:
    """`fragment`: the second word of an IPv4 header's fragment fields (flags and offset in units of 8 bytes)."""
    first, second = ip_address(source), ip_address(to)
    if not isinstance(first, IPv4Address):
        return struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64) + first.packed + second.packed + payload
    ports = first.packed + second.packed
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), identity, fragment, 64, protocol, 0) + ports
    return header[:10] + struct.pack("!H", internet_checksum(header)) + header[12:] + payload


def udp(source: str, to: str, ports: tuple[int, int], payload: bytes) -> bytes:
    """A whole IP packet."""
    return ip_packet(source, to, UDP, udp_bytes(source, to, ports, payload))


def udp_bytes(source: str, to: str, ports: tuple[int, int], payload: bytes) -> bytes:
    return udp_datagram(ip_address(source), ip_address(to), ports, payload)


def tunnelled(port: int, inner: bytes) -> bytes:
    """The payload of a tunnel's UDP datagram: the header of Geneve or VXLAN, and the inner frame."""
    header = struct.pack("!BBHI", 0, 0, 0x6558, 0) if port == GENEVE else struct.pack("!II", 0x08000000, 0)
    return header + ethernet(VIRTUAL_MAC, "0a:58:01:02:03:04", ip_type_of_packet(inner), inner)


def ip_type_of_packet(packet: bytes) -> int:
    return IPV4 if packet[0] >> 4 == 4 else IPV6


def extension(kind: int, following: int, payload: bytes) -> bytes:
    """One IPv6 extension header of 8 bytes (or a fragment header of a whole packet) before the payload."""
    match kind:
        case 44:
            header = struct.pack("!BBHI", following, 0, 0, next(_numbers))
        case 43:  # of an unknown type, with no segment left: to be ignored
            header = struct.pack("!BBBBI", following, 0, 253, 0, 0)
        case _:  # PadN
            header = struct.pack("!BBBB4x", following, 0, 1, 4)
    return header + payload


def fragments(source: str, to: str, protocol: int, payload: bytes, size: int) -> list[bytes]:
    """The IP packets of this payload in fragments of so many bytes (a multiple of 8)."""
    identity = next(_numbers)
    pieces = [(start, payload[start : start + size]) for start in range(0, len(payload), size)]
    found = []
    for start, piece in pieces:
        more = start + size < len(payload)
        if ip_address(source).version == 4:
            field = (0x2000 if more else 0) | start // 8
            found.append(ip_packet(source, to, protocol, piece, identity=identity, fragment=field))
        else:
            header = struct.pack("!BBHI", protocol, 0, start | more, identity)
            found.append(ip_packet(source, to, FRAGMENT, header + piece))
    return found


def tcp_syn(source: str, to: str, ports: tuple[int, int], payload: bytes) -> bytes:
    def segment(checksum: int) -> bytes:
        return struct.pack("!HHIIBBHHH", *ports, 7, 0, 5 << 4, 0x02, 64240, checksum, 0) + payload

    ends = ip_address(source).packed + ip_address(to).packed
    checksum = internet_checksum(ends + struct.pack("!IHH", len(segment(0)), 0, TCP) + segment(0))
    return ip_packet(source, to, TCP, segment(checksum))


@dataclass(frozen=True)
class Place:
    """An interface of a machine."""

    namespace: str
    interface: str = "eth0"


@contextmanager
def _opened(place: Place, protocol: int) -> Iterator[socket.socket]:
    with namespaces.entered(namespaces.path_of(place.namespace)):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with made:
        made.bind((place.interface, protocol))
        made.setblocking(False)
        yield made


def mac_of(place: Place) -> str:
    with _opened(place, 0) as found:
        return ":".join(f"{byte:02x}" for byte in found.getsockname()[4])


async def arrived(
    sender: Place,
    frames: Sequence[bytes],
    wanted: bytes,
    at: Sequence[Place],
    control: tuple[Callable[[bytes], bytes], Place],
) -> bool:
    """Whether a frame with the wanted bytes arrives at any of the places.

    `control` makes an honest frame with some payload, and says where it must arrive. One is sent after each round of
    frames, by the same way: what has not arrived when the last of them has never will.
    """
    honest, control_at = control
    with ExitStack() as opened:
        speaker = opened.enter_context(_opened(sender, 0))
        watches = [opened.enter_context(_opened(place, _EVERY_PROTOCOL)) for place in at]
        listener = opened.enter_context(_opened(control_at, _EVERY_PROTOCOL))
        for _ in range(ROUNDS):
            for frame in frames:
                speaker.send(frame)
            await _answered(speaker, honest, listener)
        return any(wanted in frame for watch in watches for frame in _frames(watch))


async def _answered(speaker: socket.socket, honest: Callable[[bytes], bytes], listener: socket.socket) -> None:
    sign = token()
    async with asyncio.timeout(seconds(10)):
        while True:
            speaker.send(honest(sign))
            try:
                async with asyncio.timeout(seconds(0.5)):
                    while sign not in await asyncio.get_running_loop().sock_recv(listener, 65535):
                        pass
                    return
            except TimeoutError:
                continue


def _frames(watch: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            frame, address = watch.recvfrom(65535)
        except BlockingIOError:
            return
        if address[2] != _OUTGOING:
            yield frame
