"""The programs of one Node: the interface, and its implementation on Linux. wine/windows_nodes.py has the other one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import NAMESPACE_DNS, uuid5

import yaml

from windlass.host.linux import namespaces
from windlass.lab.network import ovs
from windlass.lab.network.ovs import LinuxDaemons, SwitchProcesses
from windlass.lab.sandbox.processes import Child, in_another_boot, program
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.segments import UPLINK
from windlass.lab.wine.wine_machines import WindowsPrograms

PLUGIN_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))  # Debian's, and the CNI project's


@dataclass(frozen=True, slots=True)
class Programs:
    """The executables that Nodes need in addition to Open vSwitch."""

    agent: tuple[str, ...] = (str(Path(sys.executable).with_name("windlass")), "agent")
    cni: Path = Path(__file__).parents[4] / "build" / "cni" / "windlass-cni"  # where `make setup` puts it
    windows: WindowsPrograms | None = None  # None: a Windows Node runs the programs of Linux, with flows for Windows


class NodePrograms(Protocol):
    @property
    def seconds_to_be_ready(self) -> float:
        """The limit for the agent's start."""
        ...

    @property
    def switch(self) -> SwitchProcesses: ...

    @property
    def run_directory(self) -> Path:
        """The folder of the agent's sockets, for the lab."""
        ...

    async def boot(self, reboots: int) -> None:
        """Prepares the machine, before its daemons start; again after each reboot."""
        ...

    def start_agent(self, settings: Mapping[str, object]) -> Child:
        """Starts the agent with these settings and the paths of this Node."""
        ...

    def plugin(self, variables: Mapping[str, str]) -> tuple[list[str], Mapping[str, str]]:
        """The command and the environment of the CNI plugin, which gets these variables."""
        ...

    @property
    def plugin_socket(self) -> str:
        """The path by which the CNI plugin finds the agent."""
        ...

    def pod_namespace(self, namespace: str) -> str:
        """How the container runtime names this network namespace of a Pod to the plugin."""
        ...

    async def settled(self) -> None:
        """Returns when the datapath handles packets by the newest flows."""
        ...

    async def end(self) -> None:
        """Kills all processes of the machine except the agent."""
        ...


class LinuxNode:
    seconds_to_be_ready = seconds(20)

    def __init__(self, node: str, namespace: str, folder: Path, programs: Programs) -> None:
        self._node = node
        self._namespace = namespace
        self._folder = folder
        self._programs = programs
        self._daemons = LinuxDaemons(node, namespace, folder / "ovs")
        self.run_directory = folder / "run"
        self.switch = SwitchProcesses(node, folder / "ovs", self._daemons)

    async def boot(self, reboots: int) -> None:
        if reboots:
            boot = self._folder / "boot_id"
            boot.write_text(f"{uuid5(NAMESPACE_DNS, self._node)}-{reboots}\n")
            self._daemons.prefix = in_another_boot(boot)

    def start_agent(self, settings: Mapping[str, object]) -> Child:
        own = {
            "runDirectory": str(self.run_directory),
            "stateDirectory": str(self._folder / "state"),
            "ovsRunDirectory": str(self.switch.folder),
            "datapathType": ovs.datapath_type(),
            "uplink": UPLINK,
            "ipamPlugin": str(_plugin("host-local")),
        }
        file = self._folder / "windlass.yaml"
        file.write_text(yaml.safe_dump({**settings, **own}))
        return Child(
            f"the agent of Node {self._node}",
            # Without `nice`, starting agents would delay packets of other Nodes on a machine with two cores.
            [*self._daemons.prefix, program("nice"), "-n", "10", *self._programs.agent, "--config", str(file)],
            namespace=self._namespace,
            folder=self._folder,
            log=self._folder / "agent.log",
        )

    def plugin(self, variables: Mapping[str, str]) -> tuple[list[str], Mapping[str, str]]:
        entering = [program("nsenter"), f"--net={namespaces.path_of(self._namespace)}"]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CNI_PATH": ":".join(map(str, PLUGIN_FOLDERS))}
        return [*entering, str(self._programs.cni.resolve())], {**environment, **variables}

    @property
    def plugin_socket(self) -> str:
        return str(self.run_directory / "cni.sock")

    def pod_namespace(self, namespace: str) -> str:
        return str(namespaces.path_of(namespace))

    async def settled(self) -> None:
        await self.switch.settled()

    async def end(self) -> None:
        await self.switch.end()


def _plugin(name: str) -> Path:
    return next((folder / name for folder in PLUGIN_FOLDERS if (folder / name).exists()), PLUGIN_FOLDERS[0] / name)
