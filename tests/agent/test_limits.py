"""How many connections a Node tracks, and for how long, with the rules of kube-proxy."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from agent_nodes import NODE, PATIENCE, AgentNode, agent_node

from switches import requires_ovs
from windlass.agent.limits import connection_limit, host_plan, zone_timeouts
from windlass.host.linux import namespaces
from windlass.host.plans import ConntrackParameter, ConntrackSetting
from windlass.lab.network import ovs
from windlass.lab.network.underlays import make_namespace
from windlass.nodes.config import Config, DatapathType

NETFILTER = Path("/proc/sys/net/netfilter")


@pytest.mark.parametrize(
    ("per_core", "least", "cpus", "limit"),
    [
        (32768, 131072, 2, 131072),
        (32768, 131072, 4, 131072),
        (32768, 131072, 8, 262144),
        (1000, 0, 3, 3000),
        (0, 131072, 8, 0),
    ],
)
def test_the_limit_grows_with_the_cpus(per_core: int, least: int, cpus: int, limit: int):
    config = Config(conntrack_max_per_core=per_core, conntrack_min=least)
    assert connection_limit(config, cpus) == limit


def test_the_defaults_are_those_of_kube_proxy():
    assert host_plan(Config()).tracking == {
        ConntrackSetting(ConntrackParameter.LIMIT, max(131072, 32768 * (os.cpu_count() or 1))),
        ConntrackSetting(ConntrackParameter.TCP_ESTABLISHED, 24 * 3600),
        ConntrackSetting(ConntrackParameter.TCP_CLOSE_WAIT, 3600),
    }


def test_zero_leaves_a_setting_as_it_is():
    zeros = {field: 0 for field in Config.__struct_fields__ if field.startswith("conntrack_")}
    assert len(zeros) == 6
    assert not host_plan(Config(**zeros)).tracking


def test_timeout_policies_of_kernel_zones_have_the_same_timeouts():
    kernel = Config(conntrack_udp_stream_seconds=77, datapath_type=DatapathType.SYSTEM)
    assert zone_timeouts(kernel) == {"tcp_established": 24 * 3600, "tcp_close_wait": 3600, "udp_multiple": 77}
    assert zone_timeouts(Config(datapath_type=DatapathType.NETDEV)) == {}


@pytest_asyncio.fixture
async def node() -> AsyncIterator[AgentNode]:
    async with agent_node() as node:
        node.write("node.yaml", NODE)
        await node.switch.start()
        yield node


async def restart(node: AgentNode, **options: object) -> None:
    if node.agent:
        await node.agent.stop()
    await node.start_agent(**options)
    await node.ready()


@requires_ovs
@pytest.mark.parametrize(("system", "zones"), [("linux", True), ("windows", False)])
async def test_only_a_datapath_that_has_timeouts_by_zone_gets_them(node: AgentNode, system: str, zones: bool) -> None:
    """The Windows datapath reports that it has them."""
    node.write("node.yaml", {**NODE, "metadata": {**NODE["metadata"], "labels": {"kubernetes.io/os": system}}})
    await restart(node)
    listed = node.run("ovs-vsctl", f"--db=unix:{node.switch.folder}/db.sock", "list", "CT_Timeout_Policy")
    assert bool(listed.strip()) == zones


def maxconns(node: AgentNode, *value: str) -> str:
    command = f"dpctl/ct-{'set' if value else 'get'}-maxconns"
    return node.run("ovs-appctl", "-t", f"{node.switch.folder}/ovs-vswitchd.ctl", command, *value).strip()


@requires_ovs
@pytest.mark.skipif(not NETFILTER.exists(), reason="the kernel does not track connections")
async def test_an_agent_sets_the_timeouts_of_its_node(node: AgentNode) -> None:
    def timeout(name: str) -> int:
        return int(node.run("cat", str(NETFILTER / f"nf_conntrack_{name}")))

    await restart(node)
    assert timeout("tcp_timeout_close_wait") == 3600
    assert timeout("tcp_timeout_established") == 86400
    await restart(node, conntrackTcpCloseWaitSeconds=120, conntrackUdpStreamSeconds=77)
    assert timeout("tcp_timeout_close_wait") == 120
    assert timeout("udp_timeout_stream") == 77


@requires_ovs
@pytest.mark.skipif(ovs.datapath_type() != "netdev", reason="on the kernel datapath connections are the kernel's")
async def test_an_agent_raises_the_limit_of_its_switch_and_never_lowers_it(node: AgentNode) -> None:
    await restart(node)
    assert node.agent
    await node.agent.stop()  # its next pass would raise the limit again
    maxconns(node, "1000")
    await restart(node, conntrackMaxPerCore=0)
    assert maxconns(node) == "1000"
    await restart(node, conntrackMaxPerCore=1, conntrackMin=200000)
    assert maxconns(node) == "200000"
    await restart(node)
    assert maxconns(node) == str(max(200000, connection_limit(Config())))


def half_closed(node: AgentNode, sandbox: str) -> list[list[str]]:
    """The line of a Pod's half-closed connection in the kernel's list, split into words."""
    with namespaces.entered(namespaces.path_of(node.router)):
        server = socket.create_server(("10.176.25.1", 0))
    with namespaces.entered(namespaces.path_of(sandbox)):
        client = socket.create_connection(server.getsockname(), timeout=PATIENCE)
    with server, client, server.accept()[0] as served:
        client.shutdown(socket.SHUT_WR)
        assert served.recv(1) == b""
        served.send(b"x")  # with this the end of the other side is acknowledged
        assert client.recv(1) == b"x"
        lines = node.run("cat", "/proc/net/nf_conntrack").splitlines()
    return [line.split() for line in lines if "CLOSE_WAIT" in line]


@requires_ovs
@pytest.mark.timeout(6 * PATIENCE)
@pytest.mark.skipif(ovs.datapath_type() != "system", reason="needs the kernel datapath (tools/test-kernel)")
async def test_a_pods_half_closed_connection_is_tracked_for_an_hour(node: AgentNode) -> None:
    """Required by Kubernetes' test of the CLOSE_WAIT timeout. Kernel datapath only."""
    await restart(node)
    sandbox = f"{node.namespace}-pod"
    make_namespace(sandbox)
    await node.attach_pod(sandbox)
    entries = half_closed(node, sandbox)
    assert "zone=65520" in {word for entry in entries for word in entry}
    assert all(3600 - 60 <= int(entry[4]) <= 3600 for entry in entries), entries
