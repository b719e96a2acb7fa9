"""The Pods of a running cluster: each gets a network namespace, the CNI plugin's network and servers on its ports.

Pods start and stop only where an agent runs. Elsewhere they wait for it, as a kubelet keeps retrying.
"""

from __future__ import annotations

from collections.abc import Mapping

from windlass.host.linux import namespaces
from windlass.lab.network import underlays
from windlass.lab.orchestration.agents import Agents
from windlass.lab.orchestration.jobs import run_together
from windlass.lab.probing.servers import Servers
from windlass.lab.sandbox.labs import Lab, LabError
from windlass.lab.scenarios import desired_states
from windlass.lab.scenarios.desired_states import DesiredState, PodAddresses
from windlass.lab.scenarios.objects import LabPod
from windlass.model.families import IPAddress


class RunningPods:
    def __init__(self, lab: Lab, fabric: Agents, servers: Servers) -> None:
        self._lab = lab
        self._fabric = fabric
        self._servers = servers
        self._running: dict[str, LabPod] = {}
        self._dead: set[str] = set()  # ended by a reboot, not yet attached again
        self._attached: dict[str, tuple[IPAddress, ...]] = {}

    def addresses(self, desired: DesiredState) -> PodAddresses:
        """The addresses of every running Pod. Kubernetes makes no Pod an endpoint before it is ready."""
        known = desired_states.pod_addresses(desired, self._attached)
        return {key: addresses for key, addresses in known.items() if key in self._running}

    def leaving(self, desired: DesiredState) -> list[LabPod]:
        """The running Pods that are to stop now."""
        pods = self._running.values()
        return [pod for pod in pods if not _continues(pod, desired.pods) and self._has_agent(pod)]

    async def stop(self, desired: DesiredState) -> None:
        await run_together(self._stop(pod) for pod in self.leaving(desired))

    async def start(self, desired: DesiredState) -> None:
        pods = desired.pods.items()
        new = [pod for key, pod in pods if key not in self._running and self._has_agent(pod)]
        await run_together(self._start(pod) for pod in new)

    def end_by_reboot(self, node: str) -> None:
        """The Pods of this Node end without the CNI plugin. `start` attaches them again as new containers."""
        for pod in [pod for pod in self._running.values() if pod.spec.node_name == node]:
            self._servers.close(pod.key)
            if not pod.spec.host_network:
                namespaces.delete(namespace_of(self._lab, pod))
                del self._attached[pod.key]
                self._dead.add(pod.key)
            del self._running[pod.key]

    def check_all_started(self, desired: DesiredState) -> None:
        for key, pod in desired.pods.items():
            if key not in self._running and key not in self._dead:
                node = pod.spec.node_name
                raise LabError(
                    f"Pod {key} cannot start: no agent runs on Node {node}; add a startAgent action to this step"
                )

    async def _start(self, pod: LabPod) -> None:
        namespace = namespace_of(self._lab, pod)
        self._running[pod.key] = pod
        if pod.key in self._dead:
            await self._fabric.detach(pod, namespace)
            self._dead.remove(pod.key)
        if not pod.spec.host_network:
            underlays.make_namespace(namespace)
            self._attached[pod.key] = await self._fabric.attach(pod, namespace)
            underlays.retry_neighbours_longer(namespace)
            self._servers.watch(namespace, pod.key)
        await self._servers.listen(namespace, pod.key, [(port.protocol, port.container_port) for port in pod.ports])

    async def _stop(self, pod: LabPod) -> None:
        self._servers.close(pod.key)
        if not pod.spec.host_network:
            namespace = namespace_of(self._lab, pod)
            await self._fabric.detach(pod, namespace)
            namespaces.delete(namespace)
            del self._attached[pod.key]
        del self._running[pod.key]

    def _has_agent(self, pod: LabPod) -> bool:
        return pod.spec.host_network or self._fabric.serves(pod.spec.node_name)


def namespace_of(lab: Lab, pod: LabPod) -> str:
    return lab.namespace("node", pod.spec.node_name) if pod.spec.host_network else lab.namespace("pod", pod.key)


def _continues(pod: LabPod, wanted: Mapping[str, LabPod]) -> bool:
    """Whether this Pod keeps running. With another Node, address or port it is a new Pod, as in Kubernetes."""
    other = wanted.get(pod.key)
    return other is not None and (pod.spec, pod.fixed_addresses) == (other.spec, other.fixed_addresses)
