"""The commands in Windows' own Python: an agent as a process, asked over its pipe."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from windlass.channels import local

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="needs Windows' Python: tools/test-windows")

REPOSITORY = Path(__file__).parents[2]
PLUGIN = os.environ.get("WINDLASS_WINDOWS_PLUGIN", "")


async def windlass(*arguments: object) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "windlass", *map(str, arguments)),
        stdin=subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        cwd=REPOSITORY,
    )


async def answer(*arguments: object) -> tuple[int, str, str]:
    process = await windlass(*arguments)
    output, errors = await process.communicate()
    return process.returncode, output.decode().replace("\r\n", "\n"), errors.decode().strip()


@asynccontextmanager
async def agent(folder: Path) -> AsyncIterator[Path]:
    config = folder / "windlass.yaml"
    options = {
        "nodeName": "node-1",
        "manifests": str(folder / "manifests"),
        "runDirectory": str(folder / "run"),
        "stateDirectory": str(folder / "state"),
        "ovsRunDirectory": str(folder / "ovs"),
        "healthzBindAddress": "",
        "metricsBindAddress": "",
    }
    (folder / "manifests").mkdir()
    config.write_text(json.dumps(options))
    process = await windlass("agent", "--config", config)
    try:
        async with asyncio.timeout(300):
            while not local.is_served(folder / "run" / "agent.sock"):
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.05)
        yield config
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_an_agent_is_asked_over_its_pipe(tmp_path):
    async with agent(tmp_path) as config:
        socket = tmp_path / "run" / "agent.sock"
        assert await answer("probe", "live", "--socket", socket) == (0, "", "")
        status, _, errors = await answer("probe", "ready", "--socket", socket)
        assert status == 1
        assert errors.startswith("windlass probe: not ready: ")
        output = ""
        async with asyncio.timeout(60):  # the agent waits a second before it reports that there is no database
            while "start Open vSwitch (ovsdb-server, ovs-vswitchd)" not in " ".join(output.split()):
                _, output, _ = await answer("status", "--config", config)
        status, _, errors = await answer("agent", "--config", config)
        assert status == 1
        assert "another agent serves this Node" in errors


async def test_flows_are_rendered_from_manifests():
    status, output, errors = await answer("render", "scenarios/tour", "--node", "node-1", "--format", "ofctl")
    assert (status, errors) == (0, "")
    assert output.count("table=") > 50


@pytest.mark.skipif(not PLUGIN, reason="needs the plugin for Windows: tools/test-windows")
async def test_the_plugin_is_installed(tmp_path):
    binaries, configurations = tmp_path / "bin", tmp_path / "net.d"
    command = ("install-cni", "--binaries", binaries, "--configurations", configurations, "--plugin", PLUGIN)
    for expected in (": written, ", ": is up to date"):
        status, output, errors = await answer(*command)
        assert (status, errors) == (0, "")
        assert output.count(expected) == 2, output
    assert (binaries / "windlass-cni.exe").stat().st_size
    configuration = json.loads((configurations / "10-windlass.conflist").read_text())
    assert configuration["plugins"] == [{"type": "windlass-cni", "capabilities": {"dns": True}}]
