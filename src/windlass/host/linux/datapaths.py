"""Removes ports of the kernel datapath of Open vSwitch while ovs-vswitchd does not run."""

from __future__ import annotations

import errno
import struct
import sys

from windlass.host.linux import rtnetlink
from windlass.host.linux.netlink import Netlink, NetlinkError, as_text, attributes, ignoring, text

NAME = "ovs-system"  # the interface of the datapath that all bridges share
_NETLINK_GENERIC, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_HEADER = struct.Struct("=BBH")  # command, version, reserved
_DATAPATH = struct.Struct("=i")  # the index of the datapath's interface
_DELETE_PORT, _GET_PORT, _PORT_NAME = 2, 3, 3
_DELETE_DATAPATH = 2


def exists() -> bool:
    """This kernel has the datapath, or can load its module."""
    with Netlink(protocol=_NETLINK_GENERIC) as generic:
        return _family(generic, "ovs_datapath") is not None


def remove_port(netlink: Netlink, interface: str) -> None:
    """Delete an internal port, or return any other interface to the host. No error if there is no such port."""
    datapath = rtnetlink.link(netlink, NAME)
    if datapath is None:
        return
    with Netlink(protocol=_NETLINK_GENERIC) as generic:
        family = _family(generic, "ovs_vport")
        if family is None:
            return
        request = _HEADER.pack(_DELETE_PORT, 1, 0) + _DATAPATH.pack(datapath.index) + text(_PORT_NAME, interface)
        with ignoring(errno.ENODEV):
            generic.do(family, request)


def remove_if_unused(netlink: Netlink) -> None:
    """Delete the datapath, unless a bridge still has a port in it."""
    datapath = rtnetlink.link(netlink, NAME)
    if datapath is None:
        return
    of_datapath = _DATAPATH.pack(datapath.index)
    with Netlink(protocol=_NETLINK_GENERIC) as generic:
        ports, datapaths = _family(generic, "ovs_vport"), _family(generic, "ovs_datapath")
        if ports is None or datapaths is None:
            return
        found = generic.dump(ports, _HEADER.pack(_GET_PORT, 1, 0) + of_datapath)
        names = {as_text(attributes(body, _HEADER.size + _DATAPATH.size).get(_PORT_NAME, b"")) for body in found}
        if names <= {NAME}:
            generic.do(datapaths, _HEADER.pack(_DELETE_DATAPATH, 2, 0) + of_datapath)


def _family(generic: Netlink, name: str) -> int | None:
    try:
        found = generic.get(_NETLINK_GENERIC, _HEADER.pack(_GET_FAMILY, 1, 0) + text(_FAMILY_NAME, name))
    except NetlinkError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return int.from_bytes(attributes(found, _HEADER.size)[_FAMILY_ID], sys.byteorder)
