"""Runs in Windows' Python: the command `windlass`, with stand-ins for the libraries that Wine lacks.

The first argument is the library that stands in for IP Helper; the others are those of the command.
"""

from __future__ import annotations

import runpy
import sys
from functools import partial

if sys.platform != "win32":
    raise ImportError("this runs on Windows only")

from windlass.host.windows import hosts

if __name__ == "__main__":
    ip_helper = sys.argv.pop(1)
    setattr(hosts, "WindowsHost", partial(hosts.WindowsHost, ip_helper=ip_helper))  # noqa: B010 - a stand-in
    runpy.run_module("windlass", run_name="__main__")
