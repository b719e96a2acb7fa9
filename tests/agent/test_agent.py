"""The agent when something fails around it: each failure is reported, and does not affect anything else."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from agent_nodes import NODE, AgentNode, agent_node, peer

from switches import requires_ovs, run

pytestmark = requires_ovs

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ports": [{"port": 80, "targetPort": 8080}]},
}
SLICE = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"port": 8080, "protocol": "TCP"}],
    "endpoints": [{"addresses": ["172.16.1.7"]}, {"addresses": ["172.16.1.8"]}],
}


@pytest_asyncio.fixture
async def node() -> AsyncIterator[AgentNode]:
    async with agent_node() as node:
        yield node


@pytest_asyncio.fixture
async def running(node: AgentNode) -> AgentNode:
    """A Node whose agent is ready."""
    node.write("node.yaml", NODE)
    await node.switch.start()
    await node.start_agent()
    await node.ready()
    return node


async def test_a_restart_with_the_same_state_sends_no_flow(running: AgentNode) -> None:
    assert await running.metric("windlass_switch_changes_total") > 0
    before = running.flows()
    await running.agent.kill()
    assert running.flows() == before, "a killed agent leaves the Node forwarding"
    await running.start_agent()
    await running.ready()
    assert await running.metric("windlass_switch_changes_total") == 0
    assert running.flows() == before


async def test_after_a_clean_stop_the_node_keeps_forwarding(running: AgentNode) -> None:
    before = running.flows()
    await running.agent.stop()
    assert running.agent.exited.result() == 0
    assert running.flows() == before
    assert "10.176.25.11/24" in running.addresses("br-int")


async def test_a_broken_manifest_is_named_and_the_rest_is_used(running: AgentNode) -> None:
    running.write("peers.yaml", peer("node-2", "10.176.25.12", "172.16.2.0/24"))
    (running.manifests / "broken.yaml").write_text("kind: [Node\n")
    told = await running.complains("broken.yaml", "not valid YAML in line")
    assert '"ready": true' in told
    await _until(lambda: "172.16.2.0/24" in running.flows())


async def test_a_broken_manifest_keeps_its_previous_objects(running: AgentNode) -> None:
    running.write("peers.yaml", peer("node-2", "10.176.25.12", "172.16.2.0/24"))
    await _until(lambda: "172.16.2.0/24" in running.flows())
    (running.manifests / "peers.yaml").write_text("kind: [Node\n")
    await running.complains("peers.yaml", "the 1 objects that it held before stay")
    assert "172.16.2.0/24" in running.flows()


async def test_overlapping_pod_cidrs_stay_with_their_first_holder(running: AgentNode) -> None:
    running.write("peers.yaml", peer("node-2", "10.176.25.12", "172.16.2.0/24"))
    await _until(lambda: "172.16.2.0/24" in running.flows())
    # Its name sorts first, and its PodCIDR is larger and contains ours: it must not take over anything.
    running.write(
        "more.yaml",
        peer("a-thief", "10.176.25.13", "172.16.2.0/23"),
        peer("b-thief", "10.176.25.14", "172.16.1.128/25"),
        peer("node-3", "10.176.25.15", "172.16.3.0/24"),
    )
    told = await running.complains("a-thief", "overlaps that of Node node-2", "b-thief", "overlaps that of Node node-1")
    assert '"ready": true' in told
    await _until(lambda: "172.16.3.0/24" in running.flows())
    assert "10.176.25.12" in running.flows()
    assert "10.176.25.13" not in running.flows()


async def test_without_its_node_object_the_agent_waits_and_lists_the_nodes_it_knows(node: AgentNode) -> None:
    node.write("other.yaml", peer("node-2", "10.176.25.12", "172.16.2.0/24"))
    await node.switch.start()
    await node.start_agent()
    await node.complains("Node node-1 is not in the cluster (known: node-2)", "nodeName")
    node.write("node.yaml", NODE)
    await node.ready()


async def test_a_node_without_pod_cidr_is_reported_with_the_component_that_assigns_it(node: AgentNode) -> None:
    node.write("node.yaml", {**NODE, "spec": {}})
    await node.switch.start()
    await node.start_agent()
    await node.complains("spec.podCIDRs is empty", "--allocate-node-cidrs")
    assert "10.176.25.11/24" in node.addresses("eth0"), "the NIC keeps its address until all is known"


async def test_an_unreachable_database_is_named_and_waited_for(node: AgentNode) -> None:
    node.write("node.yaml", NODE)
    await node.start_agent()
    await node.complains("ovs/db.sock")
    assert "10.176.25.11/24" in node.addresses("eth0")
    await node.switch.start()
    await node.ready()


async def test_a_switch_that_dies_is_reported_and_filled_again(running: AgentNode) -> None:
    before = sorted(running.flows().splitlines())
    await running.switch._switch.kill()
    await running.complains("br-int.mgmt")
    await running.switch.restart()
    await running.health(lambda status, body: status == 200 and not body["problems"])
    await _until(lambda: sorted(running.flows().splitlines()) == before)
    await _until(lambda: "10.176.25.11/24" in running.addresses("br-int"))


async def test_a_missing_uplink_is_named_and_the_node_keeps_its_address(node: AgentNode) -> None:
    node.write("node.yaml", NODE)
    await node.switch.start()
    await node.start_agent(uplink="nosuch0")
    await node.complains("nosuch0")
    assert "10.176.25.11/24" in node.addresses("eth0")
    await node.agent.stop()
    await node.start_agent(uplink="eth0")
    await node.ready()
    assert "10.176.25.11/24" in node.addresses("br-int")
    assert "10.176.25.11" not in node.addresses("eth0")


async def test_without_a_source_the_last_known_good_state_is_used(running: AgentNode) -> None:
    running.write("peers.yaml", peer("node-2", "10.176.25.12", "172.16.2.0/24"))
    await _until(lambda: "172.16.2.0/24" in running.flows())
    saved = running.folder / "state" / "last-known-good.changes"
    await _until(lambda: saved.exists() and "node-2" in saved.read_text())
    before = running.flows()
    await running.agent.kill()
    shutil.rmtree(running.manifests)
    await running.start_agent()
    told = await running.complains('"ready": true', "the last known good state is used")
    assert str(running.manifests) in told
    assert running.flows() == before
    running.manifests.mkdir()
    running.write("node.yaml", NODE)
    await _until(lambda: "172.16.2.0/24" not in running.flows())


@pytest.mark.parametrize(
    "drift",
    [
        ("del-flows", "br-int", "table=70"),
        ("add-flow", "br-int", "table=0,priority=999,ip,actions=drop"),
        ("mod-flows", "br-int", "table=5,actions=drop"),
    ],
    ids=["deleted", "added", "modified"],
)
async def test_changes_of_our_flows_by_other_programs_are_reverted(running: AgentNode, drift: tuple[str, ...]) -> None:
    before = sorted(running.flows().splitlines())
    running.ofctl(*drift)
    async with asyncio.timeout(15):
        # The agent counts after the switch has confirmed, which is after the flows are back.
        while not await running.metric("windlass_drift_healed_total"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await _until(lambda: sorted(running.flows().splitlines()) == before)


async def test_a_bridge_that_is_reset_is_filled_again_with_groups(running: AgentNode) -> None:
    """`ovs-vsctl emer-reset` clears the fail mode: ovs-vswitchd then drops all flows, and groups without telling."""
    running.write("service.yaml", SERVICE, SLICE)
    await _until(lambda: "group:" in running.flows())

    def installed() -> tuple[list[str], list[str]]:
        return sorted(running.flows().splitlines()), sorted(running.ofctl("dump-groups", "br-int").splitlines()[1:])

    before = installed()
    await run("ovs-vsctl", f"--db=unix:{running.switch.folder}/db.sock", "emer-reset")
    # Compared together: ovs-vswitchd clears the bridge again when the agent sets the fail mode.
    await _until(lambda: installed() == before)


async def test_the_api_gives_the_reason_of_every_flow_of_a_dump(running: AgentNode) -> None:
    dump = running.ofctl("dump-flows", "br-int")
    cookies = {word.split("=")[1].rstrip(",") for word in dump.split() if word.startswith("cookie=")}
    assert cookies
    for cookie in cookies:
        _, body = await running.get(f"/v1/flows?cookie={cookie}")
        assert [flow["owner"] for flow in body["flows"]] == ["Node node-1"], cookie
        assert body["flows"][0]["why"]


async def test_a_second_agent_is_refused_and_the_first_continues(running: AgentNode) -> None:
    first = running.agent
    command = [
        str(Path(sys.executable).with_name("windlass")),
        "agent",
        "--config",
        str(running.folder / "windlass.yaml"),
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert "another agent serves this Node" in done.stderr
    assert "Traceback" not in done.stderr
    assert first.alive
    await running.ready()


async def test_the_nodes_own_addresses_are_those_that_its_interfaces_have(running: AgentNode) -> None:
    """For example a virtual IP that moves between Nodes, which the Node object does not list."""
    held = "nw_dst=198.51.100.7"
    assert held not in running.flows()
    running.run("ip", "address", "add", "198.51.100.7/32", "dev", "lo")
    await _until(lambda: held in running.flows())
    running.run("ip", "address", "delete", "198.51.100.7/32", "dev", "lo")
    await _until(lambda: held not in running.flows())


async def test_a_bad_configuration_ends_with_a_sentence_and_status_2(tmp_path: Path) -> None:
    file = tmp_path / "windlass.yaml"
    file.write_text("trafficMode: teleport\n")
    command = [str(Path(sys.executable).with_name("windlass")), "agent", "--config", str(file)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"windlass agent: {file}: trafficMode: 'teleport' is not one of its values: encap or noEncap or hybrid\n"
    )


async def _until(holds) -> None:
    """Returns when the condition holds; polls, because the switch and the host have no event for it."""
    async with asyncio.timeout(15):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
