"""A running cluster and its changes from one desired state to the next: machines, Nodes, Pods, objects, actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network

from windlass.lab.network import underlays
from windlass.lab.network.underlays import Underlay
from windlass.lab.orchestration import pods
from windlass.lab.orchestration.agents import Agents
from windlass.lab.orchestration.jobs import run_in_thread, run_together
from windlass.lab.orchestration.pods import RunningPods
from windlass.lab.probing.arrivals import Arrivals
from windlass.lab.probing.servers import Servers
from windlass.lab.sandbox.labs import Lab, Location
from windlass.lab.scenarios import segments
from windlass.lab.scenarios.desired_states import DesiredState, PodAddresses
from windlass.lab.scenarios.directives import ActionSpec, HostRoute, ProbeSource, StepAction
from windlass.lab.scenarios.segments import Machine
from windlass.model.families import IPAddress, IPNetwork, family_of
from windlass.model.nodes import TrafficMode


class RunningCluster:
    """Starts empty. `reach` brings it from one desired state to the next. It sends no probes."""

    def __init__(self, lab: Lab, fabric: Agents, machines: Iterable[Machine]) -> None:
        """`machines` are all that the cluster will ever have: the segments are created once."""
        self.arrivals = Arrivals()
        self.desired = DesiredState()
        self.lab = lab
        self.fabric = fabric
        self._underlay = Underlay(lab, segments.segments([*machines, *fabric.publisher.machines]))
        self._servers = Servers(self.arrivals)
        self._pods = RunningPods(lab, fabric, self._servers)
        self._entries: dict[IPAddress, str] = {}  # the Nodes to which the underlay routes load balancer addresses

    @property
    def addresses(self) -> PodAddresses:
        """The addresses of every running Pod."""
        return self._pods.addresses(self.desired)

    async def start(self) -> None:
        await run_in_thread(self._underlay.create)
        for machine in self.fabric.publisher.machines:
            await run_in_thread(self._underlay.plug, machine)
        await self.fabric.publisher.start()

    async def reach(self, desired: DesiredState, actions: Iterable[StepAction]) -> None:
        """One step: applies the objects, performs the actions, and waits until every Node has converged."""
        before, self.desired = self.desired, desired
        if before.nodes.keys() <= desired.nodes.keys():
            await self._withdraw_leaving_pods()
        await self._pods.stop(desired)  # before their Nodes are removed
        await self._remove_machines(before)
        await self._publish()
        await self._add_hosts(before)
        await self._add_nodes(before)
        await self._pods.start(desired)
        for action in actions:
            await self._act(action.spec)
        await self._pods.stop(desired)  # Pods that waited for an agent
        await self._pods.start(desired)
        self._pods.check_all_started(desired)
        await self._publish()  # now with the addresses of the Pods
        await self.fabric.converge()
        for node in desired.nodes:
            underlays.retry_neighbours_longer(self.lab.namespace("node", node))  # its bridge and gateway may be new

    async def route(self, entries: Mapping[IPAddress, str]) -> None:
        """From now on the router sends these addresses to these Nodes, as a cloud's load balancer would."""
        self._entries.update(entries)
        await self._update_routes()

    async def end(self) -> None:
        """Ends processes and closes sockets. The lab removes namespaces and files."""
        self._servers.close_all()
        await self.fabric.end()
        await self.fabric.publisher.end()

    # Namespaces -------------------------------------------------------------------------------------------------

    def namespace_of(self, source: ProbeSource) -> str:
        if source.node:
            return self.lab.namespace("node", source.node)
        if source.pod:
            return pods.namespace_of(self.lab, self.desired.pods[source.pod])
        return self.lab.namespace("host", source.external_host)

    def machines(self) -> Iterator[tuple[str, str]]:
        """Each network namespace, with the backend name for the packets that arrive there."""
        for pod in self.desired.pods.values():
            if not pod.spec.host_network:
                yield pods.namespace_of(self.lab, pod), pod.key
        yield from ((self.lab.namespace("node", name), f"node/{name}") for name in self.desired.nodes)
        yield from ((self.lab.namespace("host", name), f"externalHost/{name}") for name in self.desired.hosts)

    def places(self) -> dict[str, Location]:
        """Where `lab exec` can run a command, by `node/NAME`, `pod/NAMESPACE/NAME` or `externalHost/NAME`."""
        nodes = {
            f"node/{name}": Location(self.lab.namespace("node", name), str(self.lab.node_folder(name) / "ovs"))
            for name in self.desired.nodes
        }
        of_pods = {f"pod/{key}": Location(pods.namespace_of(self.lab, pod)) for key, pod in self.desired.pods.items()}
        hosts = {f"externalHost/{name}": Location(self.lab.namespace("host", name)) for name in self.desired.hosts}
        return nodes | of_pods | hosts

    # Machines ---------------------------------------------------------------------------------------------------

    async def _add_hosts(self, before: DesiredState) -> None:
        for name, host in self.desired.hosts.items():
            if before.hosts.get(name) == host:
                continue
            namespace = await run_in_thread(self._underlay.plug, segments.machine_of_host(host))
            backend = f"externalHost/{name}"
            self._servers.watch(namespace, backend)
            await self._servers.listen(namespace, backend, [(port.protocol, port.port) for port in host.spec.ports])

    async def _add_nodes(self, before: DesiredState) -> None:
        new = [node for name, node in self.desired.nodes.items() if name not in before.nodes]
        for node in new:
            namespace = await run_in_thread(self._underlay.plug, segments.machine_of_node(node))
            self._servers.watch(namespace, f"node/{node.name}")
        await self._update_routes()
        configuration = self.desired.configuration
        await run_together(
            self.fabric.add_node(node, self.lab.namespace("node", node.name), configuration) for node in new
        )

    async def _remove_machines(self, before: DesiredState) -> None:
        for name, node in before.nodes.items():
            if name not in self.desired.nodes:
                await self.fabric.remove_node(name)
                await self._remove_machine(segments.machine_of_node(node), f"node/{name}")
        for name, host in before.hosts.items():
            if self.desired.hosts.get(name) != host:
                await self._remove_machine(segments.machine_of_host(host), f"externalHost/{name}")

    async def _remove_machine(self, machine: Machine, backend: str) -> None:
        self._servers.close(backend)
        await run_in_thread(self._underlay.unplug, machine)

    async def _update_routes(self) -> None:
        wanted: dict[IPNetwork, IPAddress] = {}
        for node in self.desired.nodes.values() if self.desired.traffic_mode is TrafficMode.NO_ENCAP else ():
            for family, cidr in node.pod_cidrs.items():
                if family in node.addresses:
                    wanted[cidr] = node.addresses[family]
        for address, name in self._entries.items():
            node_ips = self.desired.nodes[name].addresses if name in self.desired.nodes else {}
            if family_of(address) in node_ips:
                wanted[ip_network(address)] = node_ips[family_of(address)]
        await run_in_thread(self._underlay.route, wanted)

    # Actions and objects ----------------------------------------------------------------------------------------

    async def _act(self, action: ActionSpec) -> None:
        if isinstance(action.add_route, HostRoute):
            machine = segments.machine_of_node(self.desired.nodes[action.node])
            await run_in_thread(self._underlay.add_host_route, machine, action.add_route)
        elif action.verb == "rebootNode":
            await self._reboot(action.node)
        else:
            await self.fabric.act(action, self.desired.configuration)

    async def _reboot(self, name: str) -> None:
        """Everything except files is new afterwards. The Pods are attached again once an agent runs."""
        machine = segments.machine_of_node(self.desired.nodes[name])
        await self.fabric.power_off(name)
        self._pods.end_by_reboot(name)
        await self._remove_machine(machine, f"node/{name}")
        self._servers.watch(await run_in_thread(self._underlay.plug, machine), f"node/{name}")
        await self.fabric.power_on(name)

    async def _withdraw_leaving_pods(self) -> None:
        """Removes Pods from EndpointSlices before they stop, as Kubernetes does; unless their Node is removed."""
        leaving = {pod.key for pod in self._pods.leaving(self.desired)}
        if leaving:
            staying = {key: addresses for key, addresses in self.addresses.items() if key not in leaving}
            await self.fabric.publisher.publish(self.desired, staying)
            await self.fabric.converge()

    async def _publish(self) -> None:
        await self.fabric.publisher.publish(self.desired, self.addresses)
