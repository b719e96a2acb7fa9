"""Keeps incoming packets of a port of the userspace datapath away from the kernel.

That datapath reads its ports through packet sockets, and the kernel gets the same packets: it would answer ARP for a
Pod's gateway, and deliver packets to the host twice. A filter at the clsact hook drops everything after the packet
sockets. It disappears together with its interface.
"""

from __future__ import annotations

import errno
import socket
import struct

from windlass.host.linux.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    Netlink,
    NetlinkError,
    attribute,
    attributes,
    nested,
    number,
    text,
)

_RTM_NEWQDISC, _RTM_DELQDISC, _RTM_NEWTFILTER, _RTM_DELTFILTER, _RTM_GETTFILTER = 36, 37, 44, 45, 46
_TCA_KIND, _TCA_OPTIONS, _TCA_BPF_OPS_LEN, _TCA_BPF_OPS, _TCA_BPF_FLAGS = 1, 2, 4, 5, 8
_CLSACT_HANDLE, _CLSACT, _INGRESS, _EGRESS = 0xFFFF0000, 0xFFFFFFF1, 0xFFFFFFF2, 0xFFFFFFF3
_DIRECT_ACTION = 1  # the result of the program is the verdict
_PREFERENCE = 87
_FILTER = struct.Struct("=BxxxiIII")  # family, index, handle, parent, info
# One instruction of classic BPF, "return TC_ACT_SHOT". It needs no further kernel module (matchall, gact), no compiler
# and no bpf() call, and it is recognised in a dump.
_DROP_ALL = struct.pack("=HBBI", 0x06, 0, 0, 2)


def is_closed(netlink: Netlink, index: int) -> bool:
    filters = netlink.dump(_RTM_GETTFILTER, _FILTER.pack(0, index, 0, _INGRESS, 0))
    options = (attributes(body, _FILTER.size).get(_TCA_OPTIONS, b"") for body in filters)
    return any(attributes(option).get(_TCA_BPF_OPS) == _DROP_ALL for option in options)


def close(netlink: Netlink, index: int) -> None:
    clsact = _FILTER.pack(0, index, _CLSACT_HANDLE, _CLSACT, 0) + text(_TCA_KIND, "clsact")
    program = nested(
        _TCA_OPTIONS,
        attribute(_TCA_BPF_OPS_LEN, struct.pack("=H", len(_DROP_ALL) // 8)),
        attribute(_TCA_BPF_OPS, _DROP_ALL),
        number(_TCA_BPF_FLAGS, _DIRECT_ACTION),
    )
    for kind, body in ((_RTM_NEWQDISC, clsact), (_RTM_NEWTFILTER, _drop_filter(index) + program)):
        try:
            netlink.do(kind, body, NLM_F_CREATE | NLM_F_EXCL)
        except NetlinkError as error:
            if error.errno != errno.EEXIST:
                raise


def open_again(netlink: Netlink, index: int) -> None:
    """Remove the filter. The clsact hook stays: others may use it, and without filters it does nothing."""
    try:
        netlink.do(_RTM_DELTFILTER, _drop_filter(index))
    except NetlinkError as error:
        # EINVAL: this interface has no clsact hook.
        if error.errno not in {errno.ENOENT, errno.EINVAL, errno.ENODEV}:
            raise


def remove_hook(netlink: Netlink, index: int) -> None:
    """Remove the clsact hook, unless it has filters of others."""
    for parent in (_INGRESS, _EGRESS):
        if any(True for _ in netlink.dump(_RTM_GETTFILTER, _FILTER.pack(0, index, 0, parent, 0))):
            return
    try:
        netlink.do(_RTM_DELQDISC, _FILTER.pack(0, index, _CLSACT_HANDLE, _CLSACT, 0) + text(_TCA_KIND, "clsact"))
    except NetlinkError as error:
        if error.errno not in {errno.ENOENT, errno.EINVAL, errno.ENODEV}:
            raise


def _drop_filter(index: int) -> bytes:
    every_protocol = socket.htons(0x0003)
    return _FILTER.pack(0, index, 1, _INGRESS, _PREFERENCE << 16 | every_protocol) + text(_TCA_KIND, "bpf")
