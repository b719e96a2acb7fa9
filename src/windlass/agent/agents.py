"""The agent: it brings the Node to what the cluster asks for, and keeps it there.

One pass (`_reconcile`) does everything and is harmless to repeat: each stage reads what is there and changes only what
differs. Whatever happens (a new manifest, a restarted switch, an address that somebody removed) leads to the same pass.
Only a Pod's own flows take a shorter way, because the container runtime waits for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import msgspec
import structlog

from windlass.agent import api
from windlass.agent.config import Config, DatapathType
from windlass.agent.metrics import registry_for
from windlass.agent.numbers import GroupNumbers
from windlass.agent.status import Status
from windlass.cluster import lastgood
from windlass.cluster.catalogues import Catalogue
from windlass.cluster.endpoints import ServingNode, zone_of
from windlass.cluster.manifests import Manifests, ManifestsMissing
from windlass.cluster.nodes import Identity, NotUsable, identity, peers
from windlass.cluster.objects import Cluster
from windlass.cluster.services import service_networks
from windlass.cni import server as cni_server
from windlass.cni.addresses import HostLocal
from windlass.cni.attachments import NotReadyError, PodNetwork
from windlass.cni.handler import Handler
from windlass.host.plans import HostNames, HostPlan, diff, plan, pod_mtu
from windlass.host.protocol import Adapter, Host, HostError
from windlass.host.services import plan_service, plan_services
from windlass.model.families import Family
from windlass.model.nodes import AttachedPod, LocalNode, NodeState, TrafficMode
from windlass.model.services import Service
from windlass.openflow.actions import Output
from windlass.openflow.fields import LOCAL_PORT
from windlass.openflow.flows import Flow
from windlass.openflow.wire.packets import PacketIn
from windlass.openflow.wire.ports import PortStatus
from windlass.pipeline.datapaths import DATAPATHS, violations
from windlass.pipeline.services import REJECT
from windlass.program import Kind, Owner, Program, changed_owners, flows_of, part, program
from windlass.switch.bridges import BridgeSpec, TunnelSpec, add_uplink, ensure_bridge, remove_uplink
from windlass.switch.ovsdb import Change, Database, SwitchRefusedError, open_database
from windlass.switch.pod_ports import PodPort, add_pod_port, attached_pods, delete_pod_port, pod_ports
from windlass.switch.programs import Counters, InstalledProgram
from windlass.switch.rejections import rejection
from windlass.switch.streams import SwitchUnreachableError

REJECTIONS_PER_SECOND = 500  # more than clients that mean well need, and little work
RETRY_FIRST, RETRY_LONGEST = 0.2, 10.0  # seconds between passes while something is in the way
SYNC_PATIENCE = 10.0  # seconds for the switch to take the Program before the pass is given up and repeated

_log = structlog.get_logger(__name__)

_IN_THE_WAY = (HostError, SwitchRefusedError, SwitchUnreachableError, NotUsable)


async def run(config: Config, host: Host) -> None:
    """Until cancelled. Nothing is undone then: the Node goes on forwarding with what it holds."""
    agent = Agent(config, host)
    async with api.serving(config.api_socket, agent):
        while True:
            try:
                async with open_database(str(config.ovsdb_socket), patience=1.0) as database:
                    await agent.serve(database)
            except SwitchUnreachableError as error:
                agent.waits(str(error))


class Agent:
    def __init__(self, config: Config, host: Host) -> None:
        self.config = config
        self.status = Status()
        self.registry = registry_for(self)
        self.state: NodeState | None = None
        self._host = host
        self._cluster: Cluster | None = None
        self._adapter: Adapter | None = None
        self._catalogue = Catalogue()
        self._numbers = GroupNumbers()
        self._rejections = RateLimit(REJECTIONS_PER_SECOND)
        self._installed: InstalledProgram | None = None
        self._dirty = asyncio.Event()
        self._answers: set[asyncio.Future[None]] = set()  # on their way to the switch
        self._lock = asyncio.Lock()  # of the state, the program and what is made of them

    # --- what the local API and the metrics tell ------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        return self._installed.counters if self._installed else Counters()

    @property
    def flow_count(self) -> int:
        return sum(len(owned.flows) for owned in self.program.values())

    @property
    def program(self) -> Program:
        return self._installed.program if self._installed else {}

    def flows(self) -> Iterator[tuple[Owner, Flow]]:
        return flows_of(self.program)

    @property
    def problems(self) -> dict[str, tuple[str, ...]]:
        away = self._installed.trouble if self._installed else ""
        return {**self.status.problems, **({"switch": (away,)} if away else {})}

    def waits(self, sentence: str) -> None:
        if sentence != self.status.waiting_for:
            _log.warning("waiting", reason=sentence)
        self.status.waits(sentence)

    # --- the tasks --------------------------------------------------------------------------------------------------

    async def serve(self, database: Database) -> None:
        ports = _Ports(database, self.config.bridge)
        addresses = HostLocal(Path(self.config.ipam_plugin), Path(self.config.state_directory) / "addresses")
        handler = Handler(addresses=addresses, links=self._host, ports=ports, agent=self)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_cluster(), name="cluster")
            tasks.create_task(self._reconcile_when_needed(database, tasks), name="reconcile")
            tasks.create_task(self._watch_database(database), name="database")
            tasks.create_task(self._audit(), name="audit")
            async with cni_server.serving(self.config.cni_socket, handler.answer):
                await asyncio.Event().wait()  # until cancelled

    async def _follow_cluster(self) -> None:
        async for cluster in self._clusters():
            self._report("cluster source", (str(problem) for problem in cluster.problems))
            self._cluster = cluster
            self._dirty.set()

    async def _clusters(self) -> AsyncIterator[Cluster]:
        """From the source; and until there is one, what was last known to be good."""
        source = Manifests(Path(self.config.manifests))
        saved = lastgood.load(Path(self.config.state_directory))
        while True:
            try:
                async for cluster in source.changes():
                    yield cluster
            except ManifestsMissing as error:
                told = f"{error}; " + (
                    "the last known good state is used" if saved or self._cluster else "waiting for it"
                )
                self._report("cluster source", [told])
                if saved and self._cluster is None:
                    yield saved
                if self._cluster is None:
                    self.waits(told)
            await asyncio.sleep(1.0)

    async def _reconcile_when_needed(self, database: Database, tasks: asyncio.TaskGroup) -> None:
        pause = RETRY_FIRST
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                async with self._lock:
                    await self._reconcile(database, tasks)
                pause = RETRY_FIRST
            except _IN_THE_WAY as error:
                self._report("node", [str(error)])
                if not self.status.ready:
                    self.waits(str(error))
                asyncio.get_running_loop().call_later(pause, self._dirty.set)
                pause = min(2 * pause, RETRY_LONGEST)

    async def _watch_database(self, database: Database) -> None:
        """A restarted switch, a port or bridge that somebody changed: the next pass sets it right."""
        async for change in database.changes(database.view):
            if _concerns_us(change, self.config.bridge):
                self._dirty.set()

    async def _watch_host(self, names: HostNames) -> None:
        async with aclosing(self._host.watch(names)) as events:
            async for _ in events:
                self._dirty.set()

    async def _audit(self) -> None:
        while True:
            await asyncio.sleep(self.config.audit_seconds)
            if self._installed:
                await self._installed.audit()

    # --- the pass -----------------------------------------------------------------------------------------------------

    async def _reconcile(self, database: Database, tasks: asyncio.TaskGroup) -> None:
        cluster = self._cluster
        if cluster is None:
            return
        own = self._own_identity(cluster)
        adapter = await self._host.find_uplink(
            self.config.bridge, list(own.addresses.values()), self.config.uplink or None
        )
        node = _local_node(self.config, own, adapter)
        names = HostNames(adapter.name, self.config.bridge, self.config.gateway)
        spec = _bridge_spec(self.config, node, adapter)

        await ensure_bridge(database, spec)
        known_peers, problems = peers(cluster, own, self.state.peers if self.state else {})
        self._report("cluster", (str(problem) for problem in problems))
        services = self._served(cluster, own)
        state = NodeState(node, known_peers, self._pods(database), services)
        await self._program_switch(state, tasks)
        await self._take_uplink(database, spec, own)
        await self._set_up_host(state, names, adapter)
        if self._adapter is None or self._adapter.name != adapter.name:
            tasks.create_task(self._watch_host(names), name="host")
        self._adapter = adapter
        self._converged(cluster)

    def _own_identity(self, cluster: Cluster) -> Identity:
        name = self.config.node_name
        if name not in cluster.nodes:
            known = ", ".join(sorted(cluster.nodes)[:5]) or "none"
            raise NotUsable(
                f"Node {name} is not in the cluster (there: {known}); nodeName in the configuration names it"
            )
        try:
            own = identity(cluster.nodes[name])
        except NotUsable as error:
            raise NotUsable(f"Node {name}: {error}") from None
        return own

    def _served(self, cluster: Cluster, own: Identity) -> dict[str, Service]:
        """All Services as this Node serves them; only what changed is worked out anew."""
        families = tuple(family for family in Family if family in own.addresses and family in own.pod_cidrs)
        node = ServingNode(own.name, zone_of(cluster.nodes[own.name]), families, own.os, own.pod_cidrs)
        changed = self._catalogue.follow(cluster, node)
        sticky = (
            key for key, service in self._catalogue.services.items() if any(p.affinity_seconds for p in service.ports)
        )
        unkept = (f"Service {key}: sessionAffinity is not kept yet; any endpoint serves any client" for key in sticky)
        self._report("services", (*map(str, self._catalogue.problems), *unkept))
        services = dict(self.state.services) if self.state else {}
        for key in changed:
            services.pop(key, None)
            if (service := self._catalogue.services.get(key)) is not None:
                services[key] = self._numbered(service)
        return services

    def _numbered(self, service: Service) -> Service:
        ports = tuple(
            msgspec.structs.replace(
                port, group=self._numbers.of(f"{service.key} {port.name} {port.protocol} {port.family}")
            )
            for port in service.ports
        )
        return msgspec.structs.replace(service, ports=ports)

    def _pods(self, database: Database) -> dict[str, AttachedPod]:
        """At the start those that the bridge remembers; later those we know, with their present port numbers."""
        remembered = attached_pods(database.view, self.config.bridge)
        by_container = {pod.container_id: pod for pod in remembered.pods}
        if self.state is None:
            self._report("ports", remembered.problems)
            return by_container
        attached = {port.container_id for port in pod_ports(database.view, self.config.bridge)}
        return {
            container_id: by_container.get(container_id, pod)
            for container_id, pod in self.state.pods.items()
            if container_id in attached
        }

    async def _program_switch(self, state: NodeState, tasks: asyncio.TaskGroup) -> None:
        """Flows first: when the uplink becomes a port, the host's traffic must already have its way."""
        before, self.state = self.state, state
        if self._installed is None or before is None:
            desired = program(state)
            self._check(desired)
            self._installed = InstalledProgram(
                str(self.config.openflow_socket), desired, on_event=self._switch_told, on_loss=self._switch_lost
            )
            tasks.create_task(self._installed.keep(), name="switch")
        try:
            async with asyncio.timeout(SYNC_PATIENCE):
                if before is not None:
                    await self._apply(changed_owners(before, state))
                await self._installed.synced()
        except TimeoutError:
            raise SwitchUnreachableError(self._installed.trouble or "the switch does not take the flows") from None
        self._report("switch", (str(problem) for problem in self._installed.problems))

    def _switch_told(self, event: PacketIn | PortStatus) -> None:
        """A packet that no endpoint serves is answered, as often as is reasonable."""
        if isinstance(event, PacketIn) and event.userdata == REJECT and self._installed and self._rejections.allows():
            answer = rejection(event.packet)
            if answer is not None and event.in_port is not None:
                sending = self._installed.packet_out(answer, LOCAL_PORT, (Output(event.in_port),))
                task = asyncio.ensure_future(sending)
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)

    def _switch_lost(self, reason: str) -> None:
        """Its interfaces may have gone with it: the Node is not ready again before the next pass is through."""
        self.waits(reason)
        self._dirty.set()

    async def _apply(self, owners: Iterable[Owner]) -> None:
        """Recompute what these owners ask for, and bring just that to the switch."""
        if self.state is None or self._installed is None:
            return
        parts = {owner: part(self.state, owner) for owner in owners}
        self._check(parts)
        if parts:
            await self._installed.apply(parts)

    def _check(self, parts: Program) -> None:
        """The datapath may accept what it cannot do: that is a mistake of the pipeline, and must not pass unseen."""
        if self.state is None:
            return
        flows = [flow for owned in parts.values() for flow in owned.flows]
        groups = [group for owned in parts.values() for group in owned.groups]
        self._report("datapath", violations(DATAPATHS[self.state.node.os], flows, groups))

    async def _take_uplink(self, database: Database, spec: BridgeSpec, own: Identity) -> None:
        await add_uplink(database, spec)
        try:
            await self._host.adopt_uplink(spec.uplink, spec.name, list(own.addresses.values()))
        except HostError:
            await remove_uplink(database, spec.name)  # the Node's address is back on its NIC: so must the wire be
            raise

    async def _set_up_host(self, state: NodeState, names: HostNames, adapter: Adapter) -> None:
        desired = plan(
            state, names, adapter.mtu, userspace=self._userspace, configured_mtu=self.config.mtu or None
        ) | self._service_plan(state, names)
        problems = await self._host.apply(diff(await self._host.installed(names), desired))
        self._report("host", problems)
        if problems:
            asyncio.get_running_loop().call_later(RETRY_LONGEST, self._dirty.set)

    def _service_plan(self, state: NodeState, names: HostNames) -> HostPlan:
        networks, problems = service_networks(self._cluster.service_cidrs if self._cluster else {})
        self._report("service CIDRs", (str(problem) for problem in problems))
        shared = plan_services(state.node, names, networks, state.node.node_port_networks)
        each = (plan_service(state.node, names, service, networks) for service in state.services.values())
        return shared | HostPlan(items=frozenset().union(*each))

    def _converged(self, cluster: Cluster) -> None:
        self._report("node", ())
        fresh = self.status.revision != cluster.revision
        self.status.becomes_ready()
        self.status.converged(cluster.revision)
        if fresh:
            lastgood.save(Path(self.config.state_directory), cluster)
            _log.info("converged", revision=cluster.revision, flows=self.flow_count)

    def _report(self, area: str, problems: Iterable[str]) -> None:
        for problem in self.status.report(area, problems):
            _log.warning("problem", area=area, problem=problem)

    @property
    def _userspace(self) -> bool:
        return self.config.datapath_type is DatapathType.NETDEV

    # --- for the CNI server -----------------------------------------------------------------------------------------

    def pod_network(self) -> PodNetwork:
        if self.state is None or self._adapter is None:
            raise NotReadyError(f"it waits for: {self.status.waiting_for}")
        node = self.state.node
        mtu = pod_mtu(node, self._adapter.mtu, self.config.mtu or None)
        cidrs = {family: node.pod_cidrs[family] for family in node.families}
        return PodNetwork(cidrs, mtu, self._userspace)

    async def programmed(self, pod: AttachedPod) -> None:
        async with self._lock:
            if self.state is None:
                raise NotReadyError(f"it waits for: {self.status.waiting_for}")
            if self.state.pods.get(pod.container_id) == pod:
                return
            self.state = replace(self.state, pods={**self.state.pods, pod.container_id: pod})
            await self._apply([Owner(Kind.POD, pod.container_id)])

    async def forget(self, container_id: str) -> None:
        async with self._lock:
            if self.state is None or container_id not in self.state.pods:
                return
            rest = {key: pod for key, pod in self.state.pods.items() if key != container_id}
            self.state = replace(self.state, pods=rest)
            await self._apply([Owner(Kind.POD, container_id)])


class RateLimit:
    """So many a second, and no more saved up than for one second."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left = per_second
        self._at = time.monotonic()

    def allows(self) -> bool:
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * self._per_second, self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _Ports:
    """The bridge's Pod ports, as the CNI server asks for them."""

    def __init__(self, database: Database, bridge: str) -> None:
        self._database = database
        self._bridge = bridge

    async def add_pod_port(self, port: PodPort) -> int:
        return await add_pod_port(self._database, self._bridge, port)

    async def delete_pod_port(self, interface: str) -> None:
        await delete_pod_port(self._database, self._bridge, interface)

    async def list_pod_ports(self) -> list[PodPort]:
        return pod_ports(self._database.view, self._bridge)


def _concerns_us(change: Change, bridge: str) -> bool:
    """New ports are made by us, and need no pass; what was there and is different now does."""
    before, after = change
    if before.connections != after.connections or before.bridges.get(bridge) is None:
        return True
    now = {interface.name: interface for interface in after.interfaces_of(bridge)}
    numbered = (interface for interface in before.interfaces_of(bridge) if interface.ofport is not None)
    return any(now.get(interface.name) != interface for interface in numbered)


def _local_node(config: Config, own: Identity, adapter: Adapter) -> LocalNode:
    held = {address.ip: address for address in adapter.addresses}
    families = DATAPATHS[own.os].families
    missing = [str(address) for address in own.addresses.values() if address not in held]
    if missing:
        raise NotUsable(
            f"Node {own.name}: {', '.join(missing)} is not on {adapter.name}; its NIC must hold the Node's InternalIPs"
        )
    node = LocalNode(
        name=own.name,
        mode=config.traffic_mode,
        tunnel=config.tunnel_type,
        os=own.os,
        addresses={family: held[address] for family, address in own.addresses.items() if family in families},
        pod_cidrs={family: cidr for family, cidr in own.pod_cidrs.items() if family in families},
        uplink_mac=adapter.mac,
        other_addresses=own.other_addresses,
        node_port_networks=tuple(ip_network(text) for text in config.node_port_addresses),
    )
    if not node.families:
        raise NotUsable(f"Node {own.name}: {DATAPATHS[own.os].name} forwards {', '.join(map(str, families))} only")
    return node


def _bridge_spec(config: Config, node: LocalNode, adapter: Adapter) -> BridgeSpec:
    underlay = Family.IPV4 if Family.IPV4 in node.addresses else Family.IPV6
    tunnel = TunnelSpec(config.tunnel_type, config.tunnel, local_ip=node.addresses[underlay].ip)
    return BridgeSpec(
        name=config.bridge,
        datapath_type=config.datapath_type.value,
        hwaddr=node.uplink_mac,
        gateway=config.gateway,
        gateway_mac=node.gateway_mac,
        uplink=adapter.name,
        tunnel=None if config.traffic_mode is TrafficMode.NO_ENCAP else tunnel,
        mtu=adapter.mtu,
        gateway_mtu=pod_mtu(node, adapter.mtu, config.mtu or None),
        numbers=node.ports,
    )
