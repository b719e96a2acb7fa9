"""Nodes as in production, with Open vSwitch, agent and CNI plugin. The lab acts as the container runtime only."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_interface
from pathlib import Path

import aiohttp
import msgspec

from windlass.cluster.nodes import OS_LABEL
from windlass.lab.control.publishers import ManifestFolder, Publisher
from windlass.lab.network.ovs import SwitchProcesses
from windlass.lab.orchestration.node_programs import LinuxNode, NodePrograms, Programs
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.sandbox.processes import Child, run
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.directives import ActionSpec
from windlass.lab.scenarios.objects import LabNode, LabPod
from windlass.lab.wine.windows_nodes import WindowsNode
from windlass.model.families import IPAddress
from windlass.model.nodes import OperatingSystem

SECONDS_TO_CONVERGE = seconds(20)
SECONDS_BETWEEN_POLLS = 0.02
BRIDGE = "br-int"  # unless the scenario's configuration names another
CNI_VERSION = "1.1.0"


@dataclass(slots=True)
class _Stack:
    """The software of one Node."""

    node: str
    folder: Path
    options: Mapping[str, object]  # settings of the agent, which override the scenario's configuration
    programs: NodePrograms
    agent: Child | None = None
    reboots: int = 0
    containers: dict[str, str] = field(default_factory=dict)  # container ids, by Pod

    @property
    def switch(self) -> SwitchProcesses:
        return self.programs.switch

    @property
    def agent_socket(self) -> Path:
        return self.programs.run_directory / "agent.sock"


class Agents:
    """Nodes that run the agent. A Node is added when its NICs exist and the objects are published."""

    dataplane = "ovs"

    @property
    def probes_at_once(self) -> int:
        """Open vSwitch under Wine forwards some hundred packets a second: more probes would delay each other."""
        return 4 if self._programs.windows else 1000

    def __init__(self, lab: Lab, programs: Programs, publisher: Publisher | None = None) -> None:
        self.publisher = publisher or ManifestFolder(lab)
        self._lab = lab
        self._programs = programs
        self._stacks: dict[str, _Stack] = {}

    async def add_node(self, node: LabNode, namespace: str, configuration: Mapping[str, object]) -> None:
        folder = self._lab.node_folder(node.name)
        stack = _Stack(node.name, folder, self.publisher.options(node), self._programs_of(node, namespace, folder))
        self._stacks[node.name] = stack
        await stack.programs.boot(0)
        await stack.switch.start()
        await self._start_agent(stack, configuration)

    async def remove_node(self, node: str) -> None:
        stack = self._stacks.pop(node)
        await self._end(stack)
        shutil.rmtree(stack.folder)  # a later Node of this name is a new machine

    def runs_windows(self, node: str) -> bool:
        """Whether the programs of this Node are those of Windows."""
        return isinstance(self._stacks[node].programs, WindowsNode)

    def serves(self, node: str) -> bool:
        """Whether Pods can be attached and detached there now."""
        return node in self._stacks and self._stacks[node].agent is not None

    async def attach(self, pod: LabPod, namespace: str) -> tuple[IPAddress, ...]:
        """Returns the addresses of the Pod, whose namespace must exist."""
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
        """Kills all its processes; its files stay."""
        await self._end(self._stacks[node])
        self._stacks[node].agent = None

    async def power_on(self, node: str) -> None:
        """Boots it in a new namespace of the same name, without the agent: a `startAgent` action starts that."""
        stack = self._stacks[node]
        stack.reboots += 1
        await stack.programs.boot(stack.reboots)
        await stack.switch.boot()

    async def converge(self) -> None:
        """Waits until every Node forwards according to the published objects, and checks its flows."""
        running = [stack for stack in self._stacks.values() if stack.agent]
        await asyncio.gather(*map(self._converged, running))
        await asyncio.gather(*map(_check_flows, running))
        await asyncio.gather(*(stack.programs.settled() for stack in self._stacks.values()))

    async def end(self) -> None:
        await asyncio.gather(*map(self._end, self._stacks.values()))
        self._stacks.clear()

    # The agent --------------------------------------------------------------------------------------------------

    async def _start_agent(self, stack: _Stack, configuration: Mapping[str, object]) -> None:
        settings = {"logFormat": "text", **configuration, "nodeName": stack.node, **stack.options}
        stack.agent = stack.programs.start_agent(settings)
        await stack.agent.listening(stack.agent_socket)
        await self._ready(stack, stack.agent)

    async def _ready(self, stack: _Stack, agent: Child) -> None:
        async def missing() -> str | None:
            status, answer = await ask_agent(stack.agent_socket, "/healthz")
            return None if status == HTTPStatus.OK else answer.decode(errors="replace")

        await agent.until(missing, "is not ready", stack.programs.seconds_to_be_ready, SECONDS_BETWEEN_POLLS)

    async def _converged(self, stack: _Stack) -> None:
        revision = await self.publisher.revision(stack.node)
        if revision is None:
            return
        status, answer = await ask_agent(
            stack.agent_socket, f"/v1/convergence?revision={revision}&timeout={SECONDS_TO_CONVERGE}"
        )
        if status != HTTPStatus.OK:
            what = f"has not applied the objects after {SECONDS_TO_CONVERGE} s: {answer.decode(errors='replace')}"
            raise LabError(stack.agent.failure(what) if stack.agent else what)

    async def _end(self, stack: _Stack) -> None:
        await asyncio.gather(stack.programs.end(), *([stack.agent.kill()] if stack.agent else []))

    def _programs_of(self, node: LabNode, namespace: str, folder: Path) -> NodePrograms:
        windows = self._programs.windows
        if windows and node.metadata.labels.get(OS_LABEL) == OperatingSystem.WINDOWS.value:
            return WindowsNode(node.name, namespace, folder, windows)
        return LinuxNode(node.name, namespace, folder, self._programs)

    # The container runtime ----------------------------------------------------------------------------------------

    async def _cni(self, command: str, stack: _Stack, pod: LabPod, namespace: str) -> bytes:
        """Runs the plugin on the Node, as a container runtime would."""
        names = f"K8S_POD_NAMESPACE={pod.metadata.namespace or 'default'};K8S_POD_NAME={pod.metadata.name}"
        command_line, environment = stack.programs.plugin(
            {
                "CNI_COMMAND": command,
                "CNI_CONTAINERID": stack.containers[pod.key],
                "CNI_NETNS": stack.programs.pod_namespace(namespace),
                "CNI_IFNAME": "eth0",
                "CNI_ARGS": f"IgnoreUnknown=1;{names}",
            }
        )
        configuration = msgspec.json.encode(_network_configuration(stack, pod))
        status, output, errors = await run(*command_line, content=configuration, environment=environment)
        if status:
            said = (output or errors).decode(errors="replace").strip()
            raise LabError(f"Pod {pod.key}: CNI {command} failed on Node {stack.node}: {said}")
        return output


class _Unsupported(msgspec.Struct):
    unsupported: list[str]


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
        "agentSocket": stack.programs.plugin_socket,
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


async def _check_flows(stack: _Stack) -> None:
    """Raises LabError if flows need what the Node's datapath does not support: packets may never show it here."""
    status, answer = await ask_agent(stack.agent_socket, "/v1/unsupported")
    if status != HTTPStatus.OK:
        raise LabError(f"Node {stack.node}: its flows cannot be checked: {answer.decode(errors='replace')}")
    if found := msgspec.json.decode(answer, type=_Unsupported).unsupported:
        raise LabError(f"Node {stack.node}: its datapath does not support all of its flows: {'; '.join(found)}")


async def ask_agent(socket: Path, path: str) -> tuple[int, bytes]:
    """The status and the answer of the agent's API; an agent that does not answer is SERVICE_UNAVAILABLE."""
    limit = aiohttp.ClientTimeout(total=SECONDS_TO_CONVERGE + 10)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket)), timeout=limit) as session,
            session.get(f"http://agent{path}") as response,
        ):
            return response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, f"no answer on {socket}: {error}".encode()
