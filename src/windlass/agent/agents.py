"""The agent: it brings the Node to what the cluster asks for, and keeps it there.

One pass (`_reconcile`) does everything and is harmless to repeat: each stage reads what is there and changes only what
differs. Whatever happens (a new Node, a restarted switch, an address that somebody removed) leads to the same pass.
Two things take a shorter way: a Pod's own flows, because the container runtime waits for them, and Services, because
they are many and change all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

import structlog

from windlass.agent import api, limits, preflights, scraping
from windlass.agent.answers import Rejects
from windlass.agent.areas import Area
from windlass.agent.bridge_specs import bridge_spec
from windlass.agent.cluster_writers import ClusterWriter
from windlass.agent.collector import relax
from windlass.agent.expositions import Exposition
from windlass.agent.fallbacks import Fallback
from windlass.agent.forgetting import Forgetting
from windlass.agent.healthchecks import HealthChecks, ProxyHealth, health_check, served_addresses
from windlass.agent.hosting import Hosting
from windlass.agent.logs import Logs
from windlass.agent.news import News
from windlass.agent.pod_records import PodRecords
from windlass.agent.pods import BridgePorts, PodFlows, present_pods
from windlass.agent.readings import Reading
from windlass.agent.samples import probes
from windlass.agent.serving import Place, Serving, unhurried
from windlass.agent.snat_pools import SnatPools
from windlass.agent.status import Status
from windlass.agent.switching import Switch
from windlass.agent.tunnelling import Tunnelling
from windlass.cluster import policies
from windlass.cluster.clusters import Cluster
from windlass.cluster.endpoints import ServingNode
from windlass.cluster.nodes import NotUsable, is_leaving
from windlass.cluster.objects import Node, Problem, Reference
from windlass.cluster.sources import ClusterSource, WatchHealth
from windlass.cni import server as cni_server
from windlass.cni.addresses import HostLocal
from windlass.cni.handler import Handler
from windlass.host.plans import HostChange, HostNames, plan, plan_peer
from windlass.host.protocol import Host, HostError, Uplink
from windlass.model.nodes import NodeState
from windlass.nodes.config import Config
from windlass.nodes.identities import local_node, other_addresses, own_identity, service_cidrs, serving_node
from windlass.nodes.peers import Peers
from windlass.pipeline.routing import tunnel_ends
from windlass.program import Owner, OwnerKind, Program
from windlass.switch.bridge_differences import uplink_of
from windlass.switch.bridges import ensure_bridge, requiring_bridge
from windlass.switch.ovsdb import Database, DatabaseChange, SwitchRefusedError, open_database
from windlass.switch.programs import Counters
from windlass.switch.restarts import end_wait
from windlass.switch.streams import SwitchUnreachableError

RETRY_FIRST, RETRY_LONGEST = 0.2, 10.0  # seconds between passes while something is in the way
# Seconds. A network manager gives a NIC an address and then the routes by it, which the kernel refuses once the address
# has moved to the bridge interface.
UPLINK_SETTLES = 0.5

_log = structlog.get_logger(__name__)

_IN_THE_WAY = (HostError, SwitchRefusedError, SwitchUnreachableError, NotUsable)


async def run(
    config: Config, logs: Logs, host: Host, source: ClusterSource, writer: ClusterWriter | None = None
) -> None:
    """Until cancelled. Nothing is undone then: the Node goes on forwarding with what it holds.

    `writer`: if the source can be written to.
    """
    relax()
    agent = Agent(config, host, source)
    figures = scraping.exposed(config.metrics, agent.exposition.text, lambda told: agent.report(Area.METRICS, told))
    async with api.serving(config.api_socket, agent, logs), figures, asyncio.TaskGroup() as tasks:
        if writer:
            tasks.create_task(writer.run(agent), name="cluster writer")
        while True:
            try:
                async with open_database(str(config.ovsdb_socket), patience=1.0) as database:
                    await agent.serve(database)
            except SwitchUnreachableError as error:
                agent.waits(str(error))


class Agent:
    def __init__(self, config: Config, host: Host, source: ClusterSource) -> None:
        self.config = config
        self.status = Status()
        self._source = source
        self._host = host
        self._switch = Switch(str(config.openflow_socket), self.report, self._switch_lost)
        self._snat_pools = SnatPools(self._switch, self.report, counts=config.is_userspace)
        self.exposition = Exposition(self, [*probes(config), self._count_rejects, self._snat_pools.readings])
        self._hosting = Hosting(host, self.report, self._look_again)
        self._serving = Serving(Path(config.state_directory))
        self._peers = Peers()
        self._forgetting = Forgetting(self._serving, self._switch)
        self._news = News(source, Path(config.state_directory), self.report)
        self._adapter: Uplink | None = None
        self._preflight_passed = False
        self._policies: tuple[Reference, ...] = ()  # those that were reported
        self._pass_needed = True
        self._complete = False  # was the last pass?
        self._woken = asyncio.Event()
        self._lock = asyncio.Lock()  # of the state, the switch and the host
        self._pods = PodFlows(config, self.status, self._switch, self._lock)
        self._checks = HealthChecks(config.healthz, self._health, lambda told: self.report(Area.HEALTH_CHECKS, told))
        self._tunnels = Tunnelling(config, self.report, self._look_again)

    # --- what others tell of it: the local API, the metrics, the writer -----------------------------------------------

    @property
    def state(self) -> NodeState | None:
        return self._switch.state

    @property
    def cluster(self) -> Cluster | None:
        """As it was last heard of; what the switch and the host hold may be older."""
        return self._news.cluster

    @property
    def counters(self) -> Counters:
        return self._switch.counters

    @property
    def flow_count(self) -> int:
        return self._switch.flow_count

    async def _count_rejects(self) -> Iterable[Reading]:
        await self._switch.count_suppressed()
        return ()  # `rejects` has it

    @property
    def rejects(self) -> Rejects:
        return self._switch.rejects

    @property
    def switch_connected(self) -> bool:
        return self._switch.is_connected

    @property
    def watches(self) -> Sequence[WatchHealth]:
        return self._source.watches

    @property
    def program(self) -> Program:
        return self._switch.program

    @property
    def problems(self) -> dict[Area, tuple[str, ...]]:
        away = self._switch.trouble
        return {**self.status.problems, **({Area.SWITCH: (away,)} if away else {})}

    def _health(self) -> ProxyHealth:
        node = self._own_node()
        return ProxyHealth(self.status.healthy, node is not None and not is_leaving(node), self.status.updated)

    def waits(self, sentence: str) -> None:
        if sentence != self.status.waiting_for:
            _log.warning("waiting", reason=sentence)
        self.status.waits(sentence)

    # --- the tasks --------------------------------------------------------------------------------------------------

    async def serve(self, database: Database) -> None:
        if (saved := await self._news.last_good()) is not None:
            self._serving.remember(saved)
        records = PodRecords(Path(self.config.state_directory))
        ports = BridgePorts(database, self.config.bridge, records, self._host.pods.links)
        handler = Handler(
            addresses=HostLocal(Path(self.config.ipam_plugin), Path(self.config.state_directory) / "addresses"),
            pods=self._host.pods,
            ports=ports,
            agent=self._pods,
            observe=self.exposition.measurements.cni_request,
        )
        async with self._checks.serving(), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_cluster(), name="cluster")
            tasks.create_task(self._act(database, ports, tasks), name="act")
            tasks.create_task(self._watch_database(database), name="database")
            tasks.create_task(self._audit(database), name="audit")
            tasks.create_task(self._switch.check(), name="check")
            tasks.create_task(self._forgetting.once_more(), name="forget")
            tasks.create_task(self._tunnels.keep(), name="tunnels")
            tasks.create_task(self._news.saver.run(), name="last known good")
            if self.config.is_userspace:
                fallback = Fallback(self._host, self.config.bridge, self.report)
                away = lambda: database.view.problem or self._switch.trouble  # noqa: E731
                tasks.create_task(fallback.keep(away, lambda: self._adapter, self._lock), name="fallback")
            async with cni_server.serving(
                self.config.cni_socket, handler.answer, self.exposition.measurements.cni_refusal
            ):
                await asyncio.Event().wait()  # until cancelled

    async def _follow_cluster(self) -> None:
        async with aclosing(self._news.arriving()) as arriving:
            async for missing in arriving:
                if missing:
                    self.waits(missing)
                self._report_policies()
                self._wake()

    def _report_policies(self) -> None:
        found = policies.policies_of(self.cluster) if self.cluster else ()
        if found != self._policies:
            self._policies = found
            self.status.notice(policies.problems(found))
            self.report(Area.POLICIES, policies.summary(found))

    def _wake(self) -> None:
        self.status.falls_behind()
        self._woken.set()

    def _need_pass(self) -> None:
        self._pass_needed = True
        self._wake()

    def _look_again(self) -> None:
        self._need_pass_later(RETRY_LONGEST)

    def _need_pass_later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._need_pass)

    async def _act(self, database: Database, ports: BridgePorts, tasks: asyncio.TaskGroup) -> None:
        pause = RETRY_FIRST
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                async with self._lock:
                    change = self._news.take_up()  # what comes from here on is taken together, and next
                    if change is None:
                        continue
                    self._serving.hear(change)
                    self.exposition.measurements.heard(change.triggered)
                    _log.debug("change", revision=change.cluster.revision, changes=change.changes)
                    if self._pass_needed or self._serving.needs_node or self.state is None:
                        self._pass_needed = self._complete = False
                        await self._reconcile(change.cluster, database, ports, tasks)
                        self._complete = True
                        pause = RETRY_FIRST
                    else:
                        await self._follow_services(change.cluster, self.state)
            except _IN_THE_WAY as error:
                in_the_way = self._in_the_way(error)
                self.report(Area.NODE, [in_the_way])
                if not self.status.ready:
                    self.waits(str(in_the_way))
                self._need_pass_later(pause)
                pause = min(2 * pause, RETRY_LONGEST)

    async def _watch_database(self, database: Database) -> None:
        """A restarted switch, a port or bridge that somebody changed: the next pass sets it right."""
        async for change in database.changes(database.view):
            if self.config.bridge in change.before.bridges and self.config.bridge not in change.after.bridges:
                self.waits(f"{self.config.bridge}: the bridge was deleted; the agent creates it again")
            if _concerns_us(change, self.config.bridge):
                self._need_pass()

    async def _watch_host(self, names: HostNames) -> None:
        async with aclosing(self._host.watch(names)) as events:
            async for changed in events:
                if changed <= {names.uplink}:
                    self._need_pass_later(UPLINK_SETTLES)
                else:
                    self._need_pass()

    async def _audit(self, database: Database) -> None:
        while True:
            await asyncio.sleep(self.config.audit_seconds)
            await self._switch.audit()
            await self._snat_pools.check()
            if self._snat_pools.reserved and self.state:  # somebody may have set the list anew
                await self._snat_pools.reserve(self._host, [a.ip for a in self.state.node.addresses.values()])
            if self._adapter is not None:
                with suppress(HostError):  # the next pass meets it, too, and reports it
                    await self._check_host(self._adapter, database)

    async def _check_host(self, adapter: Uplink, database: Database) -> None:
        found = await preflights.checked(self.config, self._host, adapter.name, database.view)
        for finding in self.status.finds(found):
            _log.warning("preflight", severity=finding.severity.value, check=finding.check, finding=str(finding))

    def _switch_lost(self, reason: str) -> None:
        """Its interfaces may have gone with it: the Node is not ready again before the next pass is through."""
        self.waits(reason)
        self._need_pass()

    # --- the pass -----------------------------------------------------------------------------------------------------

    async def _reconcile(
        self, cluster: Cluster, database: Database, ports: BridgePorts, tasks: asyncio.TaskGroup
    ) -> None:
        own = own_identity(self.config, cluster)
        adapter = await self._host.uplink.find(
            self.config.bridge,
            list(own.addresses.values()),
            self.config.uplink or None,
            uplink_of(database.view, self.config.bridge),
        )
        cidrs, problems = service_cidrs(self.config, cluster)
        self.report(Area.SERVICE_CIDRS, problems)
        others = other_addresses(own, await self._host.held_addresses(), cidrs)
        if self.config.reserves_ports:
            await self._snat_pools.reserve(self._host, own.addresses.values())
        node = replace(
            local_node(self.config, own, adapter, others),
            ports_reserved=self._snat_pools.reserved,
            host_connections=self._snat_pools.host_connections,
        )
        names = HostNames(adapter.name, self.config.bridge, self.config.gateway)
        spec = bridge_spec(self.config, node, adapter, self._host.boot)

        if not self._preflight_passed:
            await self._check_host(adapter, database)
            self._preflight_passed = True
        await ensure_bridge(database, spec)
        await self._snat_pools.hold_timeouts(database, spec.datapath_type)
        before = self.state
        self._peers.follow(cluster.nodes, own)
        self.report(Area.CLUSTER, self._peers.problems())
        await self._checks.listen_at(served_addresses(node, node.node_port_networks))
        await self._follow(serving_node(self.config, cluster, own))
        restored = await ports.restore()
        self.report(Area.POD_PORTS, restored.problems)
        pods = present_pods(database, spec.name, before.pods if before else None, restored.containers, self.report)
        state = NodeState(node, self._peers.usable, pods, self._serving.services)
        if uplink_of(database.view, spec.name):
            await self._lead_to_peers(state, names, adapter, is_tunnelled=bool(spec.tunnel))
        # Flows first: when the uplink becomes a port, the host's traffic must already have its way.
        async with requiring_bridge(database, spec.name):
            await self._switch.hold(state, tasks)
            await end_wait(database)
        await self._forgetting.at_once(node)
        await self._hosting.take_uplink(database, spec, list(own.addresses.values()))
        await unhurried(self._serving.claiming(Place(node, names, cidrs, spec.gateway_mtu or adapter.mtu)))
        userspace, mtu = self.config.is_userspace, self.config.mtu or None
        desired = plan(state, names, adapter.mtu, userspace=userspace, configured_mtu=mtu)
        await self._hosting.hold(names, desired | self._serving.host_plan() | limits.host_plan(self.config))
        if userspace:
            await limits.raise_switch_limit(self.config)
        if userspace and spec.tunnel:
            ends = tunnel_ends(node, self._peers.usable.values())
            await self._tunnels.hold(adapter, ends, node.ports.tunnel, self.counters.syncs)
        if self._adapter is None or self._adapter.name != adapter.name:
            tasks.create_task(self._watch_host(names), name="host")
        self._adapter = adapter
        self._pods.open(adapter.mtu)
        if self._switch.trouble:  # it went while the host was seen to
            raise SwitchUnreachableError(self._switch.trouble)
        self.report(Area.NODE, ())
        self.status.becomes_ready()
        self._holds(cluster)
        _log.info("converged", revision=cluster.revision, flows=self.flow_count)

    async def _lead_to_peers(self, state: NodeState, names: HostNames, adapter: Uplink, *, is_tunnelled: bool) -> None:
        """The ways to new peers come before flows: those may choose endpoints there at once."""
        before = self.state.peers if self.state else {}
        new = [peer for name, peer in state.peers.items() if before.get(name) != peer]
        if new:
            ways = frozenset().union(*(plan_peer(state.node, peer, names).items for peer in new))
            await self._hosting.lead_to(names, ways)
        if self.config.is_userspace and is_tunnelled:
            ends = tunnel_ends(state.node, state.peers.values())
            await self._tunnels.prepare(adapter, ends, state.node.ports.tunnel, self.counters.syncs)

    # --- the short way of Services --------------------------------------------------------------------------------

    async def _follow_services(self, cluster: Cluster, state: NodeState) -> None:
        """Nothing but Services and their endpoints has changed: the work is that of those that did.

        What goes, the host forgets first; what comes, it learns last. So it never leads a packet into the switch that
        the switch knows nothing of: there it would be lost, whereas the host refuses it, which a client notices.
        """
        changed = await self._follow()
        of_host = await unhurried(self._serving.claiming())
        await self._hosting.change(HostChange(removed=of_host.removed))
        after = replace(state, services=self._serving.services)
        await self._switch.change(after, [Owner(OwnerKind.SERVICE, key) for key in changed])
        await self._forgetting.at_once(state.node)
        await self._hosting.change(HostChange(added=of_host.added))
        if self._complete:
            self._holds(cluster)

    async def _follow(self, node: ServingNode | None = None) -> set[str]:
        told = self._serving.problems
        changed = await unhurried(self._serving.following(node))
        if self._serving.problems is not told:
            self.report(Area.SERVICES, self._serving.problems)
        self.report(Area.GROUP_NUMBERS, filter(None, [self._serving.number_problem]))
        for key in changed:
            service = self._serving.services.get(key)
            await self._checks.set(key, health_check(service) if service else None)
        return changed

    def _holds(self, cluster: Cluster) -> None:
        if self.status.revision != cluster.revision:
            self._news.keep(cluster)
            seconds = self.status.behind_seconds
            self.exposition.measurements.applied(seconds)
            _log.debug("applied", revision=cluster.revision, milliseconds=round(seconds * 1000, 1))
        up_to_date = cluster is self._news.cluster and not self._pass_needed
        self.status.converged(cluster.revision, up_to_date=up_to_date)

    def _own_node(self) -> Node | None:
        return self.cluster.nodes.get(self.config.node_name) if self.cluster else None

    def _in_the_way(self, error: Exception) -> str | Problem:
        node = self._own_node()
        return Problem.of(node, str(error)) if node and isinstance(error, NotUsable) else str(error)

    def report(self, area: Area, problems: Iterable[str | Problem]) -> None:
        for problem in self.status.report(area, problems):
            _log.warning("problem", area=area, problem=problem)


def _concerns_us(change: DatabaseChange, bridge: str) -> bool:
    """New ports are made by us, and need no pass; what was there and is different now does."""
    before, after = change
    if before.connections != after.connections or before.bridges.get(bridge) is None:
        return True
    now = {interface.name: interface for interface in after.interfaces_of(bridge)}
    numbered = (interface for interface in before.interfaces_of(bridge) if interface.ofport is not None)
    return any(now.get(interface.name) != interface for interface in numbered)
