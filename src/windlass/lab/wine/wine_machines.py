"""Wine for one Node: which Windows programs this machine has, and how to start one."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.processes import program

_REPOSITORY = Path(__file__).parents[4]
# Programs under Wine cannot write to a file as their output, so it goes through a pipe. The shell becomes the program.
_BY_A_PIPE = 'exec "$@" > >(exec cat) 2>&1'


@dataclass(frozen=True, slots=True)
class WindowsPrograms:
    """Where tools/build-windows puts what it builds."""

    folder: Path  # Open vSwitch, CPython and an empty Windows, for all clones of the repository
    own: Path = _REPOSITORY / "build" / "windows"  # built from this clone
    agent: tuple[str, ...] = ("windlass", "agent")  # the module that runs as the agent, and its arguments

    @classmethod
    def default(cls) -> WindowsPrograms:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(Path(os.environ.get("WINDLASS_WINDOWS") or cache / "windlass" / "windows"))

    @property
    def python(self) -> Path:
        return self.folder / "python" / "python.exe"

    @property
    def plugin(self) -> Path:
        return self.own / "windlass-cni.exe"

    @property
    def ipam_plugin(self) -> Path:
        return self.folder / "cni" / "host-local.exe"

    @property
    def stand_ins(self) -> tuple[Path, ...]:
        """For IP Helper, HCN and netsh."""
        names = ("iphlpapi-stand-in.dll", "compute_network-stand-in.dll", "netsh-stand-in.exe")
        return tuple(self.own / name for name in names)

    @property
    def empty_prefix(self) -> Path:
        return self.folder / "prefix"

    def ovs(self, name: str) -> Path:
        return self.folder / "ovs" / f"{name}.exe"

    def check(self) -> None:
        """Raises LabError if something is missing."""
        needed = [self.python, self.ovs("ovsdb-server"), self.ovs("ovs-vswitchd"), self.empty_prefix, self.ipam_plugin]
        for path in (*needed, self.plugin, *self.stand_ins):
            if not path.exists():
                raise LabError(f"--windows wine: {path} does not exist; `tools/build-windows` builds it")
        if shutil.which("wine") is None:
            raise LabError("--windows wine: Wine is not installed; `tools/build-windows` installs it")


def windows_path(path: Path | str) -> str:
    """The path by which Windows programs open a file of this machine: Wine maps drive Z to `/`."""
    return f"Z:{path}"


@dataclass
class WineMachine:
    """A separate Windows in a network namespace, with its C: drive and registry in `folder`."""

    namespace: str
    folder: Path
    programs: WindowsPrograms

    def create(self) -> None:
        """Copies an empty Windows; its programs and libraries are links."""
        template = self.programs.empty_prefix
        shutil.copytree(template, self.folder, symlinks=True, copy_function=_link, dirs_exist_ok=False)
        for registry in template.glob("*.reg"):
            (self.folder / registry.name).unlink()
            shutil.copy(registry, self.folder)

    def forget_networks(self) -> None:
        """Simulates that HNS loses its networks at a reboot."""
        (self.folder / "host-network-service.json").unlink(missing_ok=True)

    def kill_processes(self) -> None:
        """Kills every process that was started with this Windows."""
        own = f"WINEPREFIX={self.folder}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                if own in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)

    def command(self, exe: Path, *arguments: str) -> list[str]:
        """The command that starts a Windows program. Its process becomes that program."""
        # `ip netns exec` mounts the /sys of the namespace, which Wine reads.
        entering = [program("ip"), "netns", "exec", self.namespace]
        return [*entering, program("bash"), "-c", _BY_A_PIPE, "bash", program("wine"), str(exe), *arguments]

    @cached_property
    def environment(self) -> Mapping[str, str]:
        return {
            "WINEPREFIX": str(self.folder),
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree,mshtml=",  # neither .NET nor a browser
            "WINDLASS_STAND_IN_HNS": str(_REPOSITORY / "tests" / "windows" / "stand_ins" / "host_network_service.py"),
            "PYTHONPATH": windows_path(_REPOSITORY / "src"),
            "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def _link(source: str, target: str) -> str:
    Path(target).symlink_to(source)
    return target
