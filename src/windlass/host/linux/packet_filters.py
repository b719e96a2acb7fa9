"""Filters of packets at an interface: traffic control at its clsact hook, before the kernel and a switch get a packet.

A filter is a program of classic BPF: it needs no compiler and no bpf() call, and it is recognised in a dump. Filters
disappear together with their interface.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

from windlass.host.linux.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    Netlink,
    attribute,
    attributes,
    ignoring,
    nested,
    number,
    text,
)

_RTM_NEWQDISC, _RTM_DELQDISC, _RTM_NEWTFILTER, _RTM_DELTFILTER, _RTM_GETTFILTER = 36, 37, 44, 45, 46
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_ACT, _TCA_BPF_OPS_LEN, _TCA_BPF_OPS, _TCA_BPF_FLAGS, _TCA_BPF_FLAGS_GEN = 1, 4, 5, 8, 9
_TCA_ACT_KIND, _TCA_ACT_OPTIONS, _TCA_MIRRED_PARMS = 1, 2, 2
_CLSACT_HANDLE, _CLSACT = 0xFFFF0000, 0xFFFFFFF1
_DIRECT_ACTION = 1  # the result of the program is the verdict
_SKIP_HARDWARE = 1
_EVERY_PROTOCOL = socket.htons(0x0003)
_FILTER = struct.Struct("=BxxxiIII")  # family, index, handle, parent, info
_MIRRED = struct.Struct("=IIiiiiI")  # index, capabilities, verdict, references, bindings, direction, interface
_PIPE, _STOLEN = 3, 4
_INSTRUCTION = struct.Struct("=HBBI")
_GONE = {errno.ENOENT, errno.EINVAL, errno.ENODEV}  # EINVAL: this interface has no clsact hook


class Hook(IntEnum):
    INGRESS = 0xFFFFFFF2
    EGRESS = 0xFFFFFFF3


class Sending(IntEnum):
    """What happens to a packet that a program accepts."""

    REDIRECTED_OUT = 1  # another interface sends it
    COPIED_IN = 4  # another interface receives it, too


@dataclass(frozen=True, slots=True)
class PacketFilter:
    hook: Hook
    preference: int  # a lower one comes first
    program: bytes
    sending: Sending | None = None  # None: the result of the program is the verdict


def program(*instructions: tuple[int, int, int, int]) -> bytes:
    """A program of instructions: code, jump if true, jump if false, operand."""
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in instructions)


def is_there(netlink: Netlink, index: int, wanted: PacketFilter, target: int = 0) -> bool:
    """target: the interface that it sends packets to."""
    filters = netlink.dump(_RTM_GETTFILTER, _FILTER.pack(0, index, 0, wanted.hook, 0))
    options = [attributes(attributes(body, _FILTER.size).get(_TCA_OPTIONS, b"")) for body in filters]
    return any(
        option.get(_TCA_BPF_OPS) == wanted.program
        and (wanted.sending is None or _sending(option) == (wanted.sending, target))
        for option in options
    )


def put(netlink: Netlink, index: int, wanted: PacketFilter, target: int = 0) -> None:
    if is_there(netlink, index, wanted, target):
        return
    remove(netlink, index, wanted)  # an old filter may send to an interface that was replaced
    clsact = _FILTER.pack(0, index, _CLSACT_HANDLE, _CLSACT, 0) + text(_TCA_KIND, "clsact")
    with ignoring(errno.EEXIST):
        netlink.do(_RTM_NEWQDISC, clsact, NLM_F_CREATE | NLM_F_EXCL)
    size = attribute(_TCA_BPF_OPS_LEN, struct.pack("=H", len(wanted.program) // _INSTRUCTION.size))
    options = [size, attribute(_TCA_BPF_OPS, wanted.program), number(_TCA_BPF_FLAGS_GEN, _SKIP_HARDWARE)]
    if wanted.sending is None:
        options.append(number(_TCA_BPF_FLAGS, _DIRECT_ACTION))
    else:
        options.append(nested(_TCA_BPF_ACT, _action(wanted.sending, target)))
    netlink.do(_RTM_NEWTFILTER, _header(index, wanted) + nested(_TCA_OPTIONS, *options), NLM_F_CREATE | NLM_F_EXCL)


def remove(netlink: Netlink, index: int, wanted: PacketFilter) -> None:
    """The clsact hook stays: others may use it, and without filters it does nothing."""
    with ignoring(*_GONE):
        netlink.do(_RTM_DELTFILTER, _header(index, wanted))


def remove_hook(netlink: Netlink, index: int) -> None:
    """Remove the clsact hook, unless it has filters of others."""
    for hook in Hook:
        if any(True for _ in netlink.dump(_RTM_GETTFILTER, _FILTER.pack(0, index, 0, hook, 0))):
            return
    with ignoring(*_GONE):
        netlink.do(_RTM_DELQDISC, _FILTER.pack(0, index, _CLSACT_HANDLE, _CLSACT, 0) + text(_TCA_KIND, "clsact"))


def _header(index: int, wanted: PacketFilter) -> bytes:
    info = wanted.preference << 16 | _EVERY_PROTOCOL
    return _FILTER.pack(0, index, 1, wanted.hook, info) + text(_TCA_KIND, "bpf")


def _action(sending: Sending, target: int) -> bytes:
    verdict = _PIPE if sending is Sending.COPIED_IN else _STOLEN
    parameters = attribute(_TCA_MIRRED_PARMS, _MIRRED.pack(0, 0, verdict, 0, 0, sending, target))
    return nested(1, text(_TCA_ACT_KIND, "mirred"), nested(_TCA_ACT_OPTIONS, parameters))


def _sending(options: dict[int, bytes]) -> tuple[int, int] | None:
    """How a filter sends packets to which interface."""
    action = attributes(attributes(options.get(_TCA_BPF_ACT, b"")).get(1, b""))
    parameters = attributes(action.get(_TCA_ACT_OPTIONS, b"")).get(_TCA_MIRRED_PARMS, b"")
    if len(parameters) < _MIRRED.size:
        return None
    *_, direction, interface = _MIRRED.unpack_from(parameters)
    return direction, interface
