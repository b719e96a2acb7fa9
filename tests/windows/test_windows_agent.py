"""The whole agent in Windows CPython, on the real Open vSwitch for Windows, over real named pipes.

Its IP stack is a Linux namespace, by the stand-in of IP Helper; the cluster is a folder of manifests. Its switch has
the dummy datapath: no packet is sent.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml
from test_windows_plugin import call
from windows_machines import requires_stand_ins

from switches import requires_ovs
from windlass.agent import agents
from windlass.agent.logs import Logs
from windlass.channels import local
from windlass.cli.agent_client import ask
from windlass.cluster.manifests import Manifests, revision_of
from windlass.nodes.config import Config, LogFormat, LogLevel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PATIENCE = 120
HOST_LOCAL = os.environ.get("WINDLASS_WINDOWS_HOST_LOCAL", "")
requires_host_local = pytest.mark.skipif(not HOST_LOCAL, reason="needs host-local.exe: tools/test-windows")

# aiohttp warns about lambdas as handlers, and in this process a warning is an error.
pytestmark = [pytest.mark.filterwarnings("ignore:Bare functions are deprecated"), pytest.mark.timeout(600)]


def node(name: str, address: str, number: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "windows"}},
        "spec": {"podCIDRs": [f"10.0.{number}.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }


def service(name: str, number: int) -> list[dict[str, object]]:
    ports = [{"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30000 + number}]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"type": "NodePort", "clusterIP": f"10.96.0.{number}", "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{name}-1",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": ["10.0.2.10"], "nodeName": "near", "conditions": {"ready": True}}],
        },
    ]


class RunningAgent:
    def __init__(self, config: Config) -> None:
        self.config = config

    async def asked(self, path: str, **parameters: str) -> dict[str, object]:
        answer = await asyncio.to_thread(ask, self.config.api_socket, path, parameters, "GET", PATIENCE + 10.0)
        return json.loads(answer)

    async def converged(self, folder) -> None:
        state = await self.asked("/v1/convergence", revision=revision_of(folder), timeout=str(PATIENCE))
        assert state["converged"], state


@asynccontextmanager
async def running(machine, switch, folder) -> AsyncIterator[RunningAgent]:
    config = Config(
        node_name="node-1",
        manifests=str(folder),
        run_directory=str(machine.state_directory / "run"),
        state_directory=str(machine.state_directory),
        ovs_run_directory=str(switch.rundir),
        service_cidrs=("10.96.0.0/16",),
        healthz_bind_address="",
        metrics_bind_address="",
        ipam_plugin=HOST_LOCAL,
    )
    if not machine.service_state()["networks"]:
        machine.remove_bridge()  # HNS makes it
    host = machine.open_host()
    work = asyncio.create_task(agents.run(config, Logs(LogFormat.TEXT, LogLevel.WARNING), host, Manifests(folder)))
    try:
        await until(lambda: _is_served(config, work))
        yield RunningAgent(config)
    finally:
        work.cancel()
        await asyncio.wait((work,))
        await host.close()
    assert not local.is_served(config.api_socket)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110 (neither the switch nor a pipe has an event to await from out here)
            await asyncio.sleep(0.05)


async def _is_served(config: Config, work: asyncio.Task[None]) -> bool:
    if work.done():
        work.result()
    return local.is_served(config.api_socket)


async def _holds_flows(switch, flows: list[str]) -> bool:
    return await flows_of(switch) == flows


async def flows_of(switch) -> list[str]:
    dumped = await switch.ofctl("--no-stats", "--no-names", "dump-flows", f"unix:{switch.management('br-int')}")
    return sorted(line for line in dumped.splitlines() if "cookie" in line or "table" in line)


@requires_stand_ins
@requires_ovs
async def test_the_agent_takes_the_node_follows_the_cluster_and_starts_again(machine, switch, tmp_path):
    folder = tmp_path / "manifests"
    folder.mkdir()
    nodes = [node("node-1", "192.0.2.5", 1), node("near", "192.0.2.6", 2), node("far", "192.0.99.7", 3)]
    (folder / "nodes.yaml").write_text(yaml.safe_dump_all([*nodes, *service("web", 10)]))

    async with running(machine, switch, folder) as agent:
        await agent.converged(folder)
        state = await agent.asked("/v1/state")
        assert state["ready"]
        flows = await flows_of(switch)
        assert len(flows) == state["flowCount"] > 50
        # The bridge interface has the Node's address and default route, the gateway leads to peers and Services.
        assert machine.holders("192.0.2.5") == {"br-int"}
        for destination in ("default", "10.0.2.0/24", "10.0.3.0/24", "10.96.0.0/16"):
            assert machine.has_route(destination), destination
        assert machine.holders("10.0.1.1") == {"windlass-gw0"}

        # A new Service is followed.
        (folder / "more.yaml").write_text(yaml.safe_dump_all(service("shop", 11)))
        await agent.converged(folder)
        more = await flows_of(switch)
        assert any("10.96.0.11" in flow for flow in more)
        assert not any("10.96.0.11" in flow for flow in flows)

        # A flow that somebody deletes comes back.
        await switch.ofctl("del-flows", f"unix:{switch.management('br-int')}", "ip,nw_dst=10.96.0.11")
        await until(lambda: _holds_flows(switch, more))

    changes = int(await switch.vsctl("get", "Open_vSwitch", ".", "next_cfg"))
    async with running(machine, switch, folder) as agent:
        await agent.converged(folder)
        assert await flows_of(switch) == more  # cookies and all: nothing was sent again
        assert machine.holders("192.0.2.5") == {"br-int"}
        # ovs-vswitchd tries again to create what it may have failed to create before the extension was enabled.
        assert int(await switch.vsctl("get", "Open_vSwitch", ".", "next_cfg")) > changes


@requires_stand_ins
@requires_ovs
async def test_a_new_gateway_interface_gets_its_address_its_routes_and_forwarding(machine, switch, tmp_path):
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "nodes.yaml").write_text(
        yaml.safe_dump_all([node("node-1", "192.0.2.5", 1), node("far", "192.0.99.7", 3)])
    )

    async def is_ready() -> bool:
        has_routes = machine.has_route("10.0.3.0/24") and machine.has_route("10.96.0.0/16")
        return has_routes and machine.holders("10.0.1.1") == {"windlass-gw0"} and machine.forwards("windlass-gw0")

    async with running(machine, switch, folder) as agent:
        await agent.converged(folder)
        assert await is_ready()
        assert machine.forwards("br-int")
        machine.replace_gateway()
        assert not await is_ready()
        await until(is_ready)


@requires_stand_ins
@requires_ovs
async def test_a_second_agent_is_refused(machine, switch, tmp_path):
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "nodes.yaml").write_text(yaml.safe_dump_all([node("node-1", "192.0.2.5", 1)]))
    async with running(machine, switch, folder) as agent:
        await agent.converged(folder)
        host = machine.open_host()
        logs = Logs(LogFormat.TEXT, LogLevel.WARNING)
        try:
            await agents.run(agent.config, logs, host, Manifests(folder))
        except OSError as error:
            assert "another agent serves this Node" in str(error)  # noqa: PT017 - a group would be an error, too
        finally:
            await host.close()
        assert msgspec.json.encode(await agent.asked("/v1/state"))


async def _interface(switch, name: str) -> str:
    return await switch.vsctl("--bare", "--columns=type,ofport", "find", "Interface", f"name={name}")


def cni_request(sandbox: str) -> dict[str, str]:
    return {
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": sandbox,
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0",
        "CNI_PATH": "C:/opt/cni/bin",
    }


@requires_stand_ins
@requires_ovs
@requires_host_local
async def test_after_a_reboot_the_network_is_made_again_and_ports_of_former_pods_go(machine, switch, tmp_path):
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "nodes.yaml").write_text(yaml.safe_dump_all([node("node-1", "192.0.2.5", 1)]))
    async with running(machine, switch, folder) as agent:
        await agent.converged(folder)
        status, added = await call(agent.config.cni_socket, CNI_COMMAND="ADD", **cni_request(machine.new_sandbox()))
        assert status == 0, added
        port = added["interfaces"][0]["name"]
        await switch.vsctl("wait-until", "Interface", port, "type=internal")

    await switch.stop_vswitchd()
    await switch.stop_database()
    machine.reboot()
    await switch.start_database()
    await switch.start_vswitchd()
    assert machine.holders("192.0.2.5") == {"eth0"}
    assert await _interface(switch, port) != ""

    async with running(machine, switch, folder) as agent:
        await agent.converged(folder)
        assert machine.holders("192.0.2.5") == {"br-int"}
        assert machine.has_route("default")
        assert len(machine.service_state()["networks"]) == 1
        assert await _interface(switch, port) == ""


@requires_stand_ins
@requires_ovs
@requires_host_local
async def test_a_pod_is_attached_by_the_plugin_and_its_port_follows_its_interface(machine, switch, tmp_path):
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "nodes.yaml").write_text(yaml.safe_dump_all([node("node-1", "192.0.2.5", 1)]))
    async with running(machine, switch, folder) as agent:
        await agent.converged(folder)
        sandbox = machine.new_sandbox()
        request = cni_request(sandbox)
        dns = {"runtimeConfig": {"dns": {"servers": ["10.96.0.10"]}}}
        with machine.late_interfaces():
            status, first = await call(agent.config.cni_socket, dns, CNI_COMMAND="ADD", **request)
        assert status == 0, first
        (address,) = (ip["address"] for ip in first["ips"])
        assert address == "10.0.1.2/24"
        assert first["dns"] == {"nameservers": ["10.96.0.10"]}
        name = first["interfaces"][0]["name"]
        assert "internal" not in await _interface(switch, name)
        assert not any("10.0.1.2" in flow for flow in await flows_of(switch))

        machine.start_container(name)

        async def has_flows() -> bool:
            return any("10.0.1.2" in flow for flow in await flows_of(switch))

        await until(has_flows)
        assert "internal" in await _interface(switch, name)
        assert await call(agent.config.cni_socket, dns, CNI_COMMAND="ADD", **request) == (0, first)
        for netns in (sandbox, ""):
            status, said = await call(agent.config.cni_socket, CNI_COMMAND="DEL", **{**request, "CNI_NETNS": netns})
            assert status == 0, said
        assert await _interface(switch, name) == ""
        assert machine.service_state()["endpoints"] == {}
        assert not await has_flows()
