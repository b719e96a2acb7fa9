"""One Node with a real NIC, real Open vSwitch and the real agent process, for tests that break things around it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from windlass.host.linux import namespaces
from windlass.host.linux.netlink import Netlink
from windlass.host.linux.settings import set_offloads
from windlass.lab.network import ovs
from windlass.lab.network.underlays import Underlay
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.processes import Child
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios import segments
from windlass.lab.scenarios.segments import Machine

PATIENCE = seconds(20.0)
PLUGIN = Path(__file__).parents[2] / "build" / "cni" / "windlass-cni"
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-1"},
    "spec": {"podCIDRs": ["172.16.1.0/24"]},
    "status": {"addresses": [{"type": "InternalIP", "address": "10.176.25.11"}]},
}


def peer(name: str, address: str, cidr: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"podCIDRs": [cidr]},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }


class AgentNode:
    def __init__(self, folder: Path, namespace: str, router: str) -> None:
        self.folder = folder
        self.namespace = namespace
        self.router = router  # the namespace at the other end of the wire
        self.manifests = folder / "manifests"
        self.switch = ovs.SwitchProcesses.on_linux("node-1", namespace, folder / "ovs")
        self.agent: Child | None = None
        self.manifests.mkdir()

    def write(self, name: str, *objects: object) -> None:
        (self.manifests / name).write_text(yaml.safe_dump_all(objects))

    async def start_agent(self, **options: object) -> None:
        config = {
            "nodeName": "node-1",
            "manifests": str(self.manifests),
            "runDirectory": str(self.folder / "run"),
            "stateDirectory": str(self.folder / "state"),
            "ovsRunDirectory": str(self.switch.folder),
            "datapathType": ovs.datapath_type(),
            "ipamPlugin": "/usr/lib/cni/host-local",
            "logFormat": "text",
            **options,
        }
        file = self.folder / "windlass.yaml"
        file.write_text(yaml.safe_dump(config))
        self.agent = Child(
            "the agent",
            [str(Path(sys.executable).with_name("windlass")), "agent", "--config", str(file)],
            namespace=self.namespace,
            folder=self.folder,
            log=self.folder / "agent.log",
            environment={},
        )
        await self.agent.listening(self.folder / "run" / "agent.sock")

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        connector = aiohttp.UnixConnector(str(self.folder / "run" / "agent.sock"))
        async with aiohttp.ClientSession(connector=connector) as session, session.get(f"http://agent{path}") as answer:
            return answer.status, json.loads(await answer.read())

    async def metric(self, name: str) -> float:
        connector = aiohttp.UnixConnector(str(self.folder / "run" / "agent.sock"))
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://agent/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    async def health(self, wanted: Callable[[int, dict[str, object]], bool]) -> dict[str, object]:
        """Waits until the agent's health is as wanted, and returns it; fails with the last health."""
        status, body = 0, {}
        try:
            async with asyncio.timeout(PATIENCE):
                while not wanted(*(answer := await self.get("/healthz"))):
                    status, body = answer
                    await asyncio.sleep(0.02)
        except TimeoutError:
            log = (self.folder / "agent.log").read_text()
            raise AssertionError(f"the agent stays at {status} {body}; its log:\n{log}") from None
        return answer[1]

    async def ready(self) -> dict[str, object]:
        return await self.health(lambda status, _: status == 200)

    async def complains(self, *words: str) -> str:
        """Waits until the problems contain all the words, and returns the problems as one text."""

        def said(_: int, body: dict[str, object]) -> bool:
            return all(word in json.dumps(body) for word in words)

        return json.dumps(await self.health(said))

    def flows(self) -> str:
        return self.ofctl("dump-flows", "br-int", "--no-stats")

    def ofctl(self, *arguments: str) -> str:
        command = ["ovs-ofctl", "-O", "OpenFlow15", *arguments]
        environment = {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", **self.switch.environment}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

    def run(self, *command: str, stdin: str = "") -> str:
        """A command on the Node."""
        with namespaces.entered(namespaces.path_of(self.namespace)):
            return subprocess.run(command, input=stdin, check=True, capture_output=True, text=True).stdout

    async def attach_pod(self, sandbox: str) -> None:
        environment = {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": str(namespaces.path_of(sandbox)),
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/usr/lib/cni",
            "CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-1",
        }
        config = {"cniVersion": "1.0.0", "name": "w", "type": "w", "agentSocket": str(self.folder / "run" / "cni.sock")}
        command = ["env", *(f"{key}={value}" for key, value in environment.items()), str(PLUGIN)]
        await asyncio.to_thread(self.run, *command, stdin=json.dumps(config))

    def answers(self, address: str = "10.176.25.11") -> bool:
        """Whether the Node answers its router: nothing listens at the port, so a reachable machine refuses."""
        with namespaces.entered(namespaces.path_of(self.router)):
            try:
                socket.create_connection((address, 9), timeout=1.0).close()
            except ConnectionRefusedError:
                return True
            except OSError:
                return False
        return True

    def addresses(self, interface: str) -> str:
        with namespaces.entered(namespaces.path_of(self.namespace)):
            command = ["ip", "-o", "address", "show", "dev", interface]
            return subprocess.run(command, check=False, capture_output=True, text=True).stdout

    async def end(self) -> None:
        if self.agent:
            await self.agent.kill()
        await self.switch.end()


@asynccontextmanager
async def agent_node() -> AsyncIterator[AgentNode]:
    """A Node with a NIC eth0 (10.176.25.11/24); neither switch nor agent runs yet."""
    machine = Machine("node", "node-1", (segments._nic("eth0", [ip_address("10.176.25.11")]),))
    with labs.opened() as lab:
        (segment,) = segments.segments([machine])
        underlay = Underlay(lab, (segment,))
        await asyncio.to_thread(underlay.create)
        with namespaces.entered(namespaces.path_of(lab.namespace("underlay"))), Netlink() as netlink:
            # The userspace datapath sees the router's own packets as its kernel left them.
            set_offloads(netlink, segment.bridge, on=False)
        node = AgentNode(lab.folder, await asyncio.to_thread(underlay.plug, machine), lab.namespace("underlay"))
        try:
            yield node
        finally:
            await node.end()
