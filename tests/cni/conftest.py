"""The real plugin, a real server and the real host-local; host, switch and agent are fakes.

The fakes keep state like the real components, can be made to fail, and record every change of state.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

import pytest
import structlog

from windlass.cni import wire
from windlass.cni.addresses import HostLocal
from windlass.cni.attachments import NotReadyError, PodNetwork
from windlass.cni.handler import Handler, Limits
from windlass.cni.server import serving
from windlass.model.families import Family

SOURCE = Path(__file__).parents[2] / "src/windlass/cni/plugin/windlass-cni.c"
STRICT = ["-std=c11", "-Os", "-static", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
CIDRS = {Family.IPV4: ip_network("10.1.0.0/24"), Family.IPV6: ip_network("fd00:10:1::/64")}


# Without it, no program starts on Windows.
NEEDED = {"SYSTEMROOT": os.environ["SYSTEMROOT"]} if sys.platform == "win32" else {}


def find_host_local() -> Path | None:
    if sys.platform == "win32":
        return _given("WINDLASS_WINDOWS_HOST_LOCAL")
    places = [Path("/usr/lib/cni/host-local"), Path("/opt/cni/bin/host-local")]
    return next((place for place in places if place.exists()), None)


def _given(variable: str) -> Path | None:
    """What tools/test-windows has built."""
    return Path(os.environ[variable]) if os.environ.get(variable) else None


@pytest.fixture(autouse=True)
def brief_logs():
    """As in production: without the tracebacks of failures that a test has ordered, which take a second to draw."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def host_local():
    found = find_host_local()
    if found is None:
        pytest.skip("needs host-local (Debian package containernetworking-plugins)")
    return found


@pytest.fixture(scope="session")
def compile_plugin(tmp_path_factory):
    """Compiles it into an executable of this name; any warning is an error."""

    def compiled(name: str, *options: str, compiler: str = "musl-gcc") -> Path:
        if shutil.which(compiler) is None:
            pytest.skip(f"needs {compiler} (Debian packages musl-tools, gcc, gcc-mingw-w64-x86-64)")
        executable = tmp_path_factory.mktemp("plugin") / name
        subprocess.run([compiler, *STRICT, *options, "-o", executable, SOURCE], check=True)
        return executable

    return compiled


@pytest.fixture(scope="session")
def plugin(compile_plugin):
    if sys.platform == "win32":
        return _given("WINDLASS_WINDOWS_PLUGIN") or pytest.skip("needs windlass-cni.exe: tools/test-windows")
    return compile_plugin("windlass-cni", compiler="musl-gcc" if shutil.which("musl-gcc") else "gcc")


@dataclass
class Faults:
    """What shall go wrong: by the name of a method, an error; `hang` lets it wait for ever."""

    errors: dict[str, Exception] = field(default_factory=dict)
    hang: set[str] = field(default_factory=set)
    reached: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    async def meet(self, method: str) -> None:
        self.reached[method].set()
        if method in self.hang:
            await asyncio.Event().wait()
        if method in self.errors:
            raise self.errors[method]


@dataclass
class Host:
    faults: Faults
    journal: list[str]
    links: dict[str, object] = field(default_factory=dict)

    async def attach(self, link):
        if self.links.get(link.host_interface) != link:
            self.journal.append(f"attach {link.host_interface}")
        self.links[link.host_interface] = link
        await self.faults.meet("attach")  # only now: what fails may have done half of its work

    async def detach(self, host_interface):
        await self.faults.meet("detach")
        if self.links.pop(host_interface, None):
            self.journal.append(f"detach {host_interface}")

    async def check(self, link):
        await self.faults.meet("check")
        there = self.links.get(link.host_interface)
        return () if there == link else (f"{link.host_interface} is {'gone' if there is None else 'different'}",)


@dataclass
class Switch:
    faults: Faults
    journal: list[str]
    ports: dict[str, object] = field(default_factory=dict)

    async def add_pod_port(self, port, _uid=""):
        if self.ports.get(port.interface) != port:
            self.journal.append(f"add port {port.interface}")
        self.ports[port.interface] = port
        await self.faults.meet("add_pod_port")
        return 16 + list(self.ports).index(port.interface)

    async def delete_pod_port(self, interface):
        await self.faults.meet("delete_pod_port")
        if self.ports.pop(interface, None):
            self.journal.append(f"delete port {interface}")

    async def list_pod_ports(self):
        await self.faults.meet("list_pod_ports")
        return tuple(self.ports.values())


@dataclass
class Agent:
    faults: Faults
    journal: list[str]
    network: PodNetwork | None
    pods: dict[str, object] = field(default_factory=dict)

    def pod_network(self):
        if self.network is None:
            raise NotReadyError("the Node has no podCIDR yet")
        return self.network

    async def programmed(self, pod, uid=""):  # noqa: ARG002 - it knows every Pod
        if self.pods.get(pod.container_id) != pod:
            self.journal.append(f"program {pod.interface}")
        self.pods[pod.container_id] = pod
        await self.faults.meet("programmed")

    async def forget(self, container_id):
        await self.faults.meet("forget")
        if pod := self.pods.pop(container_id, None):
            self.journal.append(f"forget {pod.interface}")


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    output: str

    @property
    def json(self):
        return json.loads(self.output)


@dataclass
class Node:
    """One Node's CNI: `call` goes to the handler, `run` by the real plugin and the real socket."""

    folder: Path
    host_local: Path
    cidrs: dict = field(default_factory=lambda: CIDRS)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.faults = Faults()
        self.journal: list[str] = []
        self.host = Host(self.faults, self.journal)
        self.switch = Switch(self.faults, self.journal)
        self.agent = Agent(self.faults, self.journal, PodNetwork(self.cidrs, mtu=1450, link_mtu=1500, userspace=True))
        self.socket = self.folder / "cni.sock"
        self.netns = self.folder / "netns"
        self.netns.touch()
        self.restart()

    def restart(self) -> None:
        """The agent's memory is gone; host, switch and the data of host-local are as they were."""
        self.addresses = HostLocal(self.host_local, self.folder / "addresses")
        self.handler = Handler(
            addresses=self.addresses, pods=self.host, ports=self.switch, agent=self.agent, limits=self.limits
        )

    def request(self, command, container="c1", *, pod="web-0", config=None, **environment) -> wire.PluginRequest:
        variables = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": str(self.netns),
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};K8S_POD_UID=1-2-3",
            "CNI_PATH": "/opt/cni/bin",
            **environment,
        }
        base = {"cniVersion": "1.1.0", "name": "pods", "type": "windlass", "agentSocket": str(self.socket)}
        text = config if isinstance(config, bytes) else json.dumps(base | (config or {})).encode()
        return wire.PluginRequest(variables, text)

    async def call(self, command, container="c1", **rest) -> Outcome:
        answer = await self.handler.answer(self.request(command, container, **rest))
        return Outcome(answer.exit_code, answer.output.decode())

    async def run(self, plugin, command, container="c1", **rest) -> Outcome:
        request = self.request(command, container, **rest)
        return await run(plugin, request.environment, request.config)

    def serving(self):
        return serving(self.socket, self.handler.answer)

    def held(self) -> list[str]:
        """The addresses that host-local has given away."""
        folder = self.folder / "addresses" / "pods"
        names = (file.name for file in folder.iterdir()) if folder.exists() else ()
        return sorted(name for name in names if name != "lock" and not name.startswith("last_reserved_ip"))

    def is_empty(self) -> bool:
        return not (self.host.links or self.switch.ports or self.agent.pods or self.held())


async def run(plugin, environment, config) -> Outcome:
    process = await asyncio.create_subprocess_exec(
        plugin, env={**NEEDED, **environment}, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(config)
    return Outcome(process.returncode, output.decode())


@pytest.fixture
def make_node(tmp_path, host_local):
    """Nodes with other podCIDRs or limits."""
    return lambda **rest: Node(tmp_path, host_local, **rest)


@pytest.fixture
def node(make_node):
    return make_node()


@pytest.fixture
async def served(node):
    """A Node whose agent listens."""
    async with node.serving():
        yield node


@pytest.fixture
def run_plugin():
    return run
