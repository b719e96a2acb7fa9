"""What a Node of a kubelet cluster holds of its Pods, read from the machine itself; its CNI plugin, called by hand."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from dataclasses import dataclass

from windlass.bench import cluster_parts as parts
from windlass.host.linux import namespaces
from windlass.lab.control.kubernetes_binaries import path_of
from windlass.lab.kubelets.clusters import KubeletCluster
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.processes import program
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.segments import UPLINK

PLUGIN = "/opt/cni/bin/windlass-cni"
CONFIGURATION = "/etc/cni/net.d/10-windlass.conflist"
ADDRESSES = "/var/lib/windlass/addresses/pods"  # host-local's store
PATIENCE = seconds(120.0)
_SWITCH = "unix:/run/openvswitch/db.sock"
_BRIDGE = "unix:/run/openvswitch/br-int.mgmt"


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a Pod leaves behind if it is not removed."""

    addresses: dict[str, str]  # by address: the container that holds it
    ports: dict[str, str]  # by interface: the container
    links: frozenset[str]  # of the Node, one for each Pod
    flows: int

    @property
    def containers(self) -> frozenset[str]:
        return frozenset(self.addresses.values()) | frozenset(self.ports.values())


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A Pod, as its container runtime names it to a CNI plugin."""

    node: str
    namespace: str
    pod: str
    id: str
    netns: str

    def environment(self, command: str, **other: str) -> dict[str, str]:
        return {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": self.id,
            "CNI_NETNS": self.netns,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE={self.namespace};K8S_POD_NAME={self.pod}",
        } | other


async def holdings(cluster: KubeletCluster, node: str) -> Holdings:
    machine = cluster.machines[node]
    stored = await machine.run("sh", "-c", f"cd {ADDRESSES} && grep -m 1 -H . *.*.*.* || true")
    held = dict(re.findall(r"^([\d.]+):(\w+)", stored, re.MULTILINE))
    links = json.loads(await machine.run("ip", "-json", "link", "show", "type", "veth"))
    said = await machine.run("ovs-ofctl", "-O", "OpenFlow15", "dump-aggregate", _BRIDGE)
    flows = re.search(r"flow_count=(\d+)", said)
    assert flows, said
    ports = {row["name"]: row["windlass-container-id"] for row in await _pod_interfaces(cluster, node)}
    return Holdings(held, ports, frozenset(link["ifname"] for link in links) - {UPLINK}, int(flows[1]))


async def sandbox_of(cluster: KubeletCluster, node: str, pod: str) -> Sandbox:
    for row in await _pod_interfaces(cluster, node):
        if row["windlass-pod-name"] == pod:
            return Sandbox(
                node, row["windlass-pod-namespace"], pod, row["windlass-container-id"], row["windlass-netns"]
            )
    raise AssertionError(f"Node {node} has no port of Pod {pod}")


async def _pod_interfaces(cluster: KubeletCluster, node: str) -> list[dict[str, str]]:
    """Each with what Windlass notes beside it."""
    machine = cluster.machines[node]
    listed = json.loads(
        await machine.run(
            *("ovs-vsctl", f"--db={_SWITCH}", "--format=json", "--columns=name,external_ids", "list", "interface")
        )
    )
    rows = [{"name": name, **dict(ids[1])} for name, ids in listed["data"]]
    return [row for row in rows if "windlass-container-id" in row]


async def call_plugin(cluster: KubeletCluster, node: str, environment: dict[str, str]) -> str:
    """What it prints; LabError with that if its exit status is not 0."""
    machine = cluster.machines[node]
    network = json.loads(await machine.run("cat", CONFIGURATION))
    (plugin,) = network["plugins"]
    content = json.dumps(plugin | {"cniVersion": network["cniVersion"], "name": network["name"]})
    return await machine.run("env", *(f"{key}={value}" for key, value in environment.items()), PLUGIN, content=content)


async def hears(cluster: KubeletCluster, pod: str, node: str, address: str, port: int = 8080) -> str:
    """The name that is answered there to a client in the Pod's network (no Pod: on the Node)."""
    namespace = str(namespaces.path_of(cluster.machines[node].namespace))
    if pod:
        (found,) = await parts.pods(cluster, f"--field-selector=metadata.name={pod}")
        namespace = await parts.network_of(cluster, found.container("main"))
    return await asyncio.to_thread(_ask, namespace, address, port)


def _ask(namespace: str, address: str, port: int) -> str:
    with namespaces.entered(namespace):
        sock = socket.create_connection((address, port), timeout=PATIENCE / 10)
    with sock:
        sock.sendall(b"GET /hostname HTTP/1.0\r\n\r\n")
        said = b""
        while piece := sock.recv(4096):
            said += piece
    return said.rpartition(b"\r\n\r\n")[2].decode()


async def event_about(cluster: KubeletCluster, pod: str, reason: str) -> str:
    """The first message with that reason about the Pod, as soon as there is one."""
    first = cluster.machines[cluster.shape.names[0]]
    command = (
        # In its network only: into its processes `nsenter` would go as a parent, and be killed in place of its child.
        *(program("nsenter"), f"--net={namespaces.path_of(first.namespace)}"),
        *(str(path_of("kubectl")), f"--kubeconfig={cluster.kubeconfig}", "get", "events", "--watch"),
        *(f"--field-selector=involvedObject.name={pod},reason={reason}", "-o", 'jsonpath={.message}{"\\n"}'),
    )
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            return (await process.stdout.readline()).decode().strip()
    except TimeoutError:
        raise LabError(f"no Event {reason} about Pod {pod} after {PATIENCE:.0f} s") from None
    finally:
        process.kill()
        await process.communicate()


async def until_gone(cluster: KubeletCluster, node: str, containers: frozenset[str]) -> Holdings:
    """Returns when nothing of these containers is left on the Node. There is no event for it, so this polls.

    A kubelet looks once a minute for sandboxes whose Pod is gone.
    """
    deadline = asyncio.get_running_loop().time() + 2 * PATIENCE
    while (found := await holdings(cluster, node)).containers & containers:
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{node} holds after {2 * PATIENCE:.0f} s: {found}, of {sorted(containers)}")
        await asyncio.sleep(_BETWEEN_LOOKS)
    return found


async def remove(cluster: KubeletCluster, node: str, *names: str) -> Holdings:
    """These Pods, and all that the Node holds of them: the API server forgets a Pod before its sandbox is gone."""
    rows = await _pod_interfaces(cluster, node)
    sandboxes = frozenset(row["windlass-container-id"] for row in rows if row["windlass-pod-name"] in names)
    assert len(sandboxes) == len(names)
    await cluster.kubectl("delete", *(f"pod/{name}" for name in names))
    return await until_gone(cluster, node, sandboxes)


_BETWEEN_LOOKS = 0.5
