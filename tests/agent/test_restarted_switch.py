"""ovs-vswitchd restarts on the kernel datapath, which keeps forwarding: with an agent and without one.

The userspace datapath ends with the daemon, so there is nothing to try there.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from agent_nodes import NODE, AgentNode, agent_node

from switches import requires_ovs
from windlass.lab.network.ovs import datapath_type
from windlass.lab.sandbox.time_limits import seconds
from windlass.switch.bridges import WAIT
from windlass.switch.ovsdb import open_database

PATIENCE = seconds(120.0)
pytestmark = [
    requires_ovs,
    pytest.mark.skipif(datapath_type() != "system", reason="needs the kernel datapath (tools/test-kernel)"),
    pytest.mark.timeout(2 * PATIENCE),
]


@pytest_asyncio.fixture
async def running() -> AsyncIterator[AgentNode]:
    async with agent_node() as node:
        node.write("node.yaml", NODE)
        await node.switch.start()
        await node.start_agent()
        await node.ready()
        yield node


def waits(node: AgentNode) -> bool:
    command = ["ovs-vsctl", "get", "Open_vSwitch", ".", "other_config"]
    environment = {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", **node.switch.environment}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return WAIT in done.stdout


async def ended_wait(node: AgentNode) -> None:
    async with asyncio.timeout(PATIENCE), open_database(str(node.switch.folder / "db.sock")) as database:
        await database.wait_for(lambda view: view.root and WAIT not in view.root.other_config)


async def test_the_agent_ends_the_flow_restore_wait(running: AgentNode) -> None:
    assert running.answers()
    flows = running.flows()
    await running.switch.restart()
    await ended_wait(running)
    assert running.answers()
    assert running.flows() == flows


async def test_without_an_agent_the_node_answers_during_the_flow_restore_wait_and_after_it(running: AgentNode) -> None:
    assert running.answers()
    await running.agent.kill()
    await running.switch.restart()
    assert waits(running)
    assert running.answers(), "by the former flows"
    await ended_wait(running)
    assert running.answers(), "by the flows for the host's own traffic"
    await running.start_agent()
    await running.ready()
    assert running.answers()
    assert "priority=1,in_port=LOCAL" not in running.flows()
