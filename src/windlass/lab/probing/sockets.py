"""Sockets in other network namespaces, for the servers and clients of the lab."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from windlass.host.linux import namespaces
from windlass.model.families import Family, IPAddress, family_of

FAMILY = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
LARGEST_PACKET = 65536

_IP_PKTINFO = 8
SCTP_RTOINFO, SCTP_NODELAY = 0, 3
Ancillary = list[tuple[int, int, bytes]]


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet that a raw socket received: addresses and payload of the IP packet."""

    source: IPAddress
    destination: IPAddress
    payload: bytes


def opened(namespace: str, family: Family, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
    """Opens a socket in the namespace. It stays there when this thread leaves the namespace."""
    with namespaces.entered(namespaces.path_of(namespace)):
        sock = socket.socket(FAMILY[family], kind, protocol)
    sock.setblocking(False)
    return sock


def raw(namespace: str, family: Family, protocol: int, on_packet: Callable[[Packet], None]) -> socket.socket:
    """A raw socket that calls `on_packet` for each packet until `closed`."""
    sock = opened(namespace, family, socket.SOCK_RAW, protocol)
    if family is Family.IPV6:  # IPv4 delivers the header with the packet
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)

    def read() -> None:
        with suppress(BlockingIOError):
            while True:
                data, ancillary, _, peer = sock.recvmsg(LARGEST_PACKET, 128)
                on_packet(_packet(data, ancillary, peer[0]))

    asyncio.get_running_loop().add_reader(sock, read)
    return sock


def closed(sock: socket.socket) -> None:
    asyncio.get_running_loop().remove_reader(sock)
    sock.close()


def sent_from(address: IPAddress) -> Ancillary:
    """For sendmsg: sets the source address of the answer, since a Node has several."""
    if isinstance(address, IPv6Address):
        return [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, address.packed + bytes(4))]
    return [(socket.IPPROTO_IP, _IP_PKTINFO, bytes(4) + address.packed + bytes(4))]


def asked_address(ancillary: Ancillary) -> IPAddress:
    """The destination address of a packet from an IPv6 socket with RECVPKTINFO."""
    return next(
        IPv6Address(info[:16])
        for level, kind, info in ancillary
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO)
    )


def plain(address: str) -> IPAddress:
    """Removes the scope of a link-local address, and unmaps the IPv4 client of a dual-stack socket."""
    parsed = ip_address(address.partition("%")[0])
    return (parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None) or parsed


def local_address(sock: socket.socket) -> IPAddress:
    return plain(sock.getsockname()[0])


def quoted(sock: socket.socket) -> Iterator[bytes]:
    """The payloads of the IP packets in the socket's queue of ICMP errors."""
    with suppress(BlockingIOError):
        while True:
            yield sock.recvmsg(LARGEST_PACKET, 512, socket.MSG_ERRQUEUE)[0]


def kernel_has_sctp() -> bool:
    """Whether its module is loaded. Then it also answers packets that are for raw sockets: no such endpoint."""
    return Path("/proc/net/sctp").exists()


def payload_of(packet: bytes, family: Family) -> bytes:
    """A raw socket receives the IP header for IPv4, and not for IPv6."""
    return packet[(packet[0] & 0xF) * 4 :] if family is Family.IPV4 else packet


def _packet(data: bytes, ancillary: Ancillary, peer: str) -> Packet:
    source = plain(peer)
    family = family_of(source)
    destination = ip_address(data[16:20]) if family is Family.IPV4 else asked_address(ancillary)
    return Packet(source, destination, payload_of(data, family))


def attach_filter(sock: socket.socket, program: list[tuple[int, int, int, int]]) -> None:
    """Attaches a classic BPF program: the socket receives only what it accepts."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(code)))


_SO_ATTACH_FILTER = 26
