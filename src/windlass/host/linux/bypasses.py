"""Connects the NIC with the bridge interface past the switch while the NIC becomes a port.

On the kernel datapath the host receives nothing from a port, so its addresses must be on the bridge interface when the
NIC becomes a port. But until then the bridge interface is not connected to the network. Two filters connect it:

- Packets that the bridge interface sends leave by the NIC.
- ARP and Neighbour Advertisements that arrive at the NIC are copied to the bridge interface, so that it can resolve its
  neighbours. All other packets arrive at the NIC, and at the bridge interface once the NIC is a port.

So the Node answers at every moment, even if the agent is killed in between, provided that routes lead to the bridge
interface and both interfaces have the addresses before the NIC becomes a port.
"""

from __future__ import annotations

from windlass.host.linux import packet_filters
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.packet_filters import Hook, PacketFilter, Sending, program

_LOAD_BYTE, _LOAD_SHORT, _IF_EQUAL, _RETURN = 0x30, 0x28, 0x15, 0x06
_NO, _YES = 0, 0xFFFFFFFF
_TYPE, _NEXT_HEADER, _ICMP_TYPE = 12, 14 + 6, 14 + 40
_ARP, _IPV6, _ICMPV6, _ADVERTISEMENT = 0x0806, 0x86DD, 58, 136

_PREFERENCE = 86
_OUT = PacketFilter(Hook.EGRESS, _PREFERENCE, program((_RETURN, 0, 0, _YES)), Sending.REDIRECTED_OUT)
_NEIGHBOURS = PacketFilter(
    Hook.INGRESS,
    _PREFERENCE,
    program(
        (_LOAD_SHORT, 0, 0, _TYPE),
        (_IF_EQUAL, 5, 0, _ARP),
        (_IF_EQUAL, 0, 5, _IPV6),
        (_LOAD_BYTE, 0, 0, _NEXT_HEADER),
        (_IF_EQUAL, 0, 3, _ICMPV6),
        (_LOAD_BYTE, 0, 0, _ICMP_TYPE),
        (_IF_EQUAL, 0, 1, _ADVERTISEMENT),
        (_RETURN, 0, 0, _YES),
        (_RETURN, 0, 0, _NO),
    ),
    Sending.COPIED_IN,
)


def begin(netlink: Netlink, uplink: int, bridge: int) -> None:
    """Takes the indices of both interfaces. The bridge interface must be up and have the NIC's MAC."""
    packet_filters.put(netlink, bridge, _OUT, uplink)
    packet_filters.put(netlink, uplink, _NEIGHBOURS, bridge)


def end(netlink: Netlink, uplink: int, bridge: int | None) -> None:
    """Remove both filters. That of a bridge interface disappears with the interface."""
    if bridge is not None:
        packet_filters.remove(netlink, bridge, _OUT)
    packet_filters.remove(netlink, uplink, _NEIGHBOURS)
