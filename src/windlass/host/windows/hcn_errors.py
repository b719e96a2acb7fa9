"""Errors of the Host Compute Network, as exceptions by the documented HRESULTs."""

from __future__ import annotations

from typing import Final

import msgspec

from windlass.host.protocol import HostError

_WIN32_MASK: Final = 0x1FFF0000
_WIN32: Final = 0x00070000


class HcnError(HostError):
    """HCN refused a call. The message says which one and why."""

    def __init__(self, call: str, code: int, meaning: str, detail: str) -> None:
        super().__init__(f"{call}: {meaning} (0x{code:08X}{f': {detail}' if detail else ''})")
        self.code = code


class NotFoundError(HcnError):
    """The network, endpoint or namespace does not exist."""


class AdapterNotFoundError(HcnError):
    """HCN does not know the network adapter of a network."""


class ExistsError(HcnError):
    """The item exists already."""


class AttachedError(HcnError):
    """The endpoint is attached already."""


class NotAttachedError(HcnError):
    """The endpoint is not attached."""


class InvalidError(HcnError):
    """HCN cannot use the document, or an address in it."""


class ServiceStoppedError(HcnError):
    """The Host Network Service is not running."""


class MissingCallError(HostError):
    """This version of Windows lacks the call, or the library."""


_STOPPED = "the Host Network Service does not answer; start it: sc.exe start hns"
_CODES: Final[dict[int, tuple[type[HcnError], str]]] = {
    0x803B0001: (NotFoundError, "the network does not exist"),
    0x803B0002: (NotFoundError, "the endpoint does not exist"),
    0x80070490: (NotFoundError, "the item does not exist"),
    0x803B0004: (NotFoundError, "the switch does not exist"),
    0x803B0006: (AdapterNotFoundError, "the network adapter does not exist, or another switch uses it"),
    0x803B0010: (ExistsError, "the network exists already"),
    0x803B0013: (ExistsError, "the port exists already"),
    0x803B0014: (AttachedError, "the endpoint is attached already"),
    0x803B001B: (InvalidError, "HCN cannot read the document"),
    0x803B001E: (InvalidError, "the address cannot be used in this network"),
    0x803B002B: (AttachedError, "the endpoint is in another namespace already"),
    0x803B002C: (AttachedError, "other items still refer to it"),
    0x803B0034: (NotAttachedError, "the endpoint is not attached"),
    0x80070426: (ServiceStoppedError, _STOPPED),
    0x800706BA: (ServiceStoppedError, _STOPPED),
    0x800706D9: (ServiceStoppedError, _STOPPED),
}


def refusal(call: str, code: int, record: str) -> HcnError:
    """`record`: HCN's error record, a JSON document or empty."""
    kind, meaning = _CODES.get(code, (HcnError, "HCN refused it"))
    return kind(call, code, meaning, _reason(record))


def win32_code(code: int) -> int:
    """The Win32 error code in an HRESULT; 0 if it has none."""
    return code & 0xFFFF if code & _WIN32_MASK == _WIN32 else 0


def _reason(record: str) -> str:
    """The reason in an error record, whose keys are not documented."""
    try:
        content = msgspec.json.decode(record, type=dict[str, object])
    except msgspec.DecodeError:
        return record[:200]
    return str(content.get("Error") or content.get("ErrorMessage") or record[:200])
