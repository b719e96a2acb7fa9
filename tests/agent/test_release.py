"""`windlass release` restores the Node's network; the Node is reachable all the time."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest_asyncio
from agent_nodes import AgentNode, peer

from switches import requires_ovs
from windlass.host.linux import namespaces
from windlass.lab.network import ovs
from windlass.lab.network.underlays import Underlay, make_namespace
from windlass.lab.sandbox import labs
from windlass.lab.scenarios import segments
from windlass.lab.scenarios.segments import Machine

pytestmark = requires_ovs

WINDLASS = str(Path(sys.executable).with_name("windlass"))
NODE_IPS = ("10.176.25.11", "fd00:25::11")
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-1"},
    "spec": {"podCIDRs": ["172.16.1.0/24", "fd00:16:1::/64"]},
    "status": {"addresses": [{"type": "InternalIP", "address": address} for address in NODE_IPS]},
}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "type": "LoadBalancer",
        "clusterIP": "10.96.0.10",
        "clusterIPs": ["10.96.0.10"],
        "externalIPs": ["198.51.100.7"],
        "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
    },
}
SLICE = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"name": "http", "port": 8080}],
    "endpoints": [{"addresses": ["172.16.2.5"], "nodeName": "node-2", "conditions": {"ready": True}}],
}
# What an administrator has set up beside the defaults.
OWN = """
address add 10.176.25.77/24 dev eth0
route add 203.0.113.0/24 via 10.176.25.1 dev eth0 src 10.176.25.77 metric 50 mtu 1400
route add 2001:db8:9::/48 via fd00:25::1 dev eth0 metric 70
route add 203.0.114.0/24 via 10.177.25.1 dev eth1
"""


class ReleasedNode(AgentNode):
    before: dict[str, object]  # what the Node was like

    def run(self, *command: str, check: bool = True, stdin: str = "") -> str:
        with namespaces.entered(namespaces.path_of(self.namespace)):
            done = subprocess.run(command, input=stdin, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def snapshot(self) -> dict[str, object]:
        """Everything that Windlass could have changed, according to the host's own tools."""
        found: dict[str, object] = {
            what: _sorted(json.loads(self.run("ip", "-j", *what.split()) or "[]"))
            for what in (
                "address show",
                "-details link show",
                "-4 route show table all",
                "-6 route show table all",
                "-4 rule show",
                "-6 rule show",
            )
        }
        found["nftables"] = self.run("nft", "list", "ruleset")
        found["qdiscs"] = self.run("tc", "qdisc", "show")
        found["filters"] = [self.run("tc", "filter", "show", "dev", nic, "ingress") for nic in ("eth0", "eth1")]
        if shutil.which("ethtool"):
            found["offloads"] = [self.run("ethtool", "-k", nic) for nic in ("eth0", "eth1")]
        found["sysctls"] = [line for line in self.run("sysctl", "-a", check=False).splitlines() if not _VOLATILE(line)]
        return found

    def release_command(self, *options: str) -> list[str]:
        folders = [f"--{name}={self.folder / name}" for name in ("binaries", "configurations")]
        return [WINDLASS, "release", "--config", str(self.folder / "windlass.yaml"), *folders, *options]

    async def release(self, *options: str) -> subprocess.CompletedProcess[str]:
        def run() -> subprocess.CompletedProcess[str]:
            with namespaces.entered(namespaces.path_of(self.namespace)):
                command = self.release_command(*options)
                return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)

        return await asyncio.to_thread(run)

    def answers_everywhere(self) -> bool:
        """Whether it answers at all its addresses; a SYN that is lost during the change is sent again."""
        return all(any(self.answers(address) for _ in range(3)) for address in NODE_IPS)

    def remains(self) -> list[str]:
        """Files of Windlass."""
        folders = ("state", "run", "binaries", "configurations")
        return sorted(str(path) for folder in folders for path in (self.folder / folder).rglob("*"))


# Sysctls outside of `net` belong to the machine.
_VOLATILE = re.compile(r"(?!net\.)|.*nf_conntrack_(count|buckets)").match


def _sorted(listed: list[dict[str, Any]]) -> list[str]:
    """Without values that change by themselves, and without two irrelevant flags of addresses."""
    for entry in listed:
        for address in entry.get("addr_info", ()):
            address.pop("broadcast", None)
            address.pop("nodad", None)
        for key in ("stats", "stats64"):
            entry.pop(key, None)
    return sorted(json.dumps(entry, sort_keys=True) for entry in listed if entry)


@pytest_asyncio.fixture
async def node() -> AsyncIterator[ReleasedNode]:
    """A Node with two NICs in both families, before Windlass."""
    nics = (
        segments._nic("eth0", [ip_address(address) for address in NODE_IPS]),
        segments._nic("eth1", [ip_address("10.177.25.11")]),
    )
    client_nic = segments._nic("eth0", [ip_address("10.176.25.50"), ip_address("fd00:25::50")])
    machine, client = Machine("node", "node-1", nics), Machine("host", "client", (client_nic,))
    with labs.opened() as lab:
        underlay = Underlay(lab, segments.segments([machine, client]))
        await asyncio.to_thread(underlay.create)
        namespace = await asyncio.to_thread(underlay.plug, machine)
        node = ReleasedNode(lab.folder, namespace, await asyncio.to_thread(underlay.plug, client))
        node.run("ip", "-batch", "-", stdin=OWN)
        for name, value in (("ipv4/conf/all/rp_filter", "1"), ("ipv6/conf/eth1/accept_ra", "1")):
            node.run("sh", "-c", f"echo {value} > /proc/sys/net/{name}")
        node.before = node.snapshot()
        node.write("node.yaml", NODE, peer("node-2", "10.176.25.12", "172.16.2.0/24"), SERVICE, SLICE)
        for folder, name in (("binaries", "windlass-cni"), ("configurations", "10-windlass.conflist")):
            (node.folder / folder).mkdir()
            (node.folder / folder / name).touch()
        await node.switch.start()
        await node.start_agent()
        await node.ready()
        sandbox = lab.namespace("pod", "pod-1")
        make_namespace(sandbox)
        await node.attach_pod(sandbox)
        assert "windlass" in node.run("nft", "list", "tables")
        assert node.snapshot()["sysctls"] != node.before["sysctls"]
        try:
            yield node
        finally:
            await node.end()


def assert_as_before(node: ReleasedNode) -> None:
    after = node.snapshot()
    for what, was in node.before.items():
        assert after[what] == was, what
    assert node.remains() == []
    assert node.answers_everywhere()


async def test_a_release_removes_everything(node: ReleasedNode) -> None:
    database = f"--db=unix:{node.switch.folder}/db.sock"
    assert "tcp_close" in node.run("ovs-vsctl", database, "list-zone-tp", ovs.datapath_type())
    await node.agent.stop()
    told = await node.release()
    assert told.returncode == 0, told
    assert "eth0 has its addresses and routes" in told.stdout
    assert "1 Pods have lost their network" in told.stdout
    assert_as_before(node)
    assert "br-int" not in node.run("ovs-vsctl", database, "show")
    assert node.run("ovs-vsctl", database, "get", "open_vswitch", ".", "datapaths") == "{}\n"

    again = await node.release()
    assert (again.returncode, again.stderr) == (0, "")
    assert_as_before(node)


async def test_a_running_agent_must_stop_first(node: ReleasedNode) -> None:
    told = await node.release()
    assert told.returncode == 2
    assert "an agent serves this Node" in told.stderr
    await node.ready()
    assert (node.folder / "configurations" / "10-windlass.conflist").exists()

    waiting = asyncio.create_task(node.release("--wait", "60"))
    await node.agent.stop()
    assert (await waiting).returncode == 0
    assert_as_before(node)


async def test_without_open_vswitch(node: ReleasedNode) -> None:
    """When ovs-vswitchd stops, the bridge interface disappears and the Node is offline: a release reconnects it."""
    await node.agent.kill()
    await node.switch.end()
    told = await node.release()
    assert node.answers_everywhere()
    assert told.returncode == 1
    assert "Its database may still hold bridge br-int" in told.stderr
    assert_as_before(node)


async def test_without_ovs_vswitchd(node: ReleasedNode) -> None:
    await node.agent.kill()
    await node.switch._switch.kill()
    told = await node.release()
    assert told.returncode == 0, told
    assert_as_before(node)
    await node.switch.restart()
    assert node.answers_everywhere()
    assert_as_before(node)


async def test_the_node_answers_when_a_release_is_killed_and_the_next_one_completes_it(node: ReleasedNode) -> None:
    await node.agent.kill()
    killed = 0
    for moment in range(20, 300, 2):
        process = await asyncio.create_subprocess_exec(
            *("nsenter", f"--net={namespaces.path_of(node.namespace)}", *node.release_command()),
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            await asyncio.wait_for(process.wait(), moment / 100)
        except TimeoutError:
            with suppress(ProcessLookupError):  # it has just ended by itself
                process.kill()
            killed += await process.wait() != 0
        assert await asyncio.to_thread(node.answers_everywhere), f"killed after {moment / 100} s"
        if process.returncode == 0:
            break
    assert killed
    assert process.returncode == 0
    assert_as_before(node)


async def test_an_agent_takes_the_nic_again_after_an_interrupted_release(node: ReleasedNode) -> None:
    await node.agent.kill()
    host_state = node.folder / "state"
    await asyncio.to_thread(_lend, node, host_state)
    assert "10.176.25.11/24" in node.addresses("eth0")
    assert node.answers_everywhere()
    await node.start_agent()
    await node.ready()
    assert "10.176.25.11" not in node.addresses("eth0")
    assert "metric 51" not in node.run("ip", "route")
    assert node.answers_everywhere()


async def test_a_stopping_switch_returns_the_nic_to_the_host_until_it_restarts(node: ReleasedNode) -> None:
    """As by the switch's Pod when it stops. On the userspace datapath nothing else forwards then."""
    waiting = asyncio.create_task(node.release("--nic-only"))
    await node.switch._switch.stop()
    told = await waiting
    assert told.returncode == 0, told
    assert "eth0 has its addresses and routes until an agent takes it again" in told.stdout
    assert node.answers_everywhere()
    assert "10.176.25.11/24" in node.addresses("eth0")

    await node.switch.restart()
    await node.health(lambda status, body: status == 200 and not body["problems"])
    assert "10.176.25.11" not in node.addresses("eth0")
    assert node.answers_everywhere()
    _, state = await node.get("/v1/state")
    assert list(state["pods"]) == ["default/pod-1"]


def _lend(node: ReleasedNode, state: Path) -> None:
    """Only the first step of a release."""
    code = (
        "import asyncio, sys; from pathlib import Path; from windlass.host.linux.hosts import LinuxHost;"
        "asyncio.run(LinuxHost(Path(sys.argv[1])).uplink.lend('eth0', 'br-int'))"
    )
    node.run(sys.executable, "-c", code, str(state))
