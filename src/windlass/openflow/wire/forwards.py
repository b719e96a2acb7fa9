"""Forwarded requests: changes of groups and meters by other controllers, which no monitor reports."""

from __future__ import annotations

import struct

from windlass.openflow.wire.messages import message

REQUEST_FORWARD = 32  # the type of the message that reports one
_SET_ASYNC = 28
_OF_GROUPS, _OF_METERS = 1, 2
_FORWARDED_TO_AN_EQUAL = 11  # the property for a controller that is not a secondary one


def ask_for_changes(xid: int) -> bytes:
    """Have group and meter messages of other connections forwarded to this connection."""
    return message(_SET_ASYNC, xid, struct.pack("!HHI", _FORWARDED_TO_AN_EQUAL, 8, _OF_GROUPS | _OF_METERS))
