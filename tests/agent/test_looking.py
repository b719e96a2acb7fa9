"""`windlass status` and `windlass flows` with a real agent on a Node with real Open vSwitch."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from agent_nodes import NODE, AgentNode, agent_node, peer

from switches import requires_ovs

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ports": [{"name": "http", "port": 80}]},
}
SLICE = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"name": "http", "port": 8080}],
    "endpoints": [{"addresses": ["172.16.2.5"], "nodeName": "node-2", "conditions": {"ready": True}}],
}
# As on a Node, where only what the agent needs is installed.
ON_A_NODE = (
    "import sys; sys.modules.update(rich=None, pyroute2=None); from windlass.cli import main; main(sys.argv[1:])"
)


@pytest_asyncio.fixture
async def node() -> AsyncIterator[AgentNode]:
    async with agent_node() as node:
        node.write("cluster.yaml", NODE, peer("node-2", "10.176.25.12", "172.16.2.0/24"), SERVICE, SLICE)
        await node.switch.start()
        await node.start_agent()
        await node.ready()
        yield node


async def windlass(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ON_A_NODE, *arguments]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=60)


def at(node: AgentNode) -> tuple[str, str]:
    return "--socket", str(node.folder / "run" / "agent.sock")


@requires_ovs
async def test_a_healthy_node(node: AgentNode) -> None:
    told = await windlass("status", *at(node))
    assert told.returncode == 0, told
    assert told.stdout.splitlines()[0] == "Node node-1 is ready"
    facts = dict(re.findall(r"^  (\S.*?)  +(\S.*)$", told.stdout, re.MULTILINE))
    assert facts["addresses"] == "10.176.25.11/24"
    assert facts["PodCIDRs"] == "172.16.1.0/24"
    assert facts["other Nodes"] == "1: node-2"
    assert facts["Pods"] == "none"
    assert facts["Services"] == "1"
    assert facts["lag"] == "none"
    assert int(facts["flows"]) == len(node.flows().splitlines())
    assert told.stdout.splitlines()[-1] == "no problems"
    assert "\x1b" not in told.stdout

    detailed = await windlass("status", "--config", str(node.folder / "windlass.yaml"), "--details")
    assert re.search(r"^  NODE +ADDRESSES +POD CIDRS$", detailed.stdout, re.MULTILINE)
    assert re.search(r"^  node-2 +10.176.25.12 +172.16.2.0/24$", detailed.stdout, re.MULTILINE)

    body = json.loads((await windlass("status", *at(node), "--json")).stdout)
    assert body["ready"] is True
    assert body["serviceCount"] == 1
    assert body["problems"] == {}


@requires_ovs
async def test_problems_are_listed_by_area(node: AgentNode) -> None:
    (node.manifests / "broken.yaml").write_text("kind: [Node\n")
    await node.complains("broken.yaml")
    told = await windlass("status", *at(node))
    assert told.returncode == 1
    assert told.stdout.startswith("Node node-1 is ready\n")
    assert re.search(r"^1 problem\n  cluster source\n    - .*broken\.yaml.*not valid YAML", told.stdout, re.MULTILINE)
    assert (await windlass("status", *at(node), "--json")).returncode == 1


@requires_ovs
async def test_status_shows_what_the_agent_waits_for() -> None:
    async with agent_node() as node:
        node.write("other.yaml", peer("node-2", "10.176.25.12", "172.16.2.0/24"))
        await node.switch.start()
        await node.start_agent()
        await node.complains("is not in the cluster")
        told = await windlass("status", *at(node))
        assert told.returncode == 1
        assert told.stdout.startswith("this Node is not ready\n  waiting for: Node node-1 is not in the cluster")
        assert (await windlass("flows", *at(node))).stdout == ""


@requires_ovs
async def test_every_flow_of_the_switch_has_its_owner_and_reason(node: AgentNode) -> None:
    dump = node.ofctl("dump-flows", "br-int")
    cookies = {int(cookie, 16) for cookie in re.findall(r"cookie=(\w+)", dump)}
    told = await windlass("flows", *at(node), "--json")
    entries = json.loads(told.stdout)
    assert told.returncode == 0
    assert {int(entry["cookie"], 16) for entry in entries if "cookie" in entry} == cookies
    assert all(entry["owner"] and entry["symbolic"] and entry["ofctl"] for entry in entries)
    assert {entry["owner"] for entry in entries} == {"Node node-1", "Peer node-2", "Service default/web"}
    (group,) = [entry for entry in entries if "group" in entry]
    assert "172.16.2.5" in group["ofctl"]


@requires_ovs
async def test_flows_of_one_object_or_table(node: AgentNode) -> None:
    whole = (await windlass("flows", *at(node), "--no-why")).stdout.splitlines()
    of_service = (await windlass("flows", *at(node), "--owner", "default/web")).stdout
    assert all(line.startswith("# Service default/web") for line in of_service.splitlines() if line[0] == "#")
    bare = [line for line in of_service.splitlines() if line[0] != "#"]
    assert bare
    assert [line for line in whole if line in bare] == bare, "in the same order"
    assert any(line.startswith("group ") for line in bare)
    for owner in ("service", "Service default/web", "service/default/web"):
        assert (await windlass("flows", *at(node), "--owner", owner)).stdout == of_service
    none = await windlass("flows", *at(node), "--owner", "service/default/nobody")
    assert (none.returncode, none.stdout) == (0, "")
    assert "no flow or group matches owner service/default/nobody" in none.stderr

    of_table = (await windlass("flows", *at(node), "--table", "classifier", "--no-why")).stdout.splitlines()
    assert of_table == [line for line in whole if line.startswith("Classifier ")]
    assert (await windlass("flows", *at(node), "--table", "0", "--format", "ofctl")).stdout.count("table=0,") == len(
        of_table
    )
    cookie = json.loads((await windlass("flows", *at(node), "--table", "0", "--json")).stdout)[0]["cookie"]
    assert len((await windlass("flows", *at(node), "--cookie", cookie)).stdout.splitlines()) == 2

    unknown = await windlass("flows", *at(node), "--table", "Attic")
    assert unknown.returncode == 2
    assert "there is no table Attic; the tables are Classifier (0), " in unknown.stderr
    assert (await windlass("flows", *at(node), "--cookie", "xyz")).returncode == 2


@requires_ovs
async def test_the_log_level_changes_while_the_agent_runs(node: AgentNode) -> None:
    log = node.folder / "agent.log"
    assert (await windlass("log-level", *at(node))).stdout == "info\n"
    assert " [debug " not in log.read_text()

    changed = await windlass("log-level", *at(node), "debug", "--for", "1h30m")
    assert changed.returncode == 0, changed
    assert re.fullmatch(r"debug, for another (90 min 0|89 min 5\d) s; then info\n", changed.stdout)
    node.write("other.yaml", peer("node-3", "10.176.25.13", "172.16.2.0/24"))  # it overlaps another's
    await node.complains("overlaps")
    assert " [debug " in log.read_text()

    assert (await windlass("log-level", *at(node), "error")).stdout == "error, until the agent restarts; then info\n"
    length = len(log.read_text())
    (node.manifests / "other.yaml").unlink()
    (node.manifests / "broken.yaml").write_text("kind: [Node\n")
    await node.complains("broken.yaml")
    assert log.read_text()[length:] == "", "a warning is less than an error"


@requires_ovs
async def test_a_temporary_log_level_expires(node: AgentNode) -> None:
    assert (await windlass("log-level", *at(node), "error", "--for", "1s")).returncode == 0
    log = node.folder / "agent.log"
    async with asyncio.timeout(20):
        while "log level changed" not in log.read_text():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
    assert (await windlass("log-level", *at(node))).stdout == "info\n"


@requires_ovs
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("loud",), "'loud' is not one of"),
        (("debug", "--for", "soon"), "soon is not a duration; examples: 30s, 10m"),
        (("--for", "10m"), "--for needs a level"),
        (("debug", "--for", "8d"), "must be more than 0 and at most 604,800"),
    ],
)
async def test_an_unknown_log_level_is_refused(node: AgentNode, asked: tuple[str, ...], said: str) -> None:
    refused = await windlass("log-level", *at(node), *asked)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert (await windlass("log-level", *at(node))).stdout == "info\n"


@requires_ovs
async def test_policies_are_explained_from_the_agents_state() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"nodeName": "node-2", "containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"podIPs": [{"ip": "172.16.2.5"}]},
    }
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]},
    }
    admin = {
        "apiVersion": "policy.networking.k8s.io/v1alpha1",
        "kind": "AdminNetworkPolicy",
        "metadata": {"name": "admin"},
    }
    async with agent_node() as node:
        node.write("cluster.yaml", NODE, peer("node-2", "10.176.25.12", "172.16.2.0/24"), pod, policy, admin)
        await node.switch.start()
        await node.start_agent()
        await node.ready()
        told = await windlass("policy", "explain", "web", *at(node), "--peer", "203.0.113.9", "--json")
    assert told.returncode == 0, told.stderr
    assert "1 AdminNetworkPolicy is left out: Windlass does not enforce this kind" in told.stderr
    [peer_verdicts] = json.loads(told.stdout)["ingress"]["peers"]
    assert [(one["traffic"], one["verdict"]) for one in peer_verdicts["verdicts"]] == [
        ("TCP 8080", "Allow"),
        ("everything else", "Deny"),
    ]


@pytest.mark.parametrize("command", ["status", "flows", "log-level"])
async def test_status_without_an_agent_says_what_to_do(command: str, tmp_path: Path) -> None:
    told = await windlass(command, "--socket", str(tmp_path / "agent.sock"))
    assert told.returncode == 2
    assert "no agent listens here; start it" in told.stderr
    assert told.stdout == ""

    with closing(socket.socket(socket.AF_UNIX)) as left_over:  # by one that was killed
        left_over.bind(str(tmp_path / "agent.sock"))
    told = await windlass(command, "--socket", str(tmp_path / "agent.sock"))
    assert told.returncode == 2
    assert "no agent listens here any more" in told.stderr

    told = await windlass(command, "--config", str(tmp_path / "windlass.yaml"))
    assert told.returncode == 2
    assert "windlass.yaml: cannot be read" in told.stderr
