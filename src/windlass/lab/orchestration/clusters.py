"""A running cluster, made to match a World: machines, Nodes, Pods, servers and objects. It sends no probes."""

from __future__ import annotations

import asyncio
import os
from ipaddress import ip_network
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from windlass.host.linux import namespaces
from windlass.lab.network import underlays
from windlass.lab.network.underlays import Underlay
from windlass.lab.probing.arrivals import Arrivals
from windlass.lab.probing.servers import Servers
from windlass.lab.sandbox import labs
from windlass.lab.sandbox.labs import LabDescription, LabError, Location
from windlass.lab.scenarios import desired_states, segments
from windlass.lab.scenarios.desired_states import DesiredState
from windlass.lab.scenarios.directives import HostRoute
from windlass.model.families import family_of
from windlass.model.nodes import TrafficMode

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from windlass.lab.orchestration.fabrics import Fabric
    from windlass.lab.sandbox.labs import Lab
    from windlass.lab.scenarios.desired_states import Addresses
    from windlass.lab.scenarios.directives import Action, ActionSpec, ProbeSource
    from windlass.lab.scenarios.objects import LabPod
    from windlass.lab.scenarios.segments import Machine
    from windlass.model.families import IPAddress, IPNetwork

_P = ParamSpec("_P")
_R = TypeVar("_R")


class RunningCluster:
    """Starts empty. `reach` brings it from the desired that it is in to the next."""

    def __init__(self, lab: Lab, fabric: Fabric, machines: Iterable[Machine]) -> None:
        """`machines` are all that there will ever be: wires are laid once."""
        self.arrivals = Arrivals()
        self.desired = DesiredState()
        self.lab = lab
        self._fabric = fabric
        self._underlay = Underlay(lab, segments.segments([*machines, *fabric.publisher.machines]))
        self._servers = Servers(self.arrivals)
        self._entries: dict[IPAddress, str] = {}  # the Nodes to which the underlay routes load balancers' addresses
        self._running: dict[str, LabPod] = {}
        self._dead: set[str] = set()  # Pods that a reboot has ended, until an agent attaches them again
        self._attached: dict[str, tuple[IPAddress, ...]] = {}

    @property
    def addresses(self) -> Addresses:
        """Of every Pod that runs. One that is yet to start is no endpoint: Kubernetes waits until it is ready."""
        known = desired_states.pod_addresses(self.desired, self._attached)
        return {key: addresses for key, addresses in known.items() if key in self._running}

    @property
    def dataplane(self) -> str:
        return self._fabric.dataplane

    async def start(self) -> None:
        await _in_thread(self._underlay.create)
        for machine in self._fabric.publisher.machines:
            await _in_thread(self._underlay.plug, machine)
        await self._fabric.publisher.start()

    async def reach(self, desired: DesiredState, actions: Iterable[Action]) -> None:
        """One step: objects are applied, then actions done, and all of it has taken effect on every Node."""
        before, self.desired = self.desired, desired
        if before.nodes.keys() <= desired.nodes.keys():
            await self._dismiss_pods()
        await self._stop_pods()  # while their Nodes are there
        await self._remove_machines(before)
        await self._publish()
        await self._add_hosts(before)
        await self._add_nodes(before)
        await self._start_pods()
        for action in actions:
            await self._act(action.spec)
        await self._stop_pods()  # what had to wait for an agent to be started
        await self._start_pods()
        self._complain_of_waiting_pods()
        await self._publish()  # now with the addresses of the Pods
        await self._fabric.converge()
        for node in self.desired.nodes:
            underlays.ask_neighbours_patiently(self._node_namespace(node))  # the bridge and the gateway may be new

    async def _act(self, action: ActionSpec) -> None:
        if isinstance(action.add_route, HostRoute):
            machine = segments.machine_of_node(self.desired.nodes[action.node])
            await _in_thread(self._underlay.add_host_route, machine, action.add_route)
        elif action.verb == "rebootNode":
            await self._reboot(action.node)
        else:
            await self._fabric.act(action, self.desired.configuration)

    async def route(self, entries: Mapping[IPAddress, str]) -> None:
        """From now on the router sends these addresses to these Nodes; a cloud's load balancer would."""
        self._entries.update(entries)
        await self._route()

    async def end(self) -> None:
        """Only processes and sockets: the lab removes namespaces and files."""
        self._servers.close_all()
        await self._fabric.end()
        await self._fabric.publisher.end()

    # Where things are -------------------------------------------------------------------------------------------

    def namespace_of(self, source: ProbeSource) -> str:
        if source.node:
            return self._node_namespace(source.node)
        if source.pod:
            return self._pod_namespace(self.desired.pods[source.pod])
        return self._host_namespace(source.external_host)

    def machines(self) -> Iterator[tuple[str, str]]:
        """Each namespace of the cluster with the name under which its packets are noted."""
        for pod in self.desired.pods.values():
            if not pod.spec.host_network:
                yield self._pod_namespace(pod), pod.key
        yield from ((self._node_namespace(name), f"node/{name}") for name in self.desired.nodes)
        yield from ((self._host_namespace(name), f"externalHost/{name}") for name in self.desired.hosts)

    def places(self) -> dict[str, Location]:
        nodes = {
            f"node/{name}": Location(self._node_namespace(name), str(self.lab.node_folder(name) / "ovs"))
            for name in self.desired.nodes
        }
        pods = {f"pod/{key}": Location(self._pod_namespace(pod)) for key, pod in self.desired.pods.items()}
        hosts = {f"externalHost/{name}": Location(self._host_namespace(name)) for name in self.desired.hosts}
        return nodes | pods | hosts

    def describe(self, scenario: str) -> None:
        """For `lab status` and `lab exec`."""
        labs.describe(self.lab, LabDescription(self.lab.id, os.getpid(), scenario, self.dataplane, self.places()))

    def _node_namespace(self, name: str) -> str:
        return self.lab.namespace("node", name)

    def _host_namespace(self, name: str) -> str:
        return self.lab.namespace("host", name)

    def _pod_namespace(self, pod: LabPod) -> str:
        if pod.spec.host_network:
            return self._node_namespace(pod.spec.node_name)
        return self.lab.namespace("pod", pod.key)

    # Machines ---------------------------------------------------------------------------------------------------

    async def _add_hosts(self, before: DesiredState) -> None:
        for name, host in self.desired.hosts.items():
            if before.hosts.get(name) == host:
                continue
            namespace = await _in_thread(self._underlay.plug, segments.machine_of_host(host))
            backend = f"externalHost/{name}"
            self._servers.watch(namespace, backend)
            await self._servers.listen(namespace, backend, [(port.protocol, port.port) for port in host.spec.ports])

    async def _add_nodes(self, before: DesiredState) -> None:
        new = [node for name, node in self.desired.nodes.items() if name not in before.nodes]
        for node in new:
            namespace = await _in_thread(self._underlay.plug, segments.machine_of_node(node))
            self._servers.watch(namespace, f"node/{node.name}")
        await self._route()
        await _all(
            self._fabric.add_node(node, self._node_namespace(node.name), self.desired.configuration) for node in new
        )

    async def _route(self) -> None:
        wanted: dict[IPNetwork, IPAddress] = {}
        for node in self.desired.nodes.values() if self.desired.traffic_mode is TrafficMode.NO_ENCAP else ():
            for family, cidr in node.pod_cidrs.items():
                if family in node.addresses:
                    wanted[cidr] = node.addresses[family]
        for address, name in self._entries.items():
            node_ips = self.desired.nodes[name].addresses if name in self.desired.nodes else {}
            if family_of(address) in node_ips:
                wanted[ip_network(address)] = node_ips[family_of(address)]
        await _in_thread(self._underlay.route, wanted)

    async def _remove_machines(self, before: DesiredState) -> None:
        for name, node in before.nodes.items():
            if name not in self.desired.nodes:
                await self._fabric.remove_node(name)
                await self._remove_machine(segments.machine_of_node(node), f"node/{name}")
        for name, host in before.hosts.items():
            if self.desired.hosts.get(name) != host:
                await self._remove_machine(segments.machine_of_host(host), f"externalHost/{name}")

    async def _reboot(self, name: str) -> None:
        """Everything but files is as new. Pods are attached again, as other containers, once an agent runs."""
        machine = segments.machine_of_node(self.desired.nodes[name])
        await self._fabric.power_off(name)
        for pod in [pod for pod in self._running.values() if pod.spec.node_name == name]:
            self._servers.close(pod.key)
            if not pod.spec.host_network:
                namespaces.delete(self._pod_namespace(pod))
                del self._attached[pod.key]
                self._dead.add(pod.key)
            del self._running[pod.key]
        await self._remove_machine(machine, f"node/{name}")
        self._servers.watch(await _in_thread(self._underlay.plug, machine), f"node/{name}")
        await self._fabric.power_on(name)

    async def _remove_machine(self, machine: Machine, backend: str) -> None:
        self._servers.close(backend)
        await _in_thread(self._underlay.unplug, machine)

    # Pods -------------------------------------------------------------------------------------------------------

    # They come and go only where an agent runs: elsewhere they wait for it, as a kubelet goes on asking.

    async def _dismiss_pods(self) -> None:
        """As in Kubernetes: nobody is sent any more to a Pod that is about to go. (Unless its Node goes, too.)"""
        going = {pod.key for pod in self._going()}
        if going:
            staying = {key: addresses for key, addresses in self.addresses.items() if key not in going}
            await self._fabric.publisher.publish(self.desired, staying)
            await self._fabric.converge()

    async def _stop_pods(self) -> None:
        await _all(self._stop(pod) for pod in self._going())

    def _going(self) -> list[LabPod]:
        return [pod for pod in self._running.values() if not _same(pod, self.desired.pods) and self._served(pod)]

    async def _start_pods(self) -> None:
        new = [pod for key, pod in self.desired.pods.items() if key not in self._running and self._served(pod)]
        await _all(self._run(pod) for pod in new)

    async def _run(self, pod: LabPod) -> None:
        namespace = self._pod_namespace(pod)
        self._running[pod.key] = pod
        if pod.key in self._dead:
            await self._fabric.detach(pod, namespace)
            self._dead.remove(pod.key)
        if not pod.spec.host_network:
            underlays.make_namespace(namespace)
            self._attached[pod.key] = await self._fabric.attach(pod, namespace)
            underlays.ask_neighbours_patiently(namespace)
            self._servers.watch(namespace, pod.key)
        await self._servers.listen(namespace, pod.key, [(port.protocol, port.container_port) for port in pod.ports])

    async def _stop(self, pod: LabPod) -> None:
        self._servers.close(pod.key)
        if not pod.spec.host_network:
            namespace = self._pod_namespace(pod)
            await self._fabric.detach(pod, namespace)
            namespaces.delete(namespace)
            del self._attached[pod.key]
        del self._running[pod.key]

    def _served(self, pod: LabPod) -> bool:
        return pod.spec.host_network or self._fabric.serves(pod.spec.node_name)

    def _complain_of_waiting_pods(self) -> None:
        for key, pod in self.desired.pods.items():
            if key not in self._running and key not in self._dead:
                node = pod.spec.node_name
                raise LabError(f"Pod {key} cannot start: no agent runs on Node {node}; a startAgent in this step helps")

    async def _publish(self) -> None:
        await self._fabric.publisher.publish(self.desired, self.addresses)


def _same(pod: LabPod, wanted: Mapping[str, LabPod]) -> bool:
    """Whether this Pod is to run on: another Node, address or port is another Pod, as it is to Kubernetes."""
    other = wanted.get(pod.key)
    return other is not None and (pod.spec, pod.fixed_addresses) == (other.spec, other.fixed_addresses)


async def _in_thread(function: Callable[_P, _R], *arguments: _P.args, **more: _P.kwargs) -> _R:
    """A thread cannot be cancelled: who is waits for it, so that nothing is made after all has been removed."""
    job = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **more))
    try:
        return await asyncio.shield(job)
    finally:
        await asyncio.wait([job])


async def _all(jobs: Iterable[Coroutine[None, None, None]]) -> None:
    """Side by side; the first that fails ends the others, so that nothing is still under way when it is told."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
