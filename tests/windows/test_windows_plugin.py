"""The CNI plugin for Windows: one source with the Linux plugin, by a named pipe to the agent's server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from typing import Any

import pytest

from windlass.cni.server import serving
from windlass.cni.wire import PluginReply, PluginRequest

PLUGIN = os.environ.get("WINDLASS_WINDOWS_PLUGIN", "")

pytestmark = pytest.mark.skipif(
    sys.platform != "win32" or not PLUGIN, reason="needs the plugin for Windows: tools/test-windows"
)


async def call(socket, config: dict[str, object] | None = None, **variables: str) -> tuple[int, dict[str, Any]]:
    content = json.dumps({"cniVersion": "1.0.0", "name": "windlass", "agentSocket": str(socket), **(config or {})})
    process = await asyncio.create_subprocess_exec(
        PLUGIN, stdin=PIPE, stdout=PIPE, env={"SYSTEMROOT": os.environ["SYSTEMROOT"], **variables}
    )
    output, _ = await process.communicate(content.encode())
    return process.returncode, json.loads(output or b"{}")


async def test_a_request_and_its_reply_go_through_the_pipe_whole(tmp_path):
    requests: list[PluginRequest] = []
    long = "x" * 300_000

    async def answering(request: PluginRequest) -> PluginReply:
        requests.append(request)
        return PluginReply(0, json.dumps({"cniVersion": "1.0.0", "ips": [], "long": long}).encode())

    async with serving(tmp_path / "cni.sock", answering):
        calls = [
            call(tmp_path / "cni.sock", {"long": long}, CNI_COMMAND="ADD", CNI_CONTAINERID=f"c{n}", OTHER="not sent")
            for n in range(8)
        ]
        answers = await asyncio.gather(*calls)

    assert [status for status, _ in answers] == [0] * 8
    assert all(answer["long"] == long for _, answer in answers)
    assert {request.environment["CNI_CONTAINERID"] for request in requests} == {f"c{n}" for n in range(8)}
    assert all("OTHER" not in request.environment for request in requests)
    assert all(json.loads(request.config)["long"] == long for request in requests)


async def test_the_exit_status_is_the_agents(tmp_path):
    async def refusing(_request: PluginRequest) -> PluginReply:
        return PluginReply(1, b'{"cniVersion": "1.0.0", "code": 11, "msg": "later"}')

    async with serving(tmp_path / "cni.sock", refusing):
        status, answer = await call(tmp_path / "cni.sock", CNI_COMMAND="DEL", CNI_CONTAINERID="c")
    assert (status, answer["code"]) == (1, 11)


async def test_without_an_agent_it_says_so(tmp_path):
    status, answer = await call(tmp_path / "cni.sock", CNI_COMMAND="ADD", CNI_CONTAINERID="c")
    assert (status, answer["code"]) == (1, 11)
    assert answer["msg"].startswith("the Windlass agent cannot be reached at ")
    assert answer["msg"].endswith(": Windows error 2")


async def test_versions_need_no_agent(tmp_path):
    status, answer = await call(tmp_path / "cni.sock", CNI_COMMAND="VERSION")
    assert status == 0
    assert "1.1.0" in answer["supportedVersions"]
