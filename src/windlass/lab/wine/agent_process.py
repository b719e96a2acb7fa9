"""Runs in Windows' Python: the command `windlass`, with stand-ins for the libraries that Wine lacks.

The first three arguments are the paths of the stand-ins for IP Helper, HCN and netsh; the others go to the command.
"""

from __future__ import annotations

import runpy
import sys
from functools import partial

if sys.platform != "win32":
    raise ImportError("this runs on Windows only")

from windlass.host.windows import hosts
from windlass.host.windows.hosts import WindowsParts

if __name__ == "__main__":
    ip_helper, compute_network, netsh = (sys.argv.pop(1) for _ in range(3))
    parts = WindowsParts(ip_helper, compute_network, network_service=compute_network, netsh=netsh)
    setattr(hosts, "WindowsHost", partial(hosts.WindowsHost, parts=parts))  # noqa: B010 - a stand-in
    runpy.run_module("windlass", run_name="__main__")
