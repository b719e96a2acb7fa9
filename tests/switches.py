"""A real Open vSwitch for tests: both daemons as children, in a network namespace of their own.

On Windows it is the real one for Windows, with its dummy datapath: any name is a NIC there.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from windlass.channels import local

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_NAMED = Path("/run/netns")
_NAMESPACE = "wltest-"
_counter = itertools.count(1)
_WINDOWS = sys.platform == "win32"
_WINDOWS_PROGRAMS = "WINDLASS_WINDOWS_OVS"  # the environment variable with their folder


def _why_not() -> str | None:
    if not _WINDOWS and os.geteuid() != 0:
        return "needs root, to make network namespaces"
    missing = [name for name in ("ovsdb-server", "ovs-vswitchd", "ovsdb-tool") if _program(name) is None]
    if missing:
        return f"needs Open vSwitch (Debian package openvswitch-switch); not found: {', '.join(missing)}"
    return None


def _program(name: str) -> str | None:
    if _WINDOWS:
        return shutil.which(f"{name}.exe", path=os.environ.get(_WINDOWS_PROGRAMS, ""))
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


requires_ovs = pytest.mark.skipif(_why_not() is not None, reason=_why_not() or "")


@dataclass
class Switch:
    """One running Open vSwitch. Its sockets are `rundir/db.sock` and `rundir/<bridge>.mgmt`."""

    rundir: Path
    namespace: str
    _daemons: dict[str, _Daemon] = field(default_factory=dict)

    @property
    def database(self) -> Path:
        return self.rundir / "db.sock"

    def management(self, bridge: str) -> Path:
        return self.rundir / f"{bridge}.mgmt"

    async def start_database(self) -> None:
        await self._start("ovsdb-server", f"{self.rundir}/conf.db", f"--remote=punix:{self.database}")

    async def start_vswitchd(self) -> None:
        await self._start("ovs-vswitchd", f"unix:{self.database}", *(["--enable-dummy=override"] if _WINDOWS else []))

    async def stop_database(self) -> None:
        await self._daemons.pop("ovsdb-server").stop()

    async def stop_vswitchd(self) -> None:
        await self._daemons.pop("ovs-vswitchd").stop()

    async def vsctl(self, *arguments: str) -> str:
        return await run("ovs-vsctl", f"--db=unix:{self.database}", "--timeout=10", *arguments)

    async def ofctl(self, *arguments: str) -> str:
        """The bridge is named by its `management` socket: `await switch.ofctl("dump-flows", ...)`.

        It runs in `rundir`: a file that is named by a path of Windows would be taken for a switch.
        """
        if _WINDOWS:  # where a path without `unix:` is not taken for a socket, and a restarted switch has its pipe late
            sockets = {one for one in arguments if one.startswith(str(self.rundir)) and one.endswith(".mgmt")}
            for one in sockets:
                await _listening(Path(one), self._daemons["ovs-vswitchd"].process)
            arguments = tuple(f"unix:{one}" if one in sockets else one for one in arguments)
        return await run("ovs-ofctl", "-O", "OpenFlow15", *arguments, folder=self.rundir)

    async def appctl(self, daemon: str, *arguments: str) -> str:
        return await run("ovs-appctl", "-t", f"{self.rundir}/{daemon}.ctl", *arguments)

    async def add_nics(self, *names: str) -> None:
        """Veth pairs inside the switch's namespace: stand-ins for a NIC or for the host end of a Pod."""
        if _WINDOWS:
            return
        batch = "".join(f"link add name {name} up type veth peer name {name[:11]}-far\n" for name in names)
        await run("ip", "-n", self.namespace, "-batch", "-", stdin=batch)

    async def add_address(self, interface: str, address: str) -> None:
        """An address of the host on an interface that the switch has made."""
        if _WINDOWS:
            await self.appctl("ovs-vswitchd", "netdev-dummy/ip4addr", interface, address)
            await self.appctl("ovs-vswitchd", "netdev-dummy/set-admin-state", interface, "up")
            return
        await run("ip", "-n", self.namespace, "address", "add", address, "dev", interface)
        await run("ip", "-n", self.namespace, "link", "set", interface, "up")

    async def _start(self, name: str, *arguments: str) -> None:
        program = _program(name)
        assert program
        # A killed test run takes its daemons with it.
        inside = ("setpriv", "--pdeathsig", "KILL", "nsenter", f"--net={_NAMED / self.namespace}")
        self._daemons[name] = await _Daemon.start(
            self.rundir,
            name,
            *(() if _WINDOWS else inside),
            *(
                program,
                *arguments,
                f"--pidfile={self.rundir}/{name}.pid",
                f"--unixctl={self.rundir}/{name}.ctl",
            ),
            *("-vsyslog:off", "-vfile:off", "-vconsole:info"),
        )


@asynccontextmanager
async def running_switch(rundir: Path) -> AsyncIterator[Switch]:
    """An empty switch (no bridge) whose daemons are up; all of it is gone when the block ends."""
    for name in _namespaces_of_dead_runs():
        with suppress(RuntimeError):  # another run may be faster
            await run("ip", "netns", "delete", name)
    switch = Switch(rundir, f"{_NAMESPACE}{os.getpid()}-{next(_counter)}")
    await run("ovsdb-tool", "create", f"{rundir}/conf.db", _schema())
    if not _WINDOWS:
        await run("ip", "netns", "add", switch.namespace)
    try:
        await switch.start_database()
        await switch.start_vswitchd()
        yield switch
    finally:
        for daemon in reversed(switch._daemons.values()):
            await daemon.stop()
        if not _WINDOWS:
            await run("ip", "netns", "delete", switch.namespace)


@pytest.fixture
async def switch(tmp_path: Path) -> AsyncIterator[Switch]:
    async with running_switch(tmp_path) as running:
        yield running


async def run(*command: str, stdin: str | None = None, checked: bool = True, folder: Path | None = None) -> str:
    """The standard output of a command; a failure is raised with what it said."""
    program, *arguments = command
    process = await asyncio.create_subprocess_exec(
        *(_program(program) or program, *arguments),
        stdin=DEVNULL if stdin is None else PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=folder,
    )
    output, errors = await process.communicate(None if stdin is None else stdin.encode())
    if checked and process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {process.returncode}: {errors.decode().strip()}")
    return output.decode().replace("\r\n", "\n")


@dataclass
class _Daemon:
    process: Process
    log: asyncio.Task[None]

    @classmethod
    async def start(cls, rundir: Path, name: str, *command: str) -> _Daemon:
        environment = {**os.environ, "OVS_RUNDIR": str(rundir)}
        if _WINDOWS:  # it writes nothing to a pipe; its log is `<name>.log`
            logged = (f"--log-file={rundir}/{name}.log", "-vfile:info")
            process = await asyncio.create_subprocess_exec(
                *command, *logged, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env=environment
            )
            await _listening(rundir / f"{name}.ctl", process)
            return cls(process, asyncio.create_task(asyncio.sleep(0)))
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=environment
        )
        assert process.stderr
        said = b""
        while b"(Open vSwitch)" not in said:  # both daemons name their version once their sockets listen
            line = await process.stderr.readline()
            if not line:
                raise RuntimeError(f"{name} ended with {await process.wait()} before it was up: {said.decode()}")
            said += line
        return cls(process, asyncio.create_task(_keep(process.stderr, rundir / f"{name}.log", said)))

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
        await self.process.wait()
        await self.log


async def _listening(socket: Path, process: Process) -> None:
    async with asyncio.timeout(60):
        while not local.is_served(socket):
            assert process.returncode is None, f"it ended with {process.returncode} before it was up"
            await asyncio.sleep(0.02)


async def _keep(lines: asyncio.StreamReader, path: Path, said: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(said)
        while line := await lines.readline():
            file.write(line)


def _schema() -> str:
    folder = os.environ[_WINDOWS_PROGRAMS] if _WINDOWS else "/usr/share/openvswitch"
    return f"{folder}/vswitch.ovsschema"


def _namespaces_of_dead_runs() -> list[str]:
    pid_of = {path.name: path.name.removeprefix(_NAMESPACE).partition("-")[0] for path in _NAMED.glob(f"{_NAMESPACE}*")}
    return [name for name, pid in pid_of.items() if not Path("/proc", pid).exists()]
