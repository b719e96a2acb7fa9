"""The ports of Open vSwitch's datapath in the kernel, for when no ovs-vswitchd runs that could remove them."""

from __future__ import annotations

import errno
import struct
import sys

from windlass.host.linux import rtnetlink
from windlass.host.linux.netlink import Netlink, NetlinkError, attributes, text

NAME = "ovs-system"  # the interface of the one datapath that all bridges in the kernel share
_NETLINK_GENERIC, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_HEADER = struct.Struct("=BBH")  # command, version, reserved
_DATAPATH = struct.Struct("=i")  # the index of the datapath's interface
_DELETE_PORT, _PORT_NAME = 2, 3


def exists() -> bool:
    """Has this kernel such a datapath, or can it load one?"""
    with Netlink(protocol=_NETLINK_GENERIC) as generic:
        return _family(generic, "ovs_datapath") is not None


def remove_port(netlink: Netlink, interface: str) -> None:
    """An internal port vanishes, any other interface is the host's own again. None is fine."""
    datapath = rtnetlink.link(netlink, NAME)
    if datapath is None:
        return
    with Netlink(protocol=_NETLINK_GENERIC) as generic:
        family = _family(generic, "ovs_vport")
        if family is None:
            return
        request = _HEADER.pack(_DELETE_PORT, 1, 0) + _DATAPATH.pack(datapath.index) + text(_PORT_NAME, interface)
        try:
            generic.do(family, request)
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise


def _family(generic: Netlink, name: str) -> int | None:
    try:
        found = generic.get(_NETLINK_GENERIC, _HEADER.pack(_GET_FAMILY, 1, 0) + text(_FAMILY_NAME, name))
    except NetlinkError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return int.from_bytes(attributes(found, _HEADER.size)[_FAMILY_ID], sys.byteorder)
