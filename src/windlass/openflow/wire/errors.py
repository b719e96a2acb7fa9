"""Errors of the switch as sentences. The sender finds the refused message by its xid."""

from __future__ import annotations

import struct

_EXPERIMENTER = 0xFFFF
_NICIRA = 0x2320


class OpenFlowError(Exception):
    """The switch refused a message."""

    def __init__(self, name: str, sentence: str, offending: bytes) -> None:
        """`offending` is the beginning of the message."""
        super().__init__(f"{sentence} ({name})")
        self.name = name
        self.xid = int.from_bytes(offending[4:8]) if len(offending) >= 8 else None


def parse_error(body: bytes) -> OpenFlowError:
    kind, code = struct.unpack_from("!HH", body)
    if kind == _EXPERIMENTER:
        vendor: int = struct.unpack_from("!I", body, 4)[0]
        names = _NICIRA_ERRORS if vendor == _NICIRA else {}
        name, sentence = names.get(code, (f"error {code} of vendor {vendor:#x}", _UNKNOWN))
        return OpenFlowError(name, sentence, body[8:])
    name, sentence = _ERRORS.get((kind, code), (f"error {kind}, {code}", _UNKNOWN))
    return OpenFlowError(name, sentence, body[4:])


_UNKNOWN = "the switch refused it for an unknown reason; its log may say more"
_LENGTH = "a length in it is wrong"
_FORBIDDEN = "the switch does not permit it on this connection"

_ERRORS: dict[tuple[int, int], tuple[str, str]] = {
    (0, 0): ("HELLO_INCOMPATIBLE", "the switch does not support OpenFlow 1.5; allow it in the bridge's `protocols`"),
    (0, 1): ("HELLO_EPERM", _FORBIDDEN),
    (1, 0): ("BAD_VERSION", "the switch uses another version of OpenFlow on this connection"),
    (1, 1): ("BAD_TYPE", "the switch does not know this type of message"),
    (1, 2): ("BAD_MULTIPART", "the switch does not know this kind of request"),
    (1, 3): ("BAD_EXPERIMENTER", "the switch is not an Open vSwitch: it does not know the extension"),
    (1, 4): ("BAD_EXPERIMENTER_TYPE", "this version of Open vSwitch does not know the extension"),
    (1, 5): ("REQUEST_EPERM", _FORBIDDEN),
    (1, 6): ("BAD_LENGTH", _LENGTH),
    (1, 9): ("BAD_TABLE", "there is no such table"),
    (1, 10): ("IS_SECONDARY", "another controller is the primary one"),
    (1, 11): ("BAD_PORT", "there is no such port, or it cannot be an ingress port"),
    (1, 12): ("BAD_PACKET", "the packet is malformed"),
    (2, 0): ("ACTION_BAD_TYPE", "the switch does not know one of the actions"),
    (2, 1): ("ACTION_BAD_LENGTH", _LENGTH),
    (2, 2): ("ACTION_BAD_EXPERIMENTER", "the switch is not an Open vSwitch: it does not know one of the actions"),
    (2, 3): ("ACTION_BAD_EXPERIMENTER_TYPE", "this version of Open vSwitch does not know one of the actions"),
    (2, 4): ("ACTION_BAD_OUT_PORT", "an action names an invalid port"),
    (2, 5): ("ACTION_BAD_ARGUMENT", "an argument of an action is out of its range"),
    (2, 7): ("ACTION_TOO_MANY", "there are more actions than the switch can hold"),
    (2, 9): ("ACTION_BAD_GROUP", "an action leads to a group that does not exist"),
    (2, 10): ("ACTION_MATCH_INCONSISTENT", "an action needs a condition that the match lacks (such as ip)"),
    (2, 13): ("ACTION_BAD_SET_TYPE", "an action writes a field that the switch does not know or cannot write"),
    (2, 14): ("ACTION_BAD_SET_LENGTH", "an action reaches past the end of a field"),
    (2, 15): ("ACTION_BAD_SET_ARGUMENT", "an action writes a field, or a value, that cannot be written"),
    (2, 16): ("ACTION_BAD_SET_MASK", "an action writes a field with an invalid mask"),
    (3, 0): ("INSTRUCTION_UNKNOWN", "the switch does not know one of the instructions"),
    (3, 2): ("INSTRUCTION_BAD_TABLE", "goto does not lead to a later table"),
    (3, 7): ("INSTRUCTION_BAD_LENGTH", _LENGTH),
    (3, 9): ("INSTRUCTION_DUPLICATE", "an instruction is given twice"),
    (4, 0): ("MATCH_BAD_TYPE", "the match is not in OXM format"),
    (4, 1): ("MATCH_BAD_LENGTH", _LENGTH),
    (4, 5): ("MATCH_BAD_WILDCARDS", "the value of a condition has bits outside its mask"),
    (4, 6): ("MATCH_BAD_FIELD", "the match has a field that the switch does not know"),
    (4, 7): ("MATCH_BAD_VALUE", "a condition has an invalid value for its field"),
    (4, 8): ("MATCH_BAD_MASK", "a condition has an invalid mask for its field"),
    (4, 9): ("MATCH_BAD_PREREQUISITE", "a condition needs another before it (tcp_dst needs tcp, ip_dst needs ip)"),
    (4, 10): ("MATCH_DUPLICATE_FIELD", "a field is twice in the match"),
    (5, 0): ("FLOW_UNKNOWN", _UNKNOWN),
    (5, 1): ("FLOW_TABLE_FULL", "the table is full (Flow_Table flow_limit)"),
    (5, 2): ("FLOW_BAD_TABLE", "there is no such table"),
    (5, 3): ("FLOW_OVERLAP", "another flow overlaps with it"),
    (5, 4): ("FLOW_EPERM", "the table cannot be changed"),
    (5, 6): ("FLOW_BAD_COMMAND", "the switch does not know the command"),
    (5, 7): ("FLOW_BAD_FLAGS", "the switch does not know one of the flags"),
    (6, 0): ("GROUP_EXISTS", "a group with this number is already there"),
    (6, 1): ("GROUP_INVALID", "the group cannot have this number or these buckets"),
    (6, 3): ("GROUP_OUT_OF_GROUPS", "the switch can hold no more groups"),
    (6, 4): ("GROUP_OUT_OF_BUCKETS", "the group has more buckets than the switch can hold"),
    (6, 7): ("GROUP_LOOP", "the group would lead to itself"),
    (6, 8): ("GROUP_UNKNOWN", "there is no group with this number to change"),
    (6, 10): ("GROUP_BAD_TYPE", "the switch does not know this type of group"),
    (6, 11): ("GROUP_BAD_COMMAND", "the switch does not know the command"),
    (6, 12): ("GROUP_BAD_BUCKET", "a bucket is malformed, or two have the same number"),
    (6, 15): ("GROUP_UNKNOWN_BUCKET", "there is no bucket with this number"),
    (6, 16): ("GROUP_BUCKET_EXISTS", "a bucket with this number is already there"),
    (10, 0): ("CONFIG_BAD_FLAGS", "the switch does not know one of the flags"),
    (14, 0): ("PROPERTY_BAD_TYPE", "the switch does not know one of the properties"),
    (14, 1): ("PROPERTY_BAD_LENGTH", _LENGTH),
    (14, 2): ("PROPERTY_BAD_VALUE", "a property has an invalid value"),
    (16, 1): ("MONITOR_EXISTS", "a monitor with this number is already there"),
    (16, 3): ("MONITOR_UNKNOWN", "there is no monitor with this number"),
    (16, 5): ("MONITOR_BAD_FLAGS", "the switch does not know one of the monitor's flags"),
    (17, 0): ("BUNDLE_UNKNOWN", _UNKNOWN),
    (17, 2): ("BUNDLE_BAD_ID", "there is no such bundle: it was not opened, or the switch discarded it"),
    (17, 3): ("BUNDLE_EXISTS", "a bundle with this number is already open"),
    (17, 4): ("BUNDLE_CLOSED", "the bundle is closed"),
    (17, 5): ("BUNDLE_OUT_OF_BUNDLES", "the switch can hold no more bundles"),
    (17, 7): ("BUNDLE_BAD_FLAGS", "the message has other flags than its bundle"),
    (17, 8): ("BUNDLE_BAD_LENGTH", "the length of a message in the bundle is wrong"),
    (17, 9): ("BUNDLE_BAD_XID", "a message in the bundle has another xid than its envelope"),
    (17, 10): ("BUNDLE_UNSUPPORTED_MESSAGE", "a message of this type cannot be in a bundle, or it is malformed"),
    (17, 13): ("BUNDLE_MESSAGE_FAILED", "a message in the bundle was refused; nothing of the bundle was applied"),
    (17, 14): ("BUNDLE_TIMEOUT", "the bundle was open for too long; nothing of it was applied"),
}

_NICIRA_ERRORS: dict[int, tuple[str, str]] = {
    4: ("NX_MUST_BE_ZERO", "a byte that must be 0 is not"),
    10: ("NX_UNENCODABLE", _UNKNOWN),
    11: ("NX_ACTION_MUST_BE_ZERO", "a byte of an action that must be 0 is not"),
    13: ("NX_BAD_TABLE", "there is no such table"),
    15: ("NX_BAD_CONJUNCTION", "conjunction must be the only kind of action of its flow, with 2 to 64 clauses"),
    22: ("NX_BUNDLE_BAD_VERSION", "a message in the bundle is of another version of OpenFlow"),
    42: ("NX_ACTION_CT_DATAPATH_SUPPORT", "an action needs connection tracking that this datapath lacks"),
    43: ("NX_MATCH_CT_DATAPATH_SUPPORT", "a condition needs connection tracking that this datapath lacks"),
}
