"""Deletes conntrack entries of the host for UDP flows whose NAT is out of date.

A UDP flow keeps the translation of its first packet, or none. Without the deletion, a client that keeps sending would
not reach a NodePort that was added meanwhile, and would not be refused by one that was removed.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection
from ipaddress import ip_address

from windlass.host.linux.netlink import Netlink, attribute, attributes, nested, number
from windlass.host.linux.rtnetlink import unless_absent
from windlass.model.families import Family, IPAddress
from windlass.model.services import Protocol

_GET, _DELETE = 1 << 8 | 1, 1 << 8 | 2
_HEADER = struct.Struct("=BxH")  # family, resource
_CTA_TUPLE_ORIG, _CTA_ZONE, _CTA_FILTER, _CTA_FILTER_ORIG_FLAGS = 1, 18, 25, 1
_CTA_TUPLE_IP, _CTA_TUPLE_PROTO, _CTA_PROTO_NUM, _CTA_PROTO_DST_PORT = 1, 2, 1, 3
_CTA_IP_DST = {Family.IPV4: 2, Family.IPV6: 4}
_BY_PROTOCOL = 1 << 3
_UDP = bytes((Protocol.UDP,))
_FAMILIES = {Family.IPV4: int(socket.AF_INET), Family.IPV6: int(socket.AF_INET6)}

Target = tuple[IPAddress | None, int]  # the address, or None for any address; the port


def forget_udp(netfilter: Netlink, family: Family, targets: Collection[Target]) -> None:
    """Delete the UDP flows of the host to these targets. The kernel searches its whole table, which takes about 10 ms.

    The flows are listed and then deleted one by one: a kernel without support for the filter would delete all flows.
    """
    header = _HEADER.pack(_FAMILIES[family], 0)
    asked = nested(_CTA_TUPLE_ORIG, nested(_CTA_TUPLE_PROTO, attribute(_CTA_PROTO_NUM, _UDP)))
    asked += nested(_CTA_FILTER, number(_CTA_FILTER_ORIG_FLAGS, _BY_PROTOCOL))
    for body in list(netfilter.dump(_GET, header + asked)):
        flow = attributes(body, _HEADER.size)
        # Flows in zones belong to the switch or to others.
        if _CTA_ZONE not in flow and _is_to(flow.get(_CTA_TUPLE_ORIG, b""), family, targets):
            with unless_absent():
                netfilter.do(_DELETE, header + nested(_CTA_TUPLE_ORIG, flow[_CTA_TUPLE_ORIG]))


def _is_to(direction: bytes, family: Family, targets: Collection[Target]) -> bool:
    parts = attributes(direction)
    protocol = attributes(parts.get(_CTA_TUPLE_PROTO, b""))
    destination = attributes(parts.get(_CTA_TUPLE_IP, b"")).get(_CTA_IP_DST[family])
    if protocol.get(_CTA_PROTO_NUM) != _UDP or destination is None:
        return False
    port = int.from_bytes(protocol.get(_CTA_PROTO_DST_PORT, b""))
    return (None, port) in targets or (ip_address(destination), port) in targets
