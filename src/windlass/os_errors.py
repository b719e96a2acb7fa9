"""What the operating system says about an error. asyncio and others put longer texts of their own in its place."""

from __future__ import annotations

import os
import sys


def reason(error: OSError) -> str:
    code = error.errno or 0
    if sys.platform == "win32" and os.strerror(code).startswith("Unknown"):  # a code of Winsock
        import ctypes  # noqa: PLC0415 - only where it is needed

        return ctypes.FormatError(error.winerror or code).strip().rstrip(".").lower()
    return os.strerror(code)
