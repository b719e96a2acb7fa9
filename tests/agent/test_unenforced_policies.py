"""`windlass status` and a metric report policies of kinds that are not enforced."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import yaml
from agent_nodes import NODE, agent_node

from switches import requires_ovs


def policy(name: str, kind: str = "AdminNetworkPolicy") -> dict[str, object]:
    return {"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": {}}


POLICIES = [policy(name) for name in ("deny-a", "deny-b", "deny-c", "deny-d")]
DEFAULT_POLICY = policy("default", "BaselineAdminNetworkPolicy")


async def windlass(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("windlass")), *arguments]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=60)


@requires_ovs
async def test_a_policy_in_the_manifests_is_reported_as_not_enforced() -> None:
    async with agent_node() as node:
        node.write("cluster.yaml", NODE, *POLICIES, DEFAULT_POLICY)
        await node.switch.start()
        await node.start_agent()
        await node.ready()
        told = await windlass("status", "--socket", str(node.folder / "run" / "agent.sock"))
        assert told.returncode == 1
        assert re.search(
            r"^1 problem\n  replaced policies\n    - 5 policies are not enforced: AdminNetworkPolicy deny-a, "
            r"AdminNetworkPolicy deny-b, AdminNetworkPolicy deny-c, \.\.\.; ",
            told.stdout,
            re.MULTILINE,
        ), told.stdout
        assert await node.metric('windlass_policies_not_enforced{kind="AdminNetworkPolicy"}') == 4
        assert await node.metric('windlass_policies_not_enforced{kind="BaselineAdminNetworkPolicy"}') == 1

        node.write("cluster.yaml", NODE, POLICIES[0])
        await node.complains("1 policy is not enforced: AdminNetworkPolicy deny-a;")
        node.write("cluster.yaml", NODE)
        await node.health(lambda _, body: not body["problems"])
        assert await node.metric('windlass_policies_not_enforced{kind="AdminNetworkPolicy"}') == 0


def test_render_reports_policies_that_are_not_enforced(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all([NODE, POLICIES[0]]))
    told = asyncio.run(windlass("render", str(file), "--node", "node-1"))
    assert told.returncode == 0
    assert "1 policy is not enforced: AdminNetworkPolicy deny-a;" in told.stderr
