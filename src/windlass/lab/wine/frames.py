"""Carries frames between an interface of this namespace and a port of Open vSwitch's dummy datapath.

Such a port sends and receives frames on a TCP connection, each preceded by its length in two bytes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from contextlib import suppress

from windlass.lab.wine.pipe_relays import kept

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_ETH_P_ALL = 0x0003
_LENGTH = struct.Struct("!H")
_LARGEST_FRAME = 1 << 16
_FRAMES_AT_ONCE = 64
# The queue to the switch, in bytes. When it is full, frames are dropped, as by a NIC. The switch takes a few hundred
# frames a second, so a longer queue would delay packets beyond the timeouts of clients.
_FULL = 1 << 15


def open_tap(name: str) -> int:
    """Opens or creates the TAP device of this name. Returns a file descriptor."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


def open_nic(name: str) -> int:
    """Opens a packet socket for the frames that arrive at the NIC. Returns a file descriptor."""
    nic = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(_ETH_P_ALL))
    nic.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    nic.bind((name, 0))
    return nic.detach()


class Wire:
    """Connects one interface. The switch connects to its `address`."""

    def __init__(self, device: int, listener: socket.socket) -> None:
        host, port = listener.getsockname()
        self.address = f"tcp:{host}:{port}"  # as Open vSwitch writes it
        self._device = device
        self._server: asyncio.Server | None = None
        self._switch: asyncio.StreamWriter | None = None

    @classmethod
    async def open(cls, device: int) -> Wire:
        listener = socket.create_server(("127.0.0.1", 0))
        wire = cls(device, listener)
        wire._server = await asyncio.start_server(kept(wire._connected), sock=listener)
        asyncio.get_running_loop().add_reader(device, wire._from_device)
        return wire

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._device)
        os.close(self._device)
        if self._server:
            self._server.close()
        if self._switch:
            self._switch.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._switch = writer
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _FULL)
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                frame = await reader.readexactly(length)
                with suppress(OSError):  # the interface is down
                    os.write(self._device, frame)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the switch ended, or the port was deleted
        finally:
            if self._switch is writer:
                self._switch = None
            writer.close()

    def _from_device(self) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame = os.read(self._device, _LARGEST_FRAME)
            except OSError:  # no more frames for now, or the interface is down
                return
            if self._switch and self._switch.transport.get_write_buffer_size() < _FULL:
                self._switch.write(_LENGTH.pack(len(frame)) + frame)
