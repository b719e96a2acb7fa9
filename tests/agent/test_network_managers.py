"""A running agent with a real DHCP server and client, and a router that sends advertisements."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from agent_nodes import NODE, AgentNode, agent_node

from switches import requires_ovs
from windlass.host.linux import namespaces
from windlass.host.linux.settings import set_sysctl
from windlass.lab.sandbox.processes import Child
from windlass.model.families import Family

PROGRAMS = {"dnsmasq": "dnsmasq-base", "dhclient": "isc-dhcp-client", "radvd": "radvd"}
MISSING = [
    package for program, package in PROGRAMS.items() if not shutil.which(program, path="/usr/sbin:/sbin:/usr/bin")
]

pytestmark = [
    requires_ovs,
    pytest.mark.skipif(bool(MISSING), reason=f"needs Debian packages {', '.join(MISSING)} (tools/setup)"),
]

LEASE = 600  # seconds
ADVERTISED = """
interface {interface} {{
  AdvSendAdvert on;
  MinRtrAdvInterval 3;
  MaxRtrAdvInterval 4;
  AdvDefaultLifetime {lifetime};
  prefix 2001:db8:77::/64 {{ AdvValidLifetime {valid}; AdvPreferredLifetime {valid}; }};
}};
"""


@pytest_asyncio.fixture
async def node() -> AsyncIterator[AgentNode]:
    async with agent_node() as node:
        node.write("node.yaml", NODE)
        await node.switch.start()
        yield node


@asynccontextmanager
async def dhcp_server(node: AgentNode, address: str) -> AsyncIterator[None]:
    """A DHCP server with one address."""
    mac = json.loads(node.run("ip", "-json", "link", "show", "eth0"))[0]["address"]
    log = node.folder / "dnsmasq.log"
    server = Child(
        "dnsmasq",
        [
            *("/usr/sbin/dnsmasq", "--no-daemon", "--port=0", "--conf-file=/dev/null", "--log-dhcp", "--user=root"),
            *(f"--interface={segment(node)}", "--bind-interfaces", "--dhcp-authoritative"),
            f"--dhcp-range=10.176.25.1,static,255.255.255.0,{LEASE}",
            f"--dhcp-host={mac},{address}",
            f"--dhcp-leasefile={node.folder}/dnsmasq.leases",
        ],
        namespace=node.router,
        folder=node.folder,
        log=log,
        environment={},
    )
    try:
        await until(lambda: "DHCP, static leases only" in log.read_text())
        yield
    finally:
        await server.kill()


def lease(node: AgentNode) -> None:
    """Starts a DHCP client, whose script configures the NIC, and then kills it."""
    command = ["/sbin/dhclient", "-d", "-1", "-lf", f"{node.folder}/dhclient.leases", "--no-pid", "eth0"]
    with namespaces.entered(namespaces.path_of(node.namespace)):
        client = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with client:
        said = []
        for line in client.stderr:
            said.append(line)
            if line.startswith("bound to"):
                break
        client.kill()
    assert said[-1].startswith("bound to"), "".join(said)


@asynccontextmanager
async def advertising_router(node: AgentNode, lifetime: int, valid: int) -> AsyncIterator[None]:
    file = node.folder / "radvd.conf"
    file.write_text(ADVERTISED.format(interface=segment(node), lifetime=lifetime, valid=valid))
    command = ["/usr/sbin/radvd", "-n", "-m", "stderr", "-C", str(file), "-p", str(node.folder / "radvd.pid")]
    router = Child(
        "radvd", command, namespace=node.router, folder=node.folder, log=node.folder / "radvd.log", environment={}
    )
    try:
        yield
    finally:
        await router.stop()  # a stopping router sends an advertisement with lifetime 0


async def test_leases_are_renewed_and_replaced_while_the_nic_is_a_port(node: AgentNode) -> None:
    async with dhcp_server(node, "10.176.25.50"):
        await asyncio.to_thread(lease, node)
        assert address(node, "eth0", "10.176.25.50")["dynamic"]
        await node.start_agent()
        await node.ready()
        assert address(node, "eth0", "10.176.25.50") is None
        first = address(node, "br-int", "10.176.25.50")
        assert LEASE - 60 < first["valid_life_time"] <= LEASE
        node.run(
            "ip", "address", "change", "10.176.25.50/24", "dev", "br-int", "valid_lft", "90", "preferred_lft", "90"
        )
        await asyncio.to_thread(lease, node)
        await until(lambda: address(node, "br-int", "10.176.25.50")["valid_life_time"] > LEASE - 60)
        assert address(node, "eth0", "10.176.25.50") is None

    (node.folder / "dnsmasq.leases").unlink()
    async with dhcp_server(node, "10.176.25.51"):
        await asyncio.to_thread(lease, node)
        await until(lambda: address(node, "br-int", "10.176.25.51") is not None)
        await until(lambda: address(node, "br-int", "10.176.25.50") is None)
    assert node.answers()
    assert node.answers("10.176.25.51")


async def test_a_leased_node_ip_stays_when_the_lease_is_renewed(node: AgentNode) -> None:
    node.run("ip", "address", "flush", "dev", "eth0")
    async with dhcp_server(node, "10.176.25.11"):
        await asyncio.to_thread(lease, node)
        await node.start_agent()
        await node.ready()
        for _ in range(2):
            assert node.answers()
            assert "dynamic" not in address(node, "br-int", "10.176.25.11")
            await asyncio.to_thread(lease, node)
            await until(lambda: address(node, "eth0", "10.176.25.11") is None)


async def test_the_bridge_interface_receives_router_advertisements(node: AgentNode) -> None:
    with namespaces.entered(namespaces.path_of(node.namespace)):
        set_sysctl(Family.IPV6, "eth0", "accept_ra", 2)
    async with advertising_router(node, lifetime=60, valid=300):
        await until(lambda: learned(node, "eth0"))
        (own,) = (a["local"] for a in addresses(node, "eth0") if a["local"].startswith("2001:db8:77:"))
        await node.start_agent()
        await node.ready()
        assert address(node, "br-int", own)["dynamic"]
        # An advertisement that the NIC heard last may have put it there once more, for the next pass.
        await until(lambda: address(node, "eth0", own) is None)
        # The route that the bridge interface has learned replaces the copy that was moved.
        await until(lambda: [route["metric"] for route in learned(node, "br-int")] == [1024])
    await until(lambda: not learned(node, "br-int"))
    async with advertising_router(node, lifetime=60, valid=3000):
        await until(lambda: address(node, "br-int", own)["valid_life_time"] > 2000)
        await until(lambda: [route["metric"] for route in learned(node, "br-int")] == [1024])


def learned(node: AgentNode, interface: str) -> list[dict[str, Any]]:
    routes = json.loads(node.run("ip", "-6", "-json", "route", "show", "default", "dev", interface) or "[]")
    return [route for route in routes if route["protocol"] == "ra"]


def addresses(node: AgentNode, interface: str) -> list[dict[str, Any]]:
    (link,) = [entry for entry in json.loads(node.run("ip", "-json", "address", "show", "dev", interface)) if entry]
    return link["addr_info"]


def address(node: AgentNode, interface: str, local: str) -> dict[str, Any] | None:
    return next((info for info in addresses(node, interface) if info["local"] == local), None)


def segment(node: AgentNode) -> str:
    with namespaces.entered(namespaces.path_of(node.router)):
        (bridge,) = json.loads(subprocess.check_output(["ip", "-json", "link", "show", "type", "bridge"]))
    return bridge["ifname"]


async def until(holds: Callable[[], Any]) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 (the switch and the host have no event to await from out here)
            await asyncio.sleep(0.05)
