"""The identity of a lab on this machine: the names of everything it creates, and how to find and remove all of it.

Everything that a lab creates is named after its id: network namespaces `wl<id>-...`, the folder
`/run/windlass-lab/<id>`. The lab's process holds a lock in that folder while it lives, so a lab whose lock is free was
left behind by a crash.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from windlass import files
from windlass.host.linux import namespaces
from windlass.lab.sandbox.time_limits import seconds

ROOT = Path("/run/windlass-lab")
DISKS = Path("/var/tmp/windlass-lab")  # for files that are too big for /run, which may be in memory
CGROUPS = Path("/sys/fs/cgroup")
LONGEST_FOLDER = 32  # keeps the paths of unix sockets in it below their limit of 108 bytes
SECONDS_TO_DIE = seconds(2.0)


class LabError(RuntimeError):
    """The lab could not be brought up. The message says what, where and what to do. The run ends with status 2."""


@dataclass(frozen=True, slots=True)
class Lab:
    id: str

    @property
    def folder(self) -> Path:
        return ROOT / self.id

    @property
    def manifests(self) -> Path:
        """The folder of manifests that the agents watch instead of an API server."""
        return self.folder / "manifests"

    @property
    def disk(self) -> Path:
        """For large files: the disks of machines. Its users create it."""
        return DISKS / self.id

    @property
    def cgroup_prefix(self) -> str:
        return f"wl{self.id}-"

    def node_folder(self, node: str) -> Path:
        return self.folder / _short(node)

    def namespace(self, kind: str, name: str = "") -> str:
        """Unique for each object: in `namespace/name`, only the name may contain a dot."""
        return f"wl{self.id}-{kind}" + (f"-{name.replace('/', '.')}" if name else "")

    @property
    def namespaces(self) -> list[str]:
        return sorted(path.name for path in namespaces.NAMED.glob(f"wl{self.id}-*"))


class Location(msgspec.Struct, frozen=True, rename="camel"):
    """Where `lab exec` can run a command: the namespace of a Node, a Pod or a host."""

    namespace: str
    ovs_run_directory: str = ""  # for a Node: where its Open vSwitch has its sockets
    pid: int = 0  # a process in the mount namespace of the machine; 0: it shares the files of this machine


class LabDescription(msgspec.Struct, frozen=True, rename="camel"):
    """What a running lab publishes about itself, for `lab status` and `lab exec`."""

    id: str
    pid: int
    scenario: str
    dataplane: str
    places: dict[str, Location]  # by `node/win-1`, `pod/default/web-0`, `externalHost/client`


@contextmanager
def opened() -> Iterator[Lab]:
    """A new lab. Everything that it created is removed when the block ends. First removes what crashed labs left."""
    with _exclusive():
        clean()
        lab = Lab(_unused_id())
        lab.folder.mkdir()
        held = os.open(lab.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield lab
    finally:
        remove(lab)
        os.close(held)
        with _exclusive(), suppress(OSError):
            ROOT.rmdir()  # fails while other labs exist


def clean() -> list[Lab]:
    """Removes every lab whose process is gone, and returns these labs."""
    abandoned = [lab for lab in _all() if not is_alive(lab)]
    for lab in abandoned:
        remove(lab)
    return abandoned


def is_alive(lab: Lab) -> bool:
    try:
        lock = os.open(lab.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # it crashed before it had a lock, or is being removed
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)


def describe(lab: Lab, description: LabDescription) -> None:
    files.write(lab.folder / "lab.json", msgspec.json.encode(description), durable=False)


def running() -> list[LabDescription]:
    """The labs that are up on this machine."""
    described: list[LabDescription] = []
    for lab in _all():
        with suppress(FileNotFoundError):  # it is starting or being removed
            if is_alive(lab):
                content = (lab.folder / "lab.json").read_bytes()
                described.append(msgspec.json.decode(content, type=LabDescription))
    return described


def remove(lab: Lab) -> None:
    """Kills the lab's processes, then removes its namespaces, and its folder last. Safe to repeat."""
    _end(_processes(lab))
    for name in lab.namespaces:
        namespaces.delete(name)
    for link in namespaces.NAMED.glob("*-*"):  # other names of its namespaces
        if link.is_symlink() and link.readlink().name.startswith(lab.namespace("")):
            link.unlink(missing_ok=True)
    _remove_cgroups(lab)
    if lab.disk.exists():
        shutil.rmtree(lab.disk, ignore_errors=True)
        with suppress(OSError):
            DISKS.rmdir()  # fails while other labs use it
    shutil.rmtree(lab.folder, ignore_errors=True)


# Details --------------------------------------------------------------------------------------------------------


@contextmanager
def _exclusive() -> Iterator[None]:
    """Serializes creation and cleaning: a lab that is being created must not look abandoned."""
    lock = _locked_root()
    try:
        yield
    finally:
        os.close(lock)


def _locked_root() -> int:
    while True:
        ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process may remove the folder before or while this one waits
            lock = os.open(ROOT, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if ROOT.exists() and ROOT.samefile(f"/proc/self/fd/{lock}"):
                return lock
            os.close(lock)


def _all() -> list[Lab]:
    return [Lab(path.name) for path in sorted(ROOT.glob("*")) if path.is_dir()]


def _unused_id() -> str:
    while True:
        lab = Lab(secrets.token_hex(2))
        if not lab.folder.exists():
            return lab.id


def _short(name: str) -> str:
    if len(name) <= LONGEST_FOLDER:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_FOLDER - 9]}-{digest}"


def _processes(lab: Lab) -> list[int]:
    """Processes in the lab's namespaces whose command line names its folder: not the shells of `lab exec`."""
    inodes = {namespaces.path_of(name).stat().st_ino for name in lab.namespaces}
    folder = f"{lab.folder}/".encode()
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process may end during the check
            if (process / "ns/net").stat().st_ino in inodes and folder in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def _remove_cgroups(lab: Lab) -> None:
    """The cgroups of machines, with those that a kubelet created inside. A cgroup with processes cannot be removed."""
    for top in (*CGROUPS.glob(f"{lab.cgroup_prefix}*"), *CGROUPS.glob(f"*/{lab.cgroup_prefix}*")):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()


def _end(pids: list[int]) -> None:
    handles: list[int] = []
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                handles.append(os.pidfd_open(pid))
                signal.pidfd_send_signal(handles[-1], signal.SIGKILL)
        deadline = time.monotonic() + SECONDS_TO_DIE
        for handle in handles:
            select.select([handle], [], [], max(0, deadline - time.monotonic()))
    finally:
        for handle in handles:
            os.close(handle)
