"""The checks of an agent before it takes the NIC: errors stop it, warnings are reported."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from agent_nodes import NODE, AgentNode, agent_node

from switches import requires_ovs
from windlass.host.linux import namespaces

pytestmark = requires_ovs


@pytest_asyncio.fixture
async def node() -> AsyncIterator[AgentNode]:
    async with agent_node() as node:
        node.write("node.yaml", NODE)
        await node.switch.start()
        yield node


def on(node: AgentNode, *command: str) -> subprocess.CompletedProcess[str]:
    with namespaces.entered(namespaces.path_of(node.namespace)):
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


async def windlass(node: AgentNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(on, node, str(Path(sys.executable).with_name("windlass")), *arguments)


def at(node: AgentNode) -> tuple[str, str]:
    return "--config", str(node.folder / "windlass.yaml")


def vsctl(node: AgentNode, *arguments: str) -> None:
    subprocess.run(["ovs-vsctl", f"--db=unix:{node.switch.folder}/db.sock", *arguments], check=True)


async def test_a_bridge_of_another_network_is_left_alone(node: AgentNode) -> None:
    """Antrea and OVN also use the name br-int: the agent would replace their flows."""
    foreign = ("--", "set", "interface", "antrea-gw0", "type=internal", "external_ids:antrea-type=gateway")
    kind = ("--", "set", "bridge", "br-int", "datapath_type=netdev")
    vsctl(node, "--no-wait", "add-br", "br-int", *kind, "--", "add-port", "br-int", "antrea-gw0", *foreign)
    await node.start_agent()
    told = await node.complains("eth0 is left as it is", "not created by Windlass (ports antrea-gw0)")
    assert '"ready": false' in told
    assert "10.176.25.11/24" in node.addresses("eth0")
    vsctl(node, "del-br", "br-int")
    await node.ready()


async def test_a_nic_of_another_bridge_is_not_taken(node: AgentNode) -> None:
    on(node, "ip", "link", "add", "lan0", "type", "bridge")
    on(node, "ip", "link", "set", "eth0", "master", "lan0")
    await node.start_agent()
    await node.complains("eth0 is a member of lan0 (bridge)")
    assert "10.176.25.11/24" in node.addresses("eth0")
    told = await windlass(node, "preflight", *at(node))
    assert told.returncode == 1, told
    assert "error    uplink  eth0 is a member of lan0 (bridge)" in told.stdout
    assert told.stdout.splitlines()[-1] == "1 error. The agent will not take eth0."
    on(node, "ip", "link", "set", "eth0", "nomaster")
    await node.ready()


async def test_the_status_of_a_ready_node_shows_preflight_warnings(node: AgentNode) -> None:
    on(node, "iptables-nft", "-P", "FORWARD", "DROP")
    await node.start_agent(auditSeconds=1)
    await node.ready()
    status = await windlass(node, "status", *at(node))
    assert status.returncode == 0, "it is ready, and nothing is wrong with what the agent does"
    assert "1 warning from the preflight checks" in status.stdout
    assert "chain FORWARD of nftables table ip filter drops forwarded" in status.stdout
    preflight = await windlass(node, "preflight", *at(node), "--json")
    assert preflight.returncode == 1
    _, state = await node.get("/v1/state")
    assert json.loads(preflight.stdout) == {"uplink": "eth0", "adopted": True, "findings": state["findings"]}

    on(node, "iptables-nft", "-P", "FORWARD", "ACCEPT")
    async with asyncio.timeout(20):
        while (await node.get("/v1/state"))[1]["findings"]:  # noqa: ASYNC110 (there is no event to await from out here)
            await asyncio.sleep(0.05)
    clear = await windlass(node, "preflight", *at(node))
    assert clear.returncode == 0
    assert "Ready for Windlass" in clear.stdout


async def test_preflight_reports_why_it_cannot_check(node: AgentNode) -> None:
    told = await windlass(node, "preflight", "--config", "/nonexistent.yaml")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == "windlass preflight: /nonexistent.yaml: cannot be read: No such file or directory\n"
    assert (await windlass(node, "preflight", "--no-such-option")).returncode == 2
    on(node, "ip", "route", "flush", "default")
    told = await windlass(node, "preflight")
    assert told.returncode == 2
    assert "set `uplink` in the configuration" in told.stderr
