"""Starts and stops a whole cluster: a machine for each Node, the control plane, Windlass from its chart, CoreDNS.

The control plane runs on the first Node, as in most clusters: so the API server reaches Pods by the tested network.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from pathlib import Path

import yaml

from windlass.lab.control.control_planes import ADMINISTRATOR, ControlPlane, Extent, kubelet_user
from windlass.lab.control.kubernetes_binaries import PROGRAMS, missing, path_of
from windlass.lab.kubelets import debian, images
from windlass.lab.kubelets.machines import KubeletMachine, runtime_folder
from windlass.lab.network import ovs
from windlass.lab.network.underlays import Underlay
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import Lab, LabDescription, LabError, Location
from windlass.lab.sandbox.processes import output_of
from windlass.lab.sandbox.progress import Say
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios.segments import UPLINK, Machine, Nic, segments
from windlass.model.families import IPAddress
from windlass.model.nodes import TrafficMode

SECONDS_TO_BE_READY = seconds(180.0)
POD_NETWORK, SERVICE_NETWORK = "10.244.0.0/16", "10.96.0.0/16"
NODE_NETWORK = ip_network("172.18.0.0/24")
FIRST_NODE = 11  # the last byte of its address
NAMESPACE = "windlass"  # where Windlass is installed
CHART = images.REPOSITORY / "deploy" / "chart"
COREDNS = Path(__file__).with_name("coredns.yaml")
ZONE = "topology.kubernetes.io/zone"

WHOLE = Extent(
    server=(
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--kubelet-preferred-address-types=InternalIP",
    ),
    controllers=(
        "--use-service-account-credentials=true",
        "--allocate-node-cidrs=true",
        f"--cluster-cidr={POD_NETWORK}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
    ),
)


@dataclass(frozen=True, slots=True)
class Shape:
    nodes: int = 2
    traffic_mode: TrafficMode = TrafficMode.ENCAP
    zones: int = 0  # the number of zones of the Nodes; 0: they have no zone label

    @property
    def names(self) -> list[str]:
        return [f"node-{number}" for number in range(1, self.nodes + 1)]

    def address(self, node: str) -> IPAddress:
        return NODE_NETWORK.network_address + FIRST_NODE + self.names.index(node)

    def labels(self, node: str) -> list[str]:
        return [f"{ZONE}=zone-{self.names.index(node) % self.zones + 1}"] if self.zones else []


@asynccontextmanager
async def running(shape: Shape, say: Say) -> AsyncIterator[KubeletCluster]:
    """A cluster that is ready within the block and removed after it."""
    if absent := missing(*PROGRAMS):
        raise LabError(f"{absent} (tools/build-kubernetes --whole)")
    archives = await asyncio.to_thread(prepare, say)
    with labs.opened() as lab:
        cluster = KubeletCluster(lab, shape, say)
        try:
            await cluster.start(archives)
            yield cluster
        finally:
            await cluster.end()


def prepare(say: Say) -> list[Path]:
    """Makes what the machines of Nodes need, once for a machine. Returns the archives of the images."""
    if not runtime_folder().exists():
        say("unpacking containerd and runc, Debian's packages")
        debian.unpack(["containerd", "runc"], runtime_folder())
    return images.make(say)


class KubeletCluster:
    def __init__(self, lab: Lab, shape: Shape, say: Say) -> None:
        self.lab = lab
        self.shape = shape
        self._say = say
        plugs = [_plug(shape, node) for node in shape.names]
        self._plugs = dict(zip(shape.names, plugs, strict=True))
        self._underlay = Underlay(lab, segments(plugs))
        self.machines = {node: KubeletMachine(lab, node, lab.namespace("node", node)) for node in shape.names}
        first = shape.names[0]
        self.plane = ControlPlane(
            lab.namespace("node", first), lab.folder / "control-plane", [shape.address(first)], WHOLE, shape.names
        )

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig for programs on the Nodes."""
        return self.plane.kubeconfig(ADMINISTRATOR)

    async def start(self, archives: Sequence[Path]) -> None:
        began = asyncio.get_running_loop().time()

        def report(what: str) -> None:
            self._say(f"{what} after {asyncio.get_running_loop().time() - began:.0f} s")

        await asyncio.to_thread(self._plug_in)
        await self.plane.start()
        await self.plane.start_controllers()
        await self.plane.start_scheduler()
        report("the API server answers")
        await asyncio.gather(*(self._start_machine(node, archives) for node in self.shape.names))
        report(f"{self.shape.nodes} machines run containerd, with {len(archives)} images, and a kubelet")
        await self.kubectl("create", "namespace", NAMESPACE)
        await self.apply_chart()
        await self.kubectl("apply", "-f", str(COREDNS))
        await self._all_ready()
        report(f"Windlass is ready on all Nodes ({self.shape.traffic_mode.value}), and CoreDNS answers")

    async def end(self) -> None:
        await asyncio.gather(*(machine.off() for machine in self.machines.values()))
        await self.plane.end()

    async def kubectl(self, *arguments: str, content: str = "") -> str:
        """Runs kubectl on the first Node."""
        first = self.machines[self.shape.names[0]]
        command = (str(path_of("kubectl")), f"--kubeconfig={self.kubeconfig}", *arguments)
        return await first.run(*command, content=content)

    async def start_kubelet(self, node: str) -> None:
        shape = self.shape
        kubeconfig = self.plane.kubeconfig(kubelet_user(node))
        await self.machines[node].start_kubelet(kubeconfig, shape.address(node), shape.labels(node))

    async def reboot(self, node: str) -> None:
        """Like a power failure: only the disk survives. Not for the Node of the control plane."""
        machine = self.machines[node]
        await machine.off()
        await asyncio.to_thread(self._underlay.unplug, self._plugs[node])
        await asyncio.to_thread(self._underlay.plug, self._plugs[node])
        await machine.on()
        await machine.start_containerd()
        await self.start_kubelet(node)

    def describe(self) -> None:
        """Publishes the cluster for `lab status` and `lab exec`."""
        places = {f"node/{name}": Location(one.namespace, pid=one.pid) for name, one in self.machines.items()}
        mode = self.shape.traffic_mode.value
        description = LabDescription(self.lab.id, os.getpid(), f"kubelets, {mode}", ovs.datapath_type(), places)
        labs.describe(self.lab, description)

    # Details ------------------------------------------------------------------------------------------------------

    def _plug_in(self) -> None:
        self._underlay.create()
        for plug in self._plugs.values():
            self._underlay.plug(plug)

    async def _start_machine(self, node: str, archives: Sequence[Path]) -> None:
        machine = self.machines[node]
        await machine.on()
        await machine.start_containerd()
        await machine.import_images(archives)
        await self.start_kubelet(node)

    async def apply_chart(self, *options: str) -> None:
        """`helm template OPTIONS | kubectl apply`."""
        values = {
            "apiServer": self.plane.url,
            "image": {"pullPolicy": "Never"},  # there is no registry: the image was imported on each Node
            "config": {"trafficMode": self.shape.traffic_mode.value, "datapathType": ovs.datapath_type()},
        }
        file = self.lab.folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        helm = (str(_helm()), "template", "windlass", str(CHART), f"--namespace={NAMESPACE}")
        rendered = await self.machines[self.shape.names[0]].run(*helm, "--values", str(file), *options)
        await self.kubectl("apply", "-n", NAMESPACE, "-f", "-", content=rendered)

    async def _all_ready(self) -> None:
        if self.shape.traffic_mode is TrafficMode.NO_ENCAP:
            await self._route_pods()
        limit = f"--timeout={SECONDS_TO_BE_READY:.0f}s"
        await self.kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/windlass-agent", limit)
        await self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", limit)
        await self.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", limit)

    async def _route_pods(self) -> None:
        """Adds routes to the PodCIDRs, which the underlay of a cluster without tunnels must have."""
        routes = {}
        for node in self.shape.names:
            jsonpath = "jsonpath={.spec.podCIDR}"
            await self.kubectl("wait", f"--for={jsonpath}", f"node/{node}", "--timeout=60s")
            cidr = await self.kubectl("get", "node", node, "-o", jsonpath)
            routes[ip_network(cidr)] = self.shape.address(node)
        await asyncio.to_thread(self._underlay.route, routes)


def _helm() -> Path:
    place = Path(output_of(sys.executable, str(images.REPOSITORY / "tools" / "build-helm"), "--where").strip())
    if not place.exists():
        raise LabError(f"{place}: does not exist; run tools/build-helm once on this machine")
    return place


def _plug(shape: Shape, node: str) -> Machine:
    address = ip_interface(f"{shape.address(node)}/{NODE_NETWORK.prefixlen}")
    return Machine("node", node, (Nic(UPLINK, (address,)),))
