"""The NIC stays in the bridge whatever fails, and the Node is reachable at its address."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable

import pytest_asyncio
from agent_nodes import NODE, AgentNode, agent_node

from disks import full, small_disk
from switches import requires_ovs
from windlass.host.linux import namespaces

pytestmark = requires_ovs

MULTIPATH = """
link add d1 type veth peer name d2
link set d1 up
route add 203.0.113.0/24 nexthop via 192.0.2.1 dev d1 onlink nexthop via 10.176.25.1 dev eth0 onlink
address add 198.18.0.1/24 dev eth0
"""


@pytest_asyncio.fixture
async def node() -> AsyncIterator[AgentNode]:
    async with agent_node() as node:
        node.write("node.yaml", NODE)
        await node.switch.start()
        yield node


@pytest_asyncio.fixture
async def adopted(node: AgentNode) -> AgentNode:
    await node.start_agent()
    await node.ready()
    assert node.answers()
    return node


async def test_a_route_over_two_interfaces_does_not_disconnect_the_node(adopted: AgentNode) -> None:
    for command in MULTIPATH.strip().splitlines():
        adopted.run("ip", *command.split())
    await until(lambda: "198.18.0.1/24" in adopted.addresses("br-int"))
    adopted.run("ip", "address", "add", "198.18.0.2/24", "dev", "eth0")
    await until(lambda: "198.18.0.2/24" in adopted.addresses("br-int"))
    assert_wired(adopted)


async def test_an_address_that_is_added_while_another_one_moves_is_not_lost(adopted: AgentNode) -> None:
    """The kernel may remove all addresses of a network with the first one, which the agent removes."""
    await adopted.agent.kill()  # it would move them
    for address in ("198.18.0.1/24", "198.18.0.2/24"):
        adopted.run("ip", "address", "add", address, "dev", "eth0")
    adopted.run("ip", "address", "delete", "198.18.0.1/24", "dev", "eth0")
    assert "198.18.0.2/24" in adopted.addresses("eth0")


async def test_a_full_disk_and_a_new_address_do_not_disconnect_the_node(node: AgentNode) -> None:
    with small_disk(node.folder / "state") as disk:
        await node.start_agent()
        await node.ready()
        with full(disk):
            node.run("ip", "address", "add", "198.18.0.1/24", "dev", "eth0")
            await node.complains("could not write the record", "No space left on device")
            await until(lambda: "198.18.0.1/24" in node.addresses("br-int"))
            assert_wired(node)
            node.run("ip", "link", "set", "br-int", "mtu", "1400")  # leads to another pass
            await until(lambda: " mtu 1500 " in node.run("ip", "link", "show", "br-int"))
            assert "could not write the record" in await node.complains("uplink")
        await node.health(lambda status, body: status == 200 and "uplink" not in body["problems"])
        assert "198.18.0.1" in (disk / "uplink.json").read_text()


async def test_a_node_that_starts_with_a_full_disk_keeps_its_nic(node: AgentNode) -> None:
    with small_disk(node.folder / "state") as disk, full(disk):
        await node.start_agent()
        await node.complains("could not write the record", "No space left on device")
        await until(lambda: "eth0" not in ports(node))
        assert "10.176.25.11/24" in node.addresses("eth0")
        assert node.answers()
    await node.ready()
    assert_wired(node)


async def test_the_node_stays_reachable_if_the_state_directory_is_lost(adopted: AgentNode) -> None:
    await adopted.agent.kill()
    await adopted.start_agent(stateDirectory=str(adopted.folder / "another"))
    await adopted.ready()
    assert_wired(adopted)
    assert (adopted.folder / "another" / "uplink.json").exists()


async def test_a_copy_of_the_node_ip_elsewhere_does_not_disconnect_the_node(adopted: AgentNode) -> None:
    adopted.run("ip", "address", "add", "10.176.25.11/32", "dev", "lo")
    adopted.run("ip", "address", "add", "198.18.0.1/24", "dev", "eth0")
    await until(lambda: "198.18.0.1/24" in adopted.addresses("br-int"))
    await adopted.ready()
    assert_wired(adopted)


async def test_a_nic_that_is_removed_and_added_again_becomes_the_uplink_again(adopted: AgentNode) -> None:
    """As when a driver is reloaded."""
    adopted.run("ip", "link", "delete", "eth0")
    await adopted.complains("there is no interface eth0")
    assert "10.176.25.11/24" in adopted.addresses("br-int")
    plug_a_new_nic_in(adopted)
    await until(adopted.answers)
    await adopted.health(lambda status, body: status == 200 and not body["problems"])
    assert_wired(adopted)


async def test_without_ovsdb_server_the_node_answers_by_its_nic_and_is_adopted_again(adopted: AgentNode) -> None:
    await adopted.switch._database.kill()
    await answers_by_its_nic(adopted)
    await start_database(adopted)
    await is_adopted_again(adopted)


async def test_without_ovs_vswitchd_the_node_answers_by_its_nic_and_is_adopted_again(adopted: AgentNode) -> None:
    await adopted.switch._switch.kill()
    await answers_by_its_nic(adopted)
    await adopted.switch.restart()
    await is_adopted_again(adopted)


async def test_an_agent_that_starts_without_ovsdb_server_returns_the_addresses_to_the_nic(adopted: AgentNode) -> None:
    await adopted.agent.kill()
    await adopted.switch._database.kill()
    await adopted.start_agent()
    await answers_by_its_nic(adopted)
    await adopted.complains("has the Node's addresses until Open vSwitch answers")
    await start_database(adopted)
    await is_adopted_again(adopted)


async def test_an_agent_that_starts_without_ovs_vswitchd_returns_the_addresses_to_the_nic(adopted: AgentNode) -> None:
    await adopted.agent.kill()
    await adopted.switch._switch.kill()
    await adopted.start_agent()
    await answers_by_its_nic(adopted)
    await adopted.switch.restart()
    await is_adopted_again(adopted)


async def answers_by_its_nic(node: AgentNode) -> None:
    await until(lambda: "10.176.25.11/24" in node.addresses("eth0") and node.answers())


async def is_adopted_again(node: AgentNode) -> None:
    await until(lambda: "10.176.25.11/24" in node.addresses("br-int") and node.answers())
    await node.health(lambda status, body: status == 200 and "uplink" not in body["problems"])
    assert_wired(node)


async def start_database(node: AgentNode) -> None:
    node.switch._database = await node.switch._daemons.start_database()


def plug_a_new_nic_in(node: AgentNode) -> None:
    with namespaces.entered(namespaces.path_of(node.router)):
        (segment,) = json.loads(subprocess.check_output(["ip", "-json", "link", "show", "type", "bridge"]))
        for command in (
            f"ip link add again type veth peer name eth0 netns {node.namespace}",
            f"ip link set again up master {segment['ifname']}",
        ):
            subprocess.run(command.split(), check=True)


def assert_wired(node: AgentNode) -> None:
    assert "eth0" in ports(node)
    assert "10.176.25.11/24" in node.addresses("br-int")
    assert "10.176.25.11" not in node.addresses("eth0")
    assert node.answers()


def ports(node: AgentNode) -> list[str]:
    environment = {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", **node.switch.environment}
    command = ["ovs-vsctl", "list-ports", "br-int"]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment).stdout.split()


async def until(holds: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(15):
        while not holds():  # noqa: ASYNC110 (the switch and the host have no event to await from out here)
            await asyncio.sleep(0.05)
