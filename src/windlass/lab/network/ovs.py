"""The Open vSwitch of each Node: both daemons run as children of the lab in the Node's namespace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.processes import Child, output_of, program, run
from windlass.lab.sandbox.time_limits import seconds

SECONDS_FOR_A_CHANGE = seconds(20)
SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
START = str(files("windlass.switch") / "start-ovs-vswitchd.sh")  # the script that Nodes use
_KERNEL_MODULE = Path("/sys/module/openvswitch")
# A cluster shares the cores of this machine: one thread of each kind per switch is enough. The revalidator runs more
# often than its default of twice a second, so that `settled` returns soon.
_FIRST_ROW = (
    '["Open_vSwitch",{"op":"insert","table":"Open_vSwitch","row":{"other_config":["map",'
    '[["n-handler-threads","1"],["n-revalidator-threads","1"],["max-revalidator","100"]]]}}]'
)


@cache
def datapath_type() -> str:
    """`system` where the kernel has openvswitch, else `netdev`, the userspace datapath."""
    if not _KERNEL_MODULE.exists():
        with suppress(LabError):  # neither the module nor modprobe may exist
            output_of("modprobe", "--quiet", "openvswitch")
    return "system" if _KERNEL_MODULE.exists() else "netdev"


def datapath_in_words() -> str:
    if datapath_type() == "system":
        return "Open vSwitch in the kernel"
    return "Open vSwitch in userspace (this kernel has no openvswitch module)"


class Daemons(Protocol):
    """How the daemons of a Node are started. Both return when the daemon listens."""

    @property
    def database_file(self) -> Path: ...

    async def start_database(self) -> Child: ...

    async def start_switch(self) -> Child: ...


class LinuxDaemons:
    """Open vSwitch of this machine, with all its files in one folder."""

    def __init__(self, node: str, namespace: str, folder: Path) -> None:
        self.database_file = folder / "conf.db"
        self.prefix: list[str] = []  # goes before every command
        self._node = node
        self._namespace = namespace
        self._folder = folder

    async def start_database(self) -> Child:
        database = self._daemon("ovsdb-server", str(self.database_file), f"--remote=punix:{self._folder}/db.sock")
        await database.listening(self._folder / "db.sock")
        return database

    async def start_switch(self) -> Child:
        # In userspace it would drop packets of tunnels at every link change; the agent gives it the routes instead.
        own_routes = ["--disable-system-route"] if datapath_type() == "netdev" else []
        switch = self._daemon("ovs-vswitchd", f"unix:{self._folder}/db.sock", *own_routes, by=START)
        await switch.listening(self._folder / "ovs-vswitchd.ctl")
        return switch

    def _daemon(self, name: str, *arguments: str, by: str = "") -> Child:
        own_files = (f"--unixctl={self._folder}/{name}.ctl", f"--pidfile={self._folder}/{name}.pid")
        return Child(
            f"{name} of Node {self._node}",
            [*self.prefix, by or program(name), *arguments, *own_files, "--no-chdir"],
            namespace=self._namespace,
            log=self._folder / f"{name}.log",
            environment=_environment(self._folder),
            folder=self._folder,
        )


class SwitchProcesses:
    """ovsdb-server and ovs-vswitchd of one Node. Their sockets are in `folder`."""

    def __init__(self, node: str, folder: Path, daemons: Daemons) -> None:
        self.folder = folder
        self._node = node
        self._daemons = daemons
        self._database: Child | None = None
        self._switch: Child | None = None

    @classmethod
    def on_linux(cls, node: str, namespace: str, folder: Path) -> SwitchProcesses:
        return cls(node, folder, LinuxDaemons(node, namespace, folder))

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment in which `ovs-ofctl` and the other tools talk to this switch."""
        return _environment(self.folder)

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        await self._start_with_empty_database()

    async def restart(self) -> None:
        """Restarts ovs-vswitchd as an upgrade does; the database stays.

        In userspace, the bridge's interfaces disappear and come back with the daemon.
        """
        if self._switch:
            await self._switch.stop()
        self._switch = await self._daemons.start_switch()

    async def lose_database(self) -> None:
        await self.end()
        await self._start_with_empty_database()

    async def boot(self) -> None:
        """Starts both daemons with the existing database."""
        self._database = await self._daemons.start_database()
        self._switch = await self._daemons.start_switch()

    async def delete_bridge(self, bridge: str) -> None:
        """Returns when ovs-vswitchd has removed it. An agent may have created it again by then."""
        await self._run("ovs-vsctl", "del-br", bridge)

    async def has_bridge(self, bridge: str) -> None:
        """Returns when the database has a bridge of this name."""
        await self._run("ovs-vsctl", "wait-until", "Bridge", bridge)

    async def settled(self) -> None:
        """Returns when the datapath no longer handles packets by flows that were replaced."""
        for _ in range(2):  # the first revalidation may have begun before the last change
            # A switch without a bridge has no revalidator: that is not an error.
            await run(program("ovs-appctl"), "-T", "10", "-t", f"{self.folder}/ovs-vswitchd.ctl", "revalidator/wait")

    async def end(self) -> None:
        await asyncio.gather(*(daemon.kill() for daemon in (self._switch, self._database) if daemon))

    async def _start_with_empty_database(self) -> None:
        self._daemons.database_file.write_bytes(await asyncio.to_thread(_empty_database))
        await self.boot()

    async def _run(self, tool: str, *words: str) -> None:
        command = (program(tool), f"--timeout={SECONDS_FOR_A_CHANGE:.0f}", *words)
        status, _, errors = await run(*command, environment={**os.environ, **self.environment})
        if status:
            said = errors.decode(errors="replace").strip()
            raise LabError(f"Node {self._node}: {tool} {' '.join(words)} failed: {said}")


def _environment(folder: Path) -> Mapping[str, str]:
    names = ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")
    return dict.fromkeys(names, str(folder))


@cache
def _empty_database() -> bytes:
    with TemporaryDirectory() as folder:
        database = f"{folder}/conf.db"
        output_of("ovsdb-tool", "create", database, str(SCHEMA))
        output_of("ovsdb-tool", "transact", database, _FIRST_ROW)
        return Path(database).read_bytes()
