"""Fixtures that every test may use, how hypothesis runs, and which modules cannot run on Windows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from switches import switch

__all__ = ["switch"]

# A shared machine is slow at times, and that is no error.
settings.register_profile("windlass", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("windlass")

# What a module imports that is only on Linux, or not built for Windows.
_LINUX_ONLY = {
    "windlass.lab": "the lab is only on Linux",
    "control_planes": "the lab's API servers are only on Linux",
    "windlass.host.linux": "the Linux host is only on Linux",
    "host_machines": "the Linux host is only on Linux",
    "agent_nodes": "the lab is only on Linux",
    "fed_agents": "the lab is only on Linux",
    "import ovs": "the library ovs has no wheel for Windows",
    "from ovs": "the library ovs has no wheel for Windows",
    "os_ken": "the library os-ken has no wheel for Windows",
    "from channels import": "its switch has the userspace datapath, by a Unix socket",
    '("ovs-ofctl",': "it runs the ovs-ofctl of Linux",
}


class _NotHere(pytest.Module):
    reason = ""

    def collect(self):
        pytest.skip(self.reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """On Windows, a module that cannot be imported is skipped with its reason, and counted."""
    if sys.platform != "win32" or not module_path.name.startswith("test_"):
        return None
    text = module_path.read_text(encoding="utf-8")
    for name, reason in _LINUX_ONLY.items():
        if name in text:
            module = _NotHere.from_parent(parent, path=module_path)
            module.reason = reason
            return module
    return None
