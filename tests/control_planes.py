"""A real API server for tests: what a module of them needs, and one that runs."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from windlass.host.linux import namespaces
from windlass.lab.control import kubernetes_binaries
from windlass.lab.control.control_planes import OBJECTS_ONLY, ControlPlane, Extent
from windlass.lab.network import underlays

ADDRESS = ip_address("10.99.0.1")


def needs(*programs: str) -> list[pytest.MarkDecorator]:
    """The marks of a module whose tests share one."""
    absent = kubernetes_binaries.missing(*programs)
    return [
        pytest.mark.skipif(os.geteuid() != 0, reason="it makes network namespaces: needs root"),
        pytest.mark.skipif(bool(absent), reason=absent),
        pytest.mark.timeout(300),
        pytest.mark.asyncio(loop_scope="module"),
    ]


@asynccontextmanager
async def running_control_plane(folder: Path, extent: Extent = OBJECTS_ONLY) -> AsyncIterator[ControlPlane]:
    """In a network namespace of its own."""
    name = f"wlt-{secrets.token_hex(3)}"
    plane = ControlPlane(name, folder, [ADDRESS], extent)
    underlays.make_namespace(name)
    try:
        command = ["ip", "-netns", name, "address", "add", f"{ADDRESS}/32", "dev", "lo"]
        await asyncio.to_thread(subprocess.run, command, check=True)
        await plane.start()
        yield plane
    finally:
        await plane.end()
        namespaces.delete(name)
