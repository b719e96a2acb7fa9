"""Calls to the Host Compute Network (computenetwork.dll): networks, endpoints and namespaces as JSON documents.

A refused call raises an exception of `hcn_errors`. Callers interpret the documents. A call waits for the Host Network
Service, sometimes forever: `bounded_calls` runs it in a thread.
"""

from __future__ import annotations

import sys

if sys.platform != "win32":
    raise ImportError("the Host Compute Network is only on Windows")

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import byref, c_void_p, wintypes
from enum import Enum
from functools import cached_property
from typing import Any
from uuid import UUID

import msgspec

from windlass.host.windows.hcn_errors import MissingCallError, NotFoundError, refusal, win32_code

LIBRARY = "computenetwork.dll"
HcnDocument = Mapping[str, Any]  # in HCN's schema

_VERSION = {"Major": 2, "Minor": 0}
_QUERY = {"SchemaVersion": _VERSION, "Flags": 0}
_FAILED = 0x80000000


class HcnKind(Enum):
    NETWORK = "Network"
    ENDPOINT = "Endpoint"
    NAMESPACE = "Namespace"


class Guid(ctypes.Structure):
    _fields_ = (("data", ctypes.c_ubyte * 16),)

    @classmethod
    def of(cls, text: str) -> Guid:
        """Raises NotFoundError if the text is not a GUID: nothing has such an ID."""
        try:
            return cls.from_buffer_copy(UUID(text).bytes_le)
        except ValueError:
            raise refusal(f"{text!r}", 0x80070490, "it is not a GUID") from None


class ComputeNetwork:
    def __init__(self, library: str = LIBRARY) -> None:
        self._library = library
        self._free = ctypes.WinDLL("ole32").CoTaskMemFree
        self._free.argtypes = (c_void_p,)

    @cached_property
    def _calls(self) -> ctypes.WinDLL:
        """Loaded at the first call, so that an agent without the library can report it."""
        return loaded(self._library)

    def all(self, kind: HcnKind, **properties: str) -> list[HcnDocument]:
        """The items with these properties, without those that are deleted in the meantime."""
        query = {**_QUERY, "Filter": _text(properties)} if properties else _QUERY  # a filter is a document as a string
        answer = wintypes.LPWSTR()
        self._call(f"HcnEnumerate{kind.value}s", _text(query), byref(answer))
        found = []
        for guid in msgspec.json.decode(self._taken(answer) or "[]", type=list[str]):
            with suppress(NotFoundError):
                found.append(self.properties(kind, guid))
        return found

    def properties(self, kind: HcnKind, guid: str) -> HcnDocument:
        with self._opened(kind, guid) as handle:
            return self._properties(kind, handle)

    def create(self, kind: HcnKind, document: HcnDocument, network: str = "") -> HcnDocument:
        """Returns the item that HCN created. `network`: the ID of an endpoint's network."""
        content = _text({"SchemaVersion": _VERSION, **document})
        if network:
            with self._opened(HcnKind.NETWORK, network) as parent:
                return self._create(kind, content, parent)
        return self._create(kind, content)

    def modify(self, kind: HcnKind, guid: str, change: HcnDocument) -> None:
        with self._opened(kind, guid) as handle:
            self._call(f"HcnModify{kind.value}", handle, _text(change))

    def delete(self, kind: HcnKind, guid: str) -> None:
        """An item that does not exist is not an error."""
        with suppress(NotFoundError):
            self._call(f"HcnDelete{kind.value}", byref(Guid.of(guid)))

    def _create(self, kind: HcnKind, content: str, *parent: c_void_p) -> HcnDocument:
        handle = c_void_p()
        self._call(f"HcnCreate{kind.value}", *parent, byref(Guid()), content, byref(handle))  # HCN chooses the ID
        try:
            return self._properties(kind, handle)
        finally:
            self._close(kind, handle)

    def _properties(self, kind: HcnKind, handle: c_void_p) -> HcnDocument:
        answer = wintypes.LPWSTR()
        self._call(f"HcnQuery{kind.value}Properties", handle, _text(_QUERY), byref(answer))
        return msgspec.json.decode(self._taken(answer), type=dict[str, Any])

    @contextmanager
    def _opened(self, kind: HcnKind, guid: str) -> Iterator[c_void_p]:
        handle = c_void_p()
        self._call(f"HcnOpen{kind.value}", byref(Guid.of(guid)), byref(handle))
        try:
            yield handle
        finally:
            self._close(kind, handle)

    def _close(self, kind: HcnKind, handle: c_void_p) -> None:
        entry(self._calls, f"HcnClose{kind.value}")(handle)

    def _call(self, name: str, *arguments: object) -> None:
        """Each call returns an error record. If it has content the call failed, whatever its code."""
        function = entry(self._calls, name)
        function.restype = ctypes.c_uint32
        record = wintypes.LPWSTR()
        code = function(*arguments, byref(record))
        detail = self._taken(record)
        if code >= _FAILED or detail:
            known = win32_code(code)
            raise refusal(name, code, detail or (ctypes.FormatError(known).strip() if known else ""))

    def _taken(self, text: wintypes.LPWSTR) -> str:
        """Returns the string and frees its memory."""
        value = text.value or ""
        self._free(ctypes.cast(text, c_void_p))
        return value


def loaded(library: str) -> ctypes.WinDLL:
    try:
        return ctypes.WinDLL(library)
    except OSError as error:
        raise MissingCallError(
            f"{library} cannot be loaded: {error}; install the feature Containers and restart: "
            "Install-WindowsFeature Containers"
        ) from error


def entry(library: ctypes.WinDLL, name: str) -> Any:
    try:
        return getattr(library, name)
    except AttributeError:
        raise MissingCallError(f"this Windows has no {name}: Windows Server 2019 or later is needed") from None


def _text(document: HcnDocument) -> str:
    return msgspec.json.encode(document).decode()
