"""Actions and instructions as bytes, each in the form in which Open vSwitch reports it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Any

from windlass.openflow import actions
from windlass.openflow.actions import Action, Actions, Ct, Goto, Nat, Set
from windlass.openflow.fields import IN_PORT_PORT
from windlass.openflow.wire.oxm import OXM_FIELDS, OxmField, older_header, oxm_field

_OUTPUT, _GROUP, _SET_FIELD, _COPY_FIELD = 0, 22, 25, 28
_EXPERIMENTER = 0xFFFF
_NICIRA = 0x2320
_RESUBMIT_TABLE, _OUTPUT_REG, _LEARN, _CT, _NAT, _CONTROLLER2, _CLONE = 14, 15, 16, 35, 36, 37, 42

_GOTO_TABLE, _APPLY_ACTIONS = 1, 4
_INSTRUCTION = struct.Struct("!HH4x")
_GOTOS = tuple(struct.pack("!HHB3x", _GOTO_TABLE, 8, table) for table in range(256))

_WHOLE_PACKET = 0xFFFF


@lru_cache(4096)  # many flows do the same
def instructions(does: Actions) -> bytes:
    """The actions of a flow, to be applied at once; a goto at their end is an instruction of its own."""
    if not does:
        return b""
    last = does[-1]
    if type(last) is not Goto:
        applied = encode(does)
        return _INSTRUCTION.pack(_APPLY_ACTIONS, len(applied) + 8) + applied
    goto = _GOTOS[last.table]
    if len(does) == 1:
        return goto
    applied = encode(does[:-1])
    return _INSTRUCTION.pack(_APPLY_ACTIONS, len(applied) + 8) + applied + goto


def encode(does: Iterable[Action]) -> bytes:
    """The list of actions alone, as it stands in a bucket or a packet-out."""
    encoded = b""
    for action in does:  # they are few, so this is faster than a join
        encoded += _ENCODERS[type(action)](action)
    return encoded


_PORT = struct.Struct("!HHIH6x")
_GROUP_NUMBER = struct.Struct("!HHI")
_OUTPUT_BITS = struct.Struct("!HHIHH4sH6x")
_RESUBMIT = struct.Struct("!HHIHHB3x")
_COPY = struct.Struct("!HHHHH2x4s4s4x")


def _output(action: actions.Output) -> bytes:
    return _PORT.pack(_OUTPUT, 16, action.port, 0)


def _output_to(action: actions.OutputTo) -> bytes:
    bits = action.port
    span = bits.low << 6 | (bits.width - 1)
    return _OUTPUT_BITS.pack(_EXPERIMENTER, 24, _NICIRA, _OUTPUT_REG, span, older_header(bits.field), _WHOLE_PACKET)


def _to_group(action: actions.ToGroup) -> bytes:
    return _GROUP_NUMBER.pack(_GROUP, 8, action.group)


def _resubmit(action: actions.Resubmit) -> bytes:
    same_port = IN_PORT_PORT & 0xFFFF
    return _RESUBMIT.pack(_EXPERIMENTER, 16, _NICIRA, _RESUBMIT_TABLE, same_port, action.table)


def _goto(action: Goto) -> bytes:
    raise ValueError(f"goto table {action.table} is not the last action of a flow")


def _move(action: actions.Move) -> bytes:
    source, to = action.source, action.to
    return _COPY.pack(
        _COPY_FIELD, 24, to.width, source.low, to.low, oxm_field(source.field).header, oxm_field(to.field).header
    )


def _set_templates(field: OxmField) -> tuple[bytes, bytes, int, bytes, bytes]:
    exact, masked = 8 + field.size, 8 + 2 * field.size
    return (
        struct.pack("!HH", _SET_FIELD, exact + -exact % 8) + field.header,
        bytes(-exact % 8),
        field.size,
        struct.pack("!HH", _SET_FIELD, masked + -masked % 8) + field.masked_header,
        bytes(-masked % 8),
    )


_SETS = tuple(map(_set_templates, OXM_FIELDS))


def _set(action: Set) -> bytes:
    term = action.term
    start, pad, size, masked_start, masked_pad = _SETS[term.field.order]
    mask = term.mask
    if mask is None:
        return start + term.value.to_bytes(size) + pad
    return masked_start + term.value.to_bytes(size) + mask.to_bytes(size) + masked_pad


_TRACK = struct.Struct("!HHIHH4sHB3xH")
_COMMIT = 1
_NO_TABLE = 0xFF
_NO_FIELD = bytes(4)


def _ct(action: Ct) -> bytes:
    nat = action.nat
    nested = b"" if nat is None else _nat(nat)
    for write in action.sets:
        nested += _set(write) if isinstance(write, Set) else _move(write)
    flags = _COMMIT if action.commit else 0
    table = _NO_TABLE if action.table is None else action.table
    length = 24 + len(nested)
    zone, where = action.zone, _NO_FIELD
    if not isinstance(zone, int):
        where, zone = older_header(zone.field), zone.low << 6 | (zone.width - 1)
    return _TRACK.pack(_EXPERIMENTER, length, _NICIRA, _CT, flags, where, zone, table, 0) + nested


_COPIED = struct.Struct("!HHIH6x")


def _clone(action: actions.Clone) -> bytes:
    nested = encode(action.actions)
    return _COPIED.pack(_EXPERIMENTER, 16 + len(nested), _NICIRA, _CLONE) + nested


_TRANSLATE = struct.Struct("!HHIH2xHH")
_SOURCE, _DESTINATION = 1, 2
_IPV4, _IPV6, _FIRST_PORT, _LAST_PORT = 1, 4, 16, 32
NAT_TARGET_OFFSET = _TRACK.size + _TRANSLATE.size  # the offset of the address and the port within an encoded Ct
_AS_COMMITTED = _TRANSLATE.pack(_EXPERIMENTER, 16, _NICIRA, _NAT, 0, 0)


def _nat(nat: Nat) -> bytes:
    flags, address = _SOURCE, nat.source
    if address is None:
        flags, address = _DESTINATION, nat.to
        if address is None:
            return _AS_COMMITTED
    if isinstance(address, IPv4Address):
        given, span = _IPV4, int(address).to_bytes(4)
    else:
        given, span = _IPV6, int(address).to_bytes(16)
    if nat.ports is not None:
        first, last = nat.ports
        given |= _FIRST_PORT
        span += first.to_bytes(2)
        if last != first:
            given |= _LAST_PORT
            span += last.to_bytes(2)
    length = 16 + len(span)
    pad = -length % 8
    return _TRANSLATE.pack(_EXPERIMENTER, length + pad, _NICIRA, _NAT, flags, given) + span + bytes(pad)


_TEACH = struct.Struct("!HHIHHHHQHBxHH")
_SPEC = struct.Struct("!H")
_BITS = struct.Struct("!4sH")
_CONSTANT, _LOAD = 1 << 13, 1 << 11
_DELETE_LEARNED = 2


def _learn(action: actions.Learn) -> bytes:
    specs = b"".join(map(_spec, action.specs))
    length = 32 + len(specs)
    pad = -length % 8
    flags = _DELETE_LEARNED if action.delete_learned else 0
    # fmt: off
    return _TEACH.pack(
        _EXPERIMENTER, length + pad, _NICIRA, _LEARN,
        action.idle_timeout, 0, action.priority, action.cookie, flags, action.table, 0, 0,
    ) + specs + bytes(pad)
    # fmt: on


def _spec(spec: actions.LearnMatch | actions.LearnLoad) -> bytes:
    to, source = spec.to, spec.source
    kind = to.width | (_LOAD if isinstance(spec, actions.LearnLoad) else 0)
    into = _BITS.pack(older_header(to.field), to.low)
    if isinstance(source, int):
        return _SPEC.pack(kind | _CONSTANT) + source.to_bytes((to.width + 15) // 16 * 2) + into
    return _SPEC.pack(kind) + _BITS.pack(older_header(source.field), source.low) + into


_SEND_WITH = struct.Struct("!HHIH6x")
_PROPERTY = struct.Struct("!HH")
_USERDATA, _METER = 3, 5


def _to_controller(action: actions.ToController) -> bytes:
    length = 4 + len(action.userdata)
    properties = _PROPERTY.pack(_USERDATA, length) + action.userdata + bytes(-length % 8)
    if action.meter:
        properties += _PROPERTY.pack(_METER, 8) + action.meter.to_bytes(4)
    return _SEND_WITH.pack(_EXPERIMENTER, 16 + len(properties), _NICIRA, _CONTROLLER2) + properties


_ENCODERS: dict[type[Action], Callable[[Any], bytes]] = {
    actions.Output: _output,
    actions.OutputTo: _output_to,
    Set: _set,
    actions.Move: _move,
    Goto: _goto,
    actions.Resubmit: _resubmit,
    Ct: _ct,
    actions.Clone: _clone,
    actions.ToGroup: _to_group,
    actions.Learn: _learn,
    actions.ToController: _to_controller,
}
