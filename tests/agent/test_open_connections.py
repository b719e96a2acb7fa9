"""A switch that cannot list its connections: the agent says so, enforces the policies, and tries again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from fed_agents import PATIENCE, FedAgent, fed_agent
from test_enforced_policies import CLIENT, pod, policy

from stream_servers import serving_streams
from switches import requires_ovs

pytestmark = requires_ovs


@asynccontextmanager
async def no_connections_listed(fed: FedAgent) -> AsyncIterator[None]:
    """A stand-in for the control socket of ovs-vswitchd that refuses to list connections, and obeys else."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = msgspec.json.decode(await reader.readuntil(b"}"))
        refused = asked["method"] == "dpctl/dump-conntrack"
        writer.write(msgspec.json.encode({"error": "no such datapath"} if refused else {"result": ""}))
        await writer.drain()
        writer.close()

    socket = Path(fed.switch.folder) / "ovs-vswitchd.ctl"
    hidden = socket.with_name("hidden.ctl")
    socket.rename(hidden)
    try:
        async with serving_streams(socket, answer):
            yield
    finally:
        socket.unlink(missing_ok=True)
        hidden.rename(socket)


async def test_connections_that_cannot_be_compared_with_policies_are_reported_and_tried_again() -> None:
    async with fed_agent() as fed:
        await fed.holds(pod("web"))
        status, view = fed.agent.status, fed.agent.view
        async with no_connections_listed(fed):
            await fed.holds(policy("a", ingress=[{"from": [CLIENT]}]))
            assert await status.wait_until(lambda: "no such datapath" in str(view.problems), PATIENCE), view.problems
            assert "clients that send nothing" in str(view.problems)
        assert await status.wait_until(lambda: not view.problems, PATIENCE), view.problems
