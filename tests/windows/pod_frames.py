"""Opens a Pod's TAP device as the switch does, and prints its state and the sender of the Pod's first ARP request.

It runs on Linux, in the Pod's namespace. Its argument is the address that the Pod then sends a packet to.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

TUNSETIFF, TAP_WITHOUT_HEADER = 0x400454CA, 0x1002
ARP = bytes.fromhex("0806")

tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"eth0", TAP_WITHOUT_HEADER))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.sendto(b"", (sys.argv[1], 9))
while (frame := os.read(tap, 2000))[12:14] != ARP:
    pass
state = Path("/sys/class/net/eth0/operstate").read_text().strip()
sys.stdout.write(f"{state} {frame[6:12].hex(':')}\n")
