"""Runs in Windows' Python: the command `windlass`, with stand-ins for the libraries that Wine lacks.

The first argument is the library that stands in for IP Helper; the others are those of the command.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if sys.platform != "win32":
    raise ImportError("this runs on Windows only")

from windlass.host.protocol import HostPods
from windlass.host.windows import hosts
from windlass.lab.wine.pod_calls import PodCalls


async def _nothing(*_: object) -> None:
    pass


class LabHost(hosts.WindowsHost):
    ip_helper = ""

    def __init__(self, state_directory: Path) -> None:
        super().__init__(state_directory, hosts.WindowsParts(ip_helper=self.ip_helper))
        self._pod_calls = PodCalls()
        setattr(self._uplink, "prepare", _nothing)  # noqa: B010 - the host stack has made the bridge interface

    @property
    def pods(self) -> HostPods:
        return self._pod_calls


if __name__ == "__main__":
    LabHost.ip_helper = sys.argv.pop(1)
    setattr(hosts, "WindowsHost", LabHost)  # noqa: B010 - a stand-in
    runpy.run_module("windlass", run_name="__main__")
