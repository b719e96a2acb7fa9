"""The host's connection tracking: forgetting UDP flows whose translation is out of date.

A flow that goes on keeps the translation that its first packet got, or that it got none: so the NodePort that comes
later would never be seen by a client that does not stop to ask, nor the one that has gone be refused.
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

Target = tuple[IPAddress | None, int]  # a port; of this address, or else of any


def forget_udp(netfilter: Netlink, family: Family, targets: Collection[Target]) -> None:
    """The host's UDP flows to these. The kernel looks through its whole table for them, which takes it 10 ms.

    They are asked for, and then deleted one by one: a kernel that does not know the filter would delete all there are.
    """
    header = _HEADER.pack(_FAMILIES[family], 0)
    asked = nested(_CTA_TUPLE_ORIG, nested(_CTA_TUPLE_PROTO, attribute(_CTA_PROTO_NUM, _UDP)))
    asked += nested(_CTA_FILTER, number(_CTA_FILTER_ORIG_FLAGS, _BY_PROTOCOL))
    for body in list(netfilter.dump(_GET, header + asked)):
        flow = attributes(body, _HEADER.size)
        # The zones are the switch's, and others'.
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
