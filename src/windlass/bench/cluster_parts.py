"""Kills and restarts parts of a lab's kubelet cluster, and finds the network namespaces of its Pods.

It waits for events of the API server where there are any, instead of polling. It measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from windlass.lab.kubelets.clusters import NAMESPACE, KubeletCluster
from windlass.lab.kubelets.images import AGNHOST
from windlass.lab.kubelets.machines import runtime_folder
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.time_limits import seconds

SECONDS_TO_RETURN = seconds(300.0)  # until a part that was killed is back; a busy machine may need so long
AGENT, SWITCH = "windlass-agent", "windlass-switch"  # the DaemonSets


@dataclass(frozen=True, slots=True)
class ContainerInstance:
    node: str
    namespace: str
    pod: str
    name: str
    id: str
    restarts: int


class _PodMetadata(Struct):
    name: str
    namespace: str = ""
    deletion_timestamp: str = msgspec.field(default="", name="deletionTimestamp")


class _Spec(Struct):
    node_name: str = msgspec.field(default="", name="nodeName")


class _ContainerStatus(Struct, rename="camel"):
    name: str
    restart_count: int = 0
    container_id: str = msgspec.field(default="", name="containerID")


class _PodObjectStatus(Struct, rename="camel"):
    container_statuses: list[_ContainerStatus] = []
    pod_ip: str = msgspec.field(default="", name="podIP")


class PodObject(Struct):
    """The fields of a Pod that are used here."""

    metadata: _PodMetadata
    spec: _Spec
    status: _PodObjectStatus

    def container(self, name: str) -> ContainerInstance:
        for one in self.status.container_statuses:
            if one.name == name:
                _, _, container_id = one.container_id.partition("://")
                place = (self.spec.node_name, self.metadata.namespace, self.metadata.name)
                return ContainerInstance(*place, name, container_id, one.restart_count)
        raise LabError(f"Pod {self.metadata.namespace}/{self.metadata.name} has no container {name}")


class _Pods(Struct):
    items: list[PodObject]


# Queries ------------------------------------------------------------------------------------------------------------


async def pods(cluster: KubeletCluster, *selection: str) -> list[PodObject]:
    """`selection` as for `kubectl get pods`. Without those that are being deleted."""
    found = msgspec.json.decode(await cluster.kubectl("get", "pods", *selection, "-o", "json"), type=_Pods)
    return [pod for pod in found.items if not pod.metadata.deletion_timestamp]


async def part_on(cluster: KubeletCluster, node: str, daemon_set: str, container: str) -> ContainerInstance:
    """A container of Windlass itself on a Node."""
    component = f"app.kubernetes.io/component={daemon_set.removeprefix('windlass-')}"
    selection = ("-n", NAMESPACE, "-l", component, f"--field-selector=spec.nodeName={node}")
    found = await pods(cluster, *selection)
    if len(found) != 1:
        raise LabError(f"Node {node} has {len(found)} Pods of {daemon_set} instead of one")
    return found[0].container(container)


async def process_of(cluster: KubeletCluster, container: ContainerInstance) -> int:
    """The process id in the machine of its Node."""
    listed = await cluster.machines[container.node].run(*_CTR, "task", "ls")
    for line in listed.splitlines():
        container_id, pid, *_ = line.split()
        if container_id == container.id:
            return int(pid)
    raise LabError(f"{container.name} of Pod {container.namespace}/{container.pod} does not run on {container.node}")


async def network_of(cluster: KubeletCluster, container: ContainerInstance) -> str:
    """The path of the Pod's network namespace for this process, which runs outside of the lab's machines."""
    pid = await process_of(cluster, container)
    return f"/proc/{cluster.machines[container.node].pid}/root/proc/{pid}/ns/net"


# Restarts ------------------------------------------------------------------------------------------------------------


async def kill_container(cluster: KubeletCluster, container: ContainerInstance) -> None:
    """Like a crash; the kubelet starts it again. Returns when it is ready again."""
    await cluster.machines[container.node].run(*_CTR, "task", "kill", "-s", "SIGKILL", container.id)
    status = f'{{.status.containerStatuses[?(@.name=="{container.name}")]'
    pod = ("-n", container.namespace, f"pod/{container.pod}", _LIMIT)
    await cluster.kubectl("wait", f"--for=jsonpath={status}.restartCount}}={container.restarts + 1}", *pod)
    await cluster.kubectl("wait", f"--for=jsonpath={status}.ready}}=true", *pod)


async def roll_out(cluster: KubeletCluster, daemon_set: str) -> None:
    """Replace all its Pods one after the other, as for a new version."""
    await cluster.kubectl("-n", NAMESPACE, "rollout", "restart", f"daemonset/{daemon_set}")
    await cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{daemon_set}", _LIMIT)


async def restart_api_server(cluster: KubeletCluster) -> None:
    await cluster.plane.stop_server()
    await cluster.plane.start_server()


async def restart_containerd(cluster: KubeletCluster, node: str) -> None:
    await cluster.machines[node].stop_containerd()
    await cluster.machines[node].start_containerd()


async def prefer_switches(cluster: KubeletCluster) -> None:
    """Schedule the switches before all else: a datapath in the kernel would not wait for a processor either.

    Real-time scheduling does not work inside the container's CPU cgroup, so the processes are moved out of it.
    """
    for node, machine in cluster.machines.items():
        pid = await process_of(cluster, await part_on(cluster, node, SWITCH, "ovs-vswitchd"))
        root_group = "/sys/fs/cgroup/cpu/cgroup.procs"
        with suppress(LabError):  # then the floor shows how busy the machine was
            await machine.run("sh", "-ec", f"echo {pid} >{root_group}; chrt --rr --all-tasks --pid 1 {pid}")


# Pods ---------------------------------------------------------------------------------------------------------------


ASLEEP = ("pause",)  # the load's own process answers in its network namespace


def pod_manifest(name: str, node: str, does: Sequence[str] = ASLEEP) -> dict[str, object]:
    """`does`: the arguments of agnhost: ASLEEP, or it serves HTTP at port 8080, and is ready as soon as it does."""
    container: dict[str, object] = {"name": "main", "image": AGNHOST, "imagePullPolicy": "Never", "args": list(does)}
    if does != ASLEEP:
        container["readinessProbe"] = {"httpGet": {"path": "/hostname", "port": 8080}, "periodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]},
    }


async def make_pod(cluster: KubeletCluster, name: str, node: str, does: Sequence[str] = ASLEEP) -> PodObject:
    """Returns when it is ready."""
    await cluster.kubectl("apply", "-f", "-", content=msgspec.json.encode(pod_manifest(name, node, does)).decode())
    await cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", _LIMIT)
    (found,) = await pods(cluster, f"--field-selector=metadata.name={name}")
    return found


_CTR = (str(runtime_folder() / "usr/bin/ctr"), "-n", "k8s.io")
_LIMIT = f"--timeout={SECONDS_TO_RETURN:.0f}s"
