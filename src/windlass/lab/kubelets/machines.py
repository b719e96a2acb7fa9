"""One Node as a machine with its own network, disk, processes and host name, which runs containerd and a kubelet.

When its first process ends (by `off`, or with the lab), the kernel ends all its processes, also those of containers.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import yaml

from windlass.cluster.kubernetes.writing import NOT_READY
from windlass.lab.control.kubernetes_binaries import directory, missing, path_of
from windlass.lab.kubelets.images import PAUSE
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.sandbox.processes import Child, program, run
from windlass.lab.sandbox.time_limits import seconds
from windlass.model.families import IPAddress

SCRIPT = Path(__file__).with_name("machine.sh")
SECONDS_TO_START = seconds(30.0)
SECONDS_BETWEEN_POLLS = 0.05
CLUSTER_DNS = "10.96.0.10"

_CONTAINERD = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Otherwise containers with a lower OOM score than ours do not start on a machine that may not lower it.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
"""


def search_path() -> str:
    """The PATH of a machine, with the programs of the container runtime."""
    return f"{runtime_folder()}/usr/bin:{runtime_folder()}/usr/sbin:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def runtime_folder() -> Path:
    """The folder where containerd and runc were unpacked."""
    return directory() / "runtime"


class KubeletMachine:
    def __init__(self, lab: Lab, node: str, namespace: str) -> None:
        self.node = node
        self.namespace = namespace
        self.folder = lab.node_folder(node)
        self._lab_folder = lab.folder
        self.disk = lab.disk / node
        self._cgroup = f"{lab.cgroup_prefix}{node}"
        self._first: Child | None = None
        self._containerd: Child | None = None
        self._kubelet: Child | None = None

    async def on(self) -> None:
        """Starts the machine without containerd and kubelet. After `off`, it still has its disk."""
        for folder in (self.folder, self.disk):
            folder.mkdir(parents=True, exist_ok=True)
        ready = self.folder / "up"
        ready.unlink(missing_ok=True)
        namespaces = ("--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation=private")
        script = ("bash", str(SCRIPT), self.node, str(self.disk), str(self._lab_folder), self._cgroup, str(ready))
        self._first = self._child("machine", program("unshare"), *namespaces, *script)
        await self._until(lambda: asyncio.to_thread(ready.exists), self._first)

    async def off(self) -> None:
        """Kills all its processes, like a power failure."""
        for child in (self._first, self._containerd, self._kubelet):
            if child:
                await child.kill()
        self._first = self._containerd = self._kubelet = None

    async def start_containerd(self) -> None:
        configuration = self.folder / "containerd.toml"
        runc = runtime_folder() / "usr/sbin/runc"
        configuration.write_text(_CONTAINERD.format(pause=PAUSE, runc=runc))
        self._containerd = self._inside("containerd", str(_binary("containerd")), "-c", str(configuration))
        await self._until(self._runtime_answers, self._containerd)

    async def stop_containerd(self) -> None:
        """Kills containerd, like a crash; its containers continue."""
        await self._kill(self._containerd)
        self._containerd = None

    async def import_images(self, archives: Sequence[Path]) -> None:
        for archive in archives:
            await self.run(str(_binary("ctr")), "-n", "k8s.io", "images", "import", str(archive))

    async def start_kubelet(self, kubeconfig: Path, address: IPAddress, labels: Sequence[str] = ()) -> None:
        if absent := missing("kubelet"):
            raise LabError(absent)
        configuration = self.folder / "kubelet.yaml"
        configuration.write_text(yaml.safe_dump(self._kubelet_configuration()))
        self._kubelet = self._inside(
            "kubelet",
            str(path_of("kubelet")),
            *(f"--config={configuration}", f"--kubeconfig={kubeconfig}"),
            *(f"--hostname-override={self.node}", f"--node-ip={address}"),
            *([f"--node-labels={','.join(labels)}"] if labels else []),
        )

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs a program on this machine."""
        return [program("nsenter"), "-t", str(self.pid), "-m", "-u", "-p", "-n", "--", *arguments]

    async def run(self, *arguments: str, content: str = "") -> str:
        """Runs a program on this machine and returns its output. Raises LabError if it fails."""
        status, output, errors = await run(*self.command(*arguments), content=content.encode())
        if status:
            said = (errors or output).decode(errors="replace").strip()
            raise LabError(f"Node {self.node}: `{' '.join(arguments)}` failed: {said}")
        return output.decode(errors="replace").strip()

    # Details ------------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The first process of the machine, as numbered in our own process namespace."""
        if self._first is None:
            raise LabError(f"the machine of Node {self.node} is off")
        return _only_child(self._first.pid)

    def _child(self, name: str, *command: str) -> Child:
        return Child(
            f"{name} of Node {self.node}",
            command,
            namespace=self.namespace,
            folder=self.folder,
            log=self.folder / f"{name}.log",
        )

    def _inside(self, name: str, *command: str) -> Child:
        enter = (program("nsenter"), "-t", str(self.pid), "-m", "-u", "-p", "--")
        return self._child(name, *enter, program("env"), f"PATH={search_path()}", program("nice"), "-n", "5", *command)

    async def _kill(self, child: Child | None) -> None:
        """Kills the program itself; `nsenter`, which waits for it, then ends."""
        if child and child.alive:
            os.kill(_only_child(child.pid), signal.SIGKILL)
            await child.exited

    async def _until(self, check: Callable[[], Awaitable[bool]], child: Child) -> None:
        async def missing() -> str | None:
            return None if await check() else ""

        await child.until(missing, "is not up", SECONDS_TO_START, SECONDS_BETWEEN_POLLS)

    async def _runtime_answers(self) -> bool:
        status, _, _ = await run(*self.command(str(_binary("ctr")), "version"))
        return status == 0

    def _kubelet_configuration(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},  # only the lab can reach it
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "clusterDNS": [CLUSTER_DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": "/etc/resolv.conf",
            # The disk of this machine is shared, and removed images could not be pulled again.
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageMinimumGCAge": "24h",
            "registerWithTaints": [NOT_READY],
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
        }


def _binary(name: str) -> Path:
    return runtime_folder() / "usr/bin" / name


def _only_child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if len(children) != 1:
        raise LabError(f"process {pid} has {len(children)} children; expected one")
    return int(children[0])
