"""Nodes as in production, with Open vSwitch, agent and CNI plugin; the lab only plays the container runtime."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_interface
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_DNS, uuid5

import aiohttp
import msgspec
import yaml

from windlass.host.linux import namespaces
from windlass.lab.control.publishers import ManifestFolder, Publisher
from windlass.lab.network import ovs
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.processes import Child, in_another_boot, program
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.segments import UPLINK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from windlass.lab.sandbox.labs import Lab
    from windlass.lab.scenarios.directives import ActionSpec
    from windlass.lab.scenarios.objects import LabNode, LabPod
    from windlass.model.families import IPAddress

SECONDS_TO_BE_READY = seconds(20)
SECONDS_TO_CONVERGE = seconds(20)
SECONDS_BETWEEN_POLLS = 0.02
BRIDGE = "br-int"  # unless the scenario's configuration names another
CNI_VERSION = "1.1.0"
PLUGIN_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))  # Debian's, and the CNI project's


@dataclass(frozen=True, slots=True)
class Programs:
    """The two executables that a Node needs beside Open vSwitch."""

    agent: tuple[str, ...] = (str(Path(sys.executable).with_name("windlass")), "agent")
    cni: Path = Path(__file__).parents[4] / "build" / "cni" / "windlass-cni"  # where `make setup` puts it


@dataclass(slots=True)
class _Stack:
    """The software of one Node."""

    node: str
    namespace: str
    folder: Path
    options: Mapping[str, object]  # of the agent; they override the scenario's configuration
    switch: ovs.SwitchProcesses
    agent: Child | None = None
    reboots: int = 0
    containers: dict[str, str] = field(default_factory=dict)  # container ids, by Pod

    @property
    def run_directory(self) -> Path:
        return self.folder / "run"


class Agents:
    """The Fabric (fabrics.py) of Nodes that run the agent."""

    dataplane = "ovs"

    def __init__(self, lab: Lab, programs: Programs, publisher: Publisher | None = None) -> None:
        self.publisher = publisher or ManifestFolder(lab)
        self._lab = lab
        self._programs = programs
        self._stacks: dict[str, _Stack] = {}

    async def add_node(self, node: LabNode, namespace: str, configuration: Mapping[str, object]) -> None:
        folder = self._lab.node_folder(node.name)
        switch = ovs.SwitchProcesses(node.name, namespace, folder / "ovs")
        stack = _Stack(node.name, namespace, folder, self.publisher.options(node), switch)
        self._stacks[node.name] = stack
        await stack.switch.start()
        await self._start_agent(stack, configuration)

    async def remove_node(self, node: str) -> None:
        stack = self._stacks.pop(node)
        await self._end(stack)
        shutil.rmtree(stack.folder)  # a later Node of this name is a new machine

    def serves(self, node: str) -> bool:
        return node in self._stacks and self._stacks[node].agent is not None

    async def attach(self, pod: LabPod, namespace: str) -> tuple[IPAddress, ...]:
        stack = self._stacks[pod.spec.node_name]
        stack.containers[pod.key] = secrets.token_hex(16)
        result = await self._cni("ADD", stack, pod, namespace)
        return tuple(ip_interface(ip.address).ip for ip in msgspec.json.decode(result, type=_CniResult).ips)

    async def detach(self, pod: LabPod, namespace: str) -> None:
        stack = self._stacks[pod.spec.node_name]
        await self._cni("DEL", stack, pod, namespace)
        del stack.containers[pod.key]

    async def act(self, action: ActionSpec, configuration: Mapping[str, object]) -> None:
        if not action.node:
            await self.publisher.act(action.verb)
            return
        stack = self._stacks[action.node]
        match action.verb:
            case "restartSwitch":
                await stack.switch.restart()
                return
            case "deleteBridge" | "loseDatabase":
                await _remove_bridge(stack, action.verb, str(configuration.get("bridge", BRIDGE)))
                return
            case "killAgent" if stack.agent:
                await stack.agent.kill()
            case "restartAgent" | "stopAgent" if stack.agent:
                await stack.agent.stop()
        stack.agent = None
        if action.verb != "stopAgent":
            await self._start_agent(stack, configuration)

    async def power_off(self, node: str) -> None:
        await self._end(self._stacks[node])
        self._stacks[node].agent = None

    async def power_on(self, node: str) -> None:
        stack = self._stacks[node]
        stack.reboots += 1
        boot = stack.folder / "boot_id"
        boot.write_text(f"{uuid5(NAMESPACE_DNS, node)}-{stack.reboots}\n")
        stack.switch.prefix = in_another_boot(boot)
        await stack.switch.boot()

    async def converge(self) -> None:
        await asyncio.gather(*(self._converged(stack) for stack in self._stacks.values() if stack.agent))
        await asyncio.gather(*(stack.switch.settled() for stack in self._stacks.values()))

    async def end(self) -> None:
        await asyncio.gather(*map(self._end, self._stacks.values()))
        self._stacks.clear()

    # The agent --------------------------------------------------------------------------------------------------

    async def _start_agent(self, stack: _Stack, configuration: Mapping[str, object]) -> None:
        own = {
            "nodeName": stack.node,
            **stack.options,
            "runDirectory": str(stack.run_directory),
            "stateDirectory": str(stack.folder / "state"),
            "ovsRunDirectory": str(stack.switch.folder),
            "datapathType": ovs.datapath_type(),
            "uplink": UPLINK,
            "ipamPlugin": str(_plugin("host-local")),
        }
        file = stack.folder / "windlass.yaml"
        file.write_text(yaml.safe_dump({"logFormat": "text", **configuration, **own}))
        stack.agent = Child(
            f"the agent of Node {stack.node}",
            # Without `nice`, starting agents would delay packets of other Nodes on a machine with two cores.
            [*stack.switch.prefix, program("nice"), "-n", "10", *self._programs.agent, "--config", str(file)],
            namespace=stack.namespace,
            folder=stack.folder,
            log=stack.folder / "agent.log",
            environment={},
        )
        await stack.agent.listening(stack.run_directory / "agent.sock")
        await self._ready(stack, stack.agent)

    async def _ready(self, stack: _Stack, agent: Child) -> None:
        answer = b""
        try:
            async with asyncio.timeout(SECONDS_TO_BE_READY):
                while agent.alive:
                    status, answer = await _get(stack, "/healthz")
                    if status == HTTPStatus.OK:
                        return
                    await asyncio.wait([agent.exited], timeout=SECONDS_BETWEEN_POLLS)
        except TimeoutError:
            what = f"is not ready after {SECONDS_TO_BE_READY} s: {answer.decode(errors='replace')}"
            raise LabError(agent.failure(what)) from None
        raise LabError(agent.failure(f"ended with status {agent.exited.result()}"))

    async def _converged(self, stack: _Stack) -> None:
        revision = await self.publisher.revision(stack.node)
        if revision is None:
            return
        status, answer = await _get(stack, f"/v1/convergence?revision={revision}&timeout={SECONDS_TO_CONVERGE}")
        if status != HTTPStatus.OK:
            what = f"has not applied the objects after {SECONDS_TO_CONVERGE} s: {answer.decode(errors='replace')}"
            raise LabError(stack.agent.failure(what) if stack.agent else what)

    async def _end(self, stack: _Stack) -> None:
        await asyncio.gather(stack.switch.end(), *([stack.agent.kill()] if stack.agent else []))

    # The container runtime ----------------------------------------------------------------------------------------

    async def _cni(self, command: str, stack: _Stack, pod: LabPod, namespace: str) -> bytes:
        """Runs the plugin on the Node, as a container runtime would."""
        names = f"K8S_POD_NAMESPACE={pod.metadata.namespace or 'default'};K8S_POD_NAME={pod.metadata.name}"
        process = await asyncio.create_subprocess_exec(
            program("nsenter"),
            f"--net={namespaces.path_of(stack.namespace)}",
            str(self._programs.cni.resolve()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "CNI_COMMAND": command,
                "CNI_CONTAINERID": stack.containers[pod.key],
                "CNI_NETNS": str(namespaces.path_of(namespace)),
                "CNI_IFNAME": "eth0",
                "CNI_ARGS": f"IgnoreUnknown=1;{names}",
                "CNI_PATH": ":".join(map(str, PLUGIN_FOLDERS)),
            },
        )
        try:
            output, complaint = await process.communicate(msgspec.json.encode(_network_configuration(stack, pod)))
        finally:
            if process.returncode is None:  # the run was interrupted
                process.kill()
                await process.wait()
        if process.returncode:
            said = (output or complaint).decode(errors="replace").strip()
            raise LabError(f"Pod {pod.key}: CNI {command} failed on Node {stack.node}: {said}")
        return output


class _CniAddress(msgspec.Struct):
    address: str


class _CniResult(msgspec.Struct):
    ips: list[_CniAddress]


def _network_configuration(stack: _Stack, pod: LabPod) -> dict[str, object]:
    wanted = [str(address) for address in pod.fixed_addresses]
    return {
        "cniVersion": CNI_VERSION,
        "name": "windlass",
        "type": "windlass-cni",
        "agentSocket": str(stack.run_directory / "cni.sock"),
        **({"args": {"cni": {"ips": wanted}}} if wanted else {}),
    }


async def _remove_bridge(stack: _Stack, verb: str, bridge: str) -> None:
    """Removes the bridge or the whole database. When this returns, a running agent has created the bridge again."""
    if verb == "deleteBridge":
        await stack.switch.delete_bridge(bridge)
    else:
        await stack.switch.lose_database()
    if stack.agent:
        await stack.switch.has_bridge(bridge)


def _plugin(name: str) -> Path:
    return next((folder / name for folder in PLUGIN_FOLDERS if (folder / name).exists()), PLUGIN_FOLDERS[0] / name)


async def _get(stack: _Stack, path: str) -> tuple[int, bytes]:
    socket = str(stack.run_directory / "agent.sock")
    limit = aiohttp.ClientTimeout(total=SECONDS_TO_CONVERGE + 10)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket), timeout=limit) as session,
            session.get(f"http://agent{path}") as response,
        ):
            return response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, f"no answer on {socket}: {error}".encode()
