"""Calls to the older API of the Host Network Service (vmcompute.dll), for what HCN cannot do.

That is: extensions of a network's switch, and endpoints of docker's containers, which have no namespace.
"""

from __future__ import annotations

import sys

if sys.platform != "win32":
    raise ImportError("the Host Network Service is only on Windows")

import ctypes
from ctypes import byref, c_void_p, wintypes
from typing import Any

import msgspec

from windlass.host.protocol import HostError
from windlass.host.windows.hcn import HcnDocument, entry, loaded
from windlass.host.windows.hcn_errors import refusal

LIBRARY = "vmcompute.dll"
_FAILED = 0x80000000


class HnsError(HostError):
    """HNS refused a request. The message says which one and why."""


class _HnsAnswer(msgspec.Struct, rename="pascal"):
    success: bool = False
    error: str = ""
    output: msgspec.Raw = msgspec.Raw(b"null")


class HostNetworkService:
    def __init__(self, library: str = LIBRARY) -> None:
        self._library = library
        self._free = ctypes.WinDLL("ole32").CoTaskMemFree
        self._free.argtypes = (c_void_p,)

    def get(self, path: str) -> HcnDocument:
        return msgspec.json.decode(self._request("GET", path, ""), type=dict[str, Any])

    def post(self, path: str, content: HcnDocument) -> None:
        self._request("POST", path, msgspec.json.encode(content).decode())

    def _request(self, method: str, path: str, content: str) -> msgspec.Raw:
        call = entry(loaded(self._library), "HNSCall")
        call.restype = ctypes.c_uint32
        text = wintypes.LPWSTR()
        code = call(method, path, content, byref(text))
        said = text.value or ""
        self._free(ctypes.cast(text, c_void_p))
        if code >= _FAILED:
            raise refusal(f"{method} {path}", code, said)
        answer = msgspec.json.decode(said, type=_HnsAnswer)
        if not answer.success:
            raise HnsError(f"{method} {path}: {answer.error or 'HNS refused it without a reason'}")
        return answer.output
