"""Keeps incoming packets of a port of the userspace datapath away from the kernel.

That datapath reads its ports through packet sockets, and the kernel gets the same packets: it would answer ARP for a
Pod's gateway, and deliver packets to the host twice. A filter drops everything after the packet sockets.
"""

from __future__ import annotations

from windlass.host.linux import packet_filters
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.packet_filters import Hook, PacketFilter, program

_RETURN, _DROP = 0x06, 2
_DROP_ALL = PacketFilter(Hook.INGRESS, preference=87, program=program((_RETURN, 0, 0, _DROP)))


def is_closed(netlink: Netlink, index: int) -> bool:
    return packet_filters.is_there(netlink, index, _DROP_ALL)


def close(netlink: Netlink, index: int) -> None:
    packet_filters.put(netlink, index, _DROP_ALL)


def open_again(netlink: Netlink, index: int) -> None:
    packet_filters.remove(netlink, index, _DROP_ALL)
