"""A Windows Node under Wine: Open vSwitch for Windows, the agent in Windows' Python, and the plugin for Windows.

docs/windows.md lists which parts of such a Node are real and which are stand-ins.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

import msgspec
import yaml

from windlass.host.linux import namespaces
from windlass.lab.network.ovs import SwitchProcesses
from windlass.lab.sandbox.processes import SECONDS_BETWEEN_POLLS, Child, program
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.segments import UPLINK
from windlass.lab.wine.host_stacks import HostStack
from windlass.lab.wine.wine_machines import WindowsPrograms, WineMachine, windows_path
from windlass.switch.controls import ask
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError

SECONDS_TO_START = seconds(60)
BRIDGE, GATEWAY = "br-int", "windlass-gw0"  # a scenario with other names cannot have Windows Nodes under Wine
RELAY_PORT = 10999  # on the loopback of the Node


class WindowsDaemons:
    def __init__(self, node: str, machine: WineMachine, sockets: Path, folder: Path) -> None:
        self.database_file = folder / "conf.db"
        self._node = node
        self._machine = machine
        self._sockets = sockets  # where the relays listen
        self._folder = folder

    async def start_database(self) -> Child:
        return await self._daemon(
            "ovsdb-server",
            windows_path(self.database_file),
            f"--remote=punix:{windows_path(self._folder / 'db.sock')}",
        )

    async def start_switch(self) -> Child:
        database = f"unix:{windows_path(self._folder / 'db.sock')}"
        return await self._daemon("ovs-vswitchd", database, "--enable-dummy=system")

    async def _daemon(self, name: str, *arguments: str) -> Child:
        files = [f"--{kind}={windows_path(self._folder / name)}" for kind, name in _files(name).items()]
        daemon = Child(
            f"{name}.exe of Node {self._node}",
            self._machine.command(self._machine.programs.ovs(name), *arguments, *files, "--no-chdir", "-vfile:info"),
            namespace=self._machine.namespace,
            log=self._folder / f"{name}.out",
            environment={**self._machine.environment, "OVS_RUNDIR": windows_path(self._folder)},
            folder=self._folder,
        )
        control = str(self._sockets / f"{name}.ctl")

        async def missing() -> str | None:
            """Asks the daemon, because the relay accepts connections before the daemon does."""
            try:
                await ask(control, "version")
            except (SwitchUnreachableError, SwitchRefusedError) as error:
                return str(error)
            return None

        await daemon.until(missing, "does not answer", SECONDS_TO_START, SECONDS_BETWEEN_POLLS)
        return daemon


def _files(daemon: str) -> dict[str, str]:
    return {"unixctl": f"{daemon}.ctl", "pidfile": f"{daemon}.pid", "log-file": f"{daemon}.log"}


class WindowsNode:
    """Implements NodePrograms (orchestration/node_programs.py)."""

    seconds_to_be_ready = seconds(90)

    def __init__(self, node: str, namespace: str, folder: Path, programs: WindowsPrograms) -> None:
        self._node = node
        self._namespace = namespace
        self._folder = folder
        self._own = folder / "windows"  # the files of the Windows programs
        self._machine = WineMachine(namespace, folder / "prefix", programs)
        self._helpers: list[Child] = []
        self._settled = folder / "settled.sock"
        self.run_directory = folder / "run"
        daemons = WindowsDaemons(node, self._machine, folder / "ovs", self._own / "ovs")
        self.switch = SwitchProcesses(node, folder / "ovs", daemons)

    async def boot(self, reboots: int) -> None:
        if not reboots:
            (self._own / "ovs").mkdir(parents=True)
            await asyncio.to_thread(self._machine.create)
        else:
            self._machine.forget_networks()
        relay = self._python("the relay of pipes", "windlass.lab.wine.pipe_relays", str(RELAY_PORT))
        stack = HostStack(
            relays={
                **{str(self.switch.folder / name): windows_path(self._own / "ovs" / name) for name in _OVS_SOCKETS},
                str(self.run_directory / "agent.sock"): windows_path(self._own / "run" / "agent.sock"),
            },
            relay_port=RELAY_PORT,
            database=str(self.switch.folder / "db.sock"),
            control=str(self.switch.folder / "ovs-vswitchd.ctl"),
            settled=str(self._settled),
            bridge=BRIDGE,
            gateway=GATEWAY,
            uplink=UPLINK,
        )
        host = Child(
            f"the host stack of Node {self._node}",
            [sys.executable, "-m", "windlass.lab.wine.host_stacks", msgspec.json.encode(stack).decode()],
            namespace=self._namespace,
            folder=self._folder,
            log=self._folder / "host-stack.log",
        )
        self._helpers = [relay, host]
        await host.listening(self.run_directory / "agent.sock")  # the last that it opens

    def start_agent(self, settings: Mapping[str, object]) -> Child:
        own = {
            "runDirectory": windows_path(self._own / "run"),
            "stateDirectory": windows_path(self._own / "state"),
            "ovsRunDirectory": windows_path(self._own / "ovs"),
            "ipamPlugin": windows_path(self._machine.programs.ipam_plugin),
            "uplink": UPLINK,
        }
        of_windows = {name: _translated(value) for name, value in settings.items()}
        file = self._folder / "windlass.yaml"
        file.write_text(yaml.safe_dump({**of_windows, **own}))
        stand_ins = map(windows_path, self._machine.programs.stand_ins)
        agent = self._machine.programs.agent
        words = ("windlass.lab.wine.agent_process", *stand_ins, *agent, "--config", windows_path(file))
        return self._python("the agent", *words, log="agent.log")

    def plugin(self, variables: Mapping[str, str]) -> tuple[list[str], Mapping[str, str]]:
        command = self._machine.command(self._machine.programs.plugin)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **self._machine.environment}
        return command, {**environment, "CNI_PATH": windows_path(self._machine.programs.own), **variables}

    @property
    def plugin_socket(self) -> str:
        return windows_path(self._own / "run" / "cni.sock")

    def pod_namespace(self, namespace: str) -> str:
        """HCN names namespaces by GUIDs, so a link named by a GUID leads to the Linux namespace."""
        guid = str(uuid5(NAMESPACE_DNS, namespace))
        link = namespaces.path_of(guid)
        if not link.is_symlink():
            link.symlink_to(namespaces.path_of(namespace))
        return guid

    async def settled(self) -> None:
        """Returns when the host stack has applied the last change, too."""
        await self.switch.settled()
        _, host = self._helpers
        await host.listening(self._settled)  # it does so when it has read the database
        async with asyncio.timeout(SECONDS_TO_START):
            reader, writer = await asyncio.open_unix_connection(self._settled)
            await reader.read()
            writer.close()

    async def end(self) -> None:
        await self.switch.end()
        await asyncio.gather(*(helper.kill() for helper in self._helpers))
        await self._end_wine()
        for relayed in (self.switch.folder, self.run_directory):
            shutil.rmtree(relayed, ignore_errors=True)

    def _python(self, what: str, module: str, *arguments: str, log: str = "relay.log") -> Child:
        return Child(
            f"{what} of Node {self._node}",
            self._machine.command(self._machine.programs.python, "-m", module, *arguments),
            namespace=self._namespace,
            folder=self._folder,
            log=self._folder / log,
            environment=self._machine.environment,
        )

    async def _end_wine(self) -> None:
        """Wine's own processes would otherwise end some seconds later, or stay.

        The command kills a server that is too slow to end by itself, and then its clients never notice that it is gone.
        """
        process = await asyncio.create_subprocess_exec(
            *(program("wineserver"), "--kill"),
            env={"PATH": "/usr/bin:/bin", **self._machine.environment},
            stderr=asyncio.subprocess.DEVNULL,
        )
        await process.wait()
        await asyncio.to_thread(self._machine.kill_processes)


_OVS_SOCKETS = ("db.sock", "ovsdb-server.ctl", "ovs-vswitchd.ctl", f"{BRIDGE}.mgmt")


def _translated(value: object) -> object:
    return windows_path(value) if isinstance(value, str) and value.startswith("/") else value
