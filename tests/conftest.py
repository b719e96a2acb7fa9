"""Fixtures that every test may use, how hypothesis runs, and which modules cannot run on Windows."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from switches import switch

__all__ = ["switch"]

# A shared machine is slow at times, and that is no error.
settings.register_profile("windlass", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("windlass")

# What a module imports or runs that is only on Linux, and why.
_LINUX_ONLY = {
    r"windlass\.lab\b|\bagent_nodes\b|\bfed_agents\b": "its Nodes are of the lab, in Linux namespaces",
    r"\bcontrol_planes\b": "its API server is of the lab, in a Linux namespace",
    r"windlass\.host\.linux\b|\bhost_machines\b|\bfrom wires import\b": "it is about the host code for Linux",
    r"(?m)^from os_ken\b": "it compares with the library os-ken, which Windows' Python does not have here",
    r"\bfrom channels import\b": "its connection to the switch is a Unix socket",
    r'\("ovs-ofctl",': "it runs the ovs-ofctl of Linux",
}


class _NotHere(pytest.Module):
    """A module that is not imported; each of its tests is skipped."""

    reason = ""

    def collect(self):
        for part in ast.walk(ast.parse(self.path.read_text(encoding="utf-8"))):
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name.startswith("test"):
                yield _Skipped.from_parent(self, name=part.name)


class _Skipped(pytest.Item):
    def runtest(self):
        assert isinstance(self.parent, _NotHere)
        pytest.skip(self.parent.reason)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """On Windows, the tests of a module that cannot be imported are skipped with its reason, and counted."""
    if sys.platform != "win32" or not module_path.name.startswith("test_"):
        return None
    text = module_path.read_text(encoding="utf-8")
    for pattern, reason in _LINUX_ONLY.items():
        if re.search(pattern, text):
            module = _NotHere.from_parent(parent, path=module_path)
            module.reason = reason
            return module
    return None
