"""The agent: it brings the Node to the state that the cluster requests, and keeps it there. Its parts and its tasks.

Two tasks do the work. One makes full passes (`passes`), after each event that only a full pass can correct. The
other carries out the many changes of Services and peers (`following`). The CNI server programs Pods by
itself (`pods`). All three use the switch (`switching`) and the host (`hosting`), each of which has a queue.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import structlog

from windlass.agent import api, datapath_flows, scraping
from windlass.agent.areas import Area
from windlass.agent.cluster_writers import ClusterWriter
from windlass.agent.expositions import Exposition
from windlass.agent.fallbacks import Fallback, unanswered
from windlass.agent.following import ClusterFollower
from windlass.agent.healthchecks import HealthChecks
from windlass.agent.hosting import Hosting
from windlass.agent.late_ports import LatePorts
from windlass.agent.logs import Logs
from windlass.agent.news import News
from windlass.agent.open_connections import OpenConnections
from windlass.agent.pass_requests import FAILURES, RETRY_FIRST, RETRY_LONGEST, PassRequests
from windlass.agent.passes import NodePass
from windlass.agent.pod_records import PodRecords
from windlass.agent.pods import PodFlows, RecordedPodPorts
from windlass.agent.policing import Policing
from windlass.agent.progress import Progress, Ticket
from windlass.agent.samples import forwarded, probes
from windlass.agent.serving import Serving
from windlass.agent.snat_pools import SnatPools
from windlass.agent.status import AgentStatus
from windlass.agent.switching import ProgrammedSwitch
from windlass.agent.tunnelling import Tunnelling
from windlass.agent.views import AgentView
from windlass.cluster import policies
from windlass.cluster.nodes import NotUsable
from windlass.cluster.objects import Node, Problem, Reference, ServiceCIDR
from windlass.cluster.sources import ClusterChange, ClusterSource
from windlass.cni import server as cni_server
from windlass.cni.addresses import HostLocal
from windlass.cni.handler import Handler
from windlass.host.forwarded_clients import ForwardedClients
from windlass.host.plans import HostNames
from windlass.host.protocol import Host, HostError
from windlass.nodes.config import Config
from windlass.switch.ovsdb import Database, DatabaseChange, open_database
from windlass.switch.streams import SwitchUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Seconds. A network manager gives a NIC an address and then the routes that use it, which the kernel refuses once the
# address has moved to the bridge interface.
UPLINK_SETTLES = 0.5

_log = structlog.get_logger(__name__)


async def run(
    config: Config, logs: Logs, host: Host, source: ClusterSource, writer: ClusterWriter | None = None
) -> None:
    """Run until cancelled. The Node keeps forwarding afterwards: nothing is undone.

    `writer`: if the source can be written to.
    """
    relax_garbage_collector()
    agent = Agent(config, host, source)
    view, exposition = agent.view, agent.exposition
    figures = scraping.exposed(config.metrics, exposition.text, partial(agent.status.report, Area.METRICS))
    async with api.serving(config.api_socket, view, exposition, logs), figures, asyncio.TaskGroup() as tasks:
        if writer:
            tasks.create_task(writer.run(view), name="cluster writer")
        if config.is_userspace:
            tasks.create_task(agent.keep_host_reachable(), name="fallback")
        while True:
            try:
                async with open_database(str(config.ovsdb_socket), patience=1.0) as database:
                    await agent.serve(database)
            except SwitchUnreachableError as error:
                agent.lack_database(str(error))


class Agent:
    def __init__(self, config: Config, host: Host, source: ClusterSource) -> None:
        folder = Path(config.state_directory)
        self.config = config
        self.status = status = AgentStatus()
        self._host = host
        self._requests = requests = PassRequests(status)
        forget = datapath_flows.forgetting(config)
        self._switch = switch = ProgrammedSwitch(str(config.openflow_socket), status.report, self._lose_switch, forget)
        self._news = news = News(source, folder, status.report)
        self.view = view = AgentView(config.node_name, status, news, switch)
        self._snat_pools = snat_pools = SnatPools(switch, status.report, counts=config.is_userspace)
        clients = ForwardedClients(lambda: switch.state, switch.denials.note_forwarded)
        host.forward_clients(clients)
        self.exposition = Exposition(view, [*probes(config, switch), snat_pools.readings, forwarded(clients)])
        self._serving = Serving(folder)
        self._hosting = hosting = Hosting(host, status.report, requests.look_again)
        self._checks = checks = HealthChecks(config.healthz, view.health, partial(status.report, Area.HEALTH_CHECKS))
        self._tunnels = tunnels = Tunnelling(config, switch, status.report, requests.look_again)
        self._progress = progress = Progress(self._hold)
        policing = Policing(config, source, news, status.report)
        switch.denials.compiler = policing.compiler
        self._follower = ClusterFollower(
            news, self._serving, switch, hosting, checks, tunnels, policing, progress, status.report, self._fail
        )
        self._open_connections = OpenConnections(config, switch, policing, status.report)
        self._pods = pods = PodFlows(config, status, switch, policing)
        self._pass = NodePass(
            config, host, view, switch, hosting, self._follower, progress, pods, policing, checks, tunnels, snat_pools
        )
        self._passing = asyncio.Lock()  # held during a pass
        self._pause = RETRY_FIRST  # seconds until the next pass, if one fails
        self._has_news = asyncio.Event()
        self._policies: tuple[Reference, ...] = ()  # the policies that were reported
        self._database: Database | None = None
        self._database_lacks = ""  # why there is no database yet

    def lack_database(self, reason: str) -> None:
        self._database_lacks = reason
        self.status.waits(reason)

    async def serve(self, database: Database) -> None:
        self._database = database
        if (saved := await self._news.last_good()) is not None:
            self._serving.remember(saved)
        folder = Path(self.config.state_directory)
        bridge, pods = self.config.bridge, self._host.pods
        late = LatePorts(database, bridge, pods, self._pods, self.status.report) if pods.appear_later else None
        ports = RecordedPodPorts(database, bridge, PodRecords(folder), pods.links, late)
        handler = Handler(
            addresses=HostLocal(Path(self.config.ipam_plugin), folder / "addresses"),
            pods=pods,
            ports=ports,
            agent=self._pods,
            observe=self.exposition.measurements.cni_request,
        )
        async with self._checks.serving(), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive_news(), name="cluster")
            tasks.create_task(self._make_passes(database, ports, tasks), name="passes")
            tasks.create_task(self._follow_changes(tasks), name="changes")
            tasks.create_task(self._hosting.work(), name="host queue")
            tasks.create_task(self._watch_database(database), name="database")
            tasks.create_task(self._audit(database), name="audit")
            tasks.create_task(self._switch.check(), name="check")
            tasks.create_task(self._follower.flusher.flush_again(), name="flush again")
            tasks.create_task(self._open_connections.review(), name="open connections")
            tasks.create_task(self._tunnels.neighbours.keep(), name="tunnels")
            tasks.create_task(self._news.saver.run(), name="last known good")
            if late:
                tasks.create_task(late.keep(), name="late ports")
            async with cni_server.serving(
                self.config.cni_socket, handler.answer, self.exposition.measurements.cni_refusal
            ):
                await asyncio.Event().wait()  # until cancelled

    # --- the cluster ------------------------------------------------------------------------------------------------

    async def _receive_news(self) -> None:
        async with aclosing(self._news.arriving()) as arriving:
            async for missing in arriving:
                if missing:
                    self.status.waits(missing)
                self._report_policies()
                self.status.falls_behind()
                self._has_news.set()
                if self._pass.uplink is None:
                    self._requests.request()

    def _report_policies(self) -> None:
        found = policies.policies_of(self.view.cluster) if self.view.cluster else ()
        if found != self._policies:
            self._policies = found
            self.status.notice(policies.problems(found))
            self.status.report(Area.REPLACED_POLICIES, policies.summary(found))

    async def _follow_changes(self, tasks: asyncio.TaskGroup) -> NoReturn:
        """Carry out changes after the first pass, which handles the first state of the cluster itself."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            context = self._follower.context
            if self._pass.uplink is None or context is None:
                continue
            ticket, changed = await self._follower.follow(context)
            if self._needs_pass(ticket.change):
                self._progress.needs_pass(ticket)
                self._requests.request()
            try:
                await self._follower.carry_out(ticket, changed, tasks)
            except FAILURES as error:
                self._fail(ticket, error)

    def _needs_pass(self, change: ClusterChange) -> bool:
        """Whether the change concerns this Node itself, not only Services and peers."""
        changes = change.changes
        if changes.is_everything:
            return True
        return self.config.node_name in changes.keys(Node) or bool(changes.keys(ServiceCIDR))

    # --- passes -----------------------------------------------------------------------------------------------------

    async def _make_passes(self, database: Database, ports: RecordedPodPorts, tasks: asyncio.TaskGroup) -> NoReturn:
        while True:
            await self._requests.taken()
            cluster, uplink = self._news.cluster, self._pass.uplink
            if cluster is None:
                continue
            waiting = self._progress.waiting_for_pass()
            try:
                async with self._passing:
                    ticket = await self._pass.run(cluster, database, ports, tasks)
            except FAILURES as error:
                self._fail(None, error)
                continue
            self._pause = RETRY_FIRST
            now = self._pass.uplink
            if now and (uplink is None or uplink.name != now.name):
                names = HostNames(now.name, self.config.bridge, self.config.gateway)
                tasks.create_task(self._watch_host(names), name="host")
            self.status.report(Area.NODE, ())
            self.status.becomes_ready()
            if ticket.change.cluster is not cluster and self._needs_pass(ticket.change):
                self._progress.needs_pass(ticket)  # it came after this pass had looked at the Node
                self._requests.request()
            else:
                waiting.append(ticket)
            self._progress.complete_all(waiting)
            self._has_news.set()  # changes that came during the first pass are waiting
            _log.info("converged", revision=self.status.revision, flows=self._switch.flow_count)

    def _fail(self, ticket: Ticket | None, error: Exception) -> None:
        """Report the error, and request a pass: only a pass can correct it."""
        if ticket:
            self._progress.needs_pass(ticket)
        node = self.view.own_node
        problem = Problem.of(node, str(error)) if node and isinstance(error, NotUsable) else str(error)
        self.status.report(Area.NODE, [problem])
        if not self.status.ready:
            self.status.waits(str(problem))
        self._requests.request_later(self._pause)
        self._pause = min(2 * self._pause, RETRY_LONGEST)

    def _hold(self, change: ClusterChange) -> None:
        """The switch and the host hold this state of the cluster."""
        cluster = change.cluster
        self._news.saver.keep(cluster, change.changes)
        if self.status.revision != cluster.revision:
            seconds = self.status.behind_seconds
            self.exposition.measurements.applied(change.triggered, seconds)
            _log.debug(
                "applied", revision=cluster.revision, changes=change.changes, milliseconds=round(seconds * 1000, 1)
            )
        is_newest = cluster is self._news.cluster and self._progress.is_idle
        self.status.converged(cluster.revision, up_to_date=is_newest and not self._requests.is_pending)

    # --- changes by other programs ------------------------------------------------------------------------------------

    async def _watch_database(self, database: Database) -> None:
        """Request a pass after a restart of the switch, or if another program changed a port or the bridge."""
        async for change in database.changes(database.view):
            if self.config.bridge in change.before.bridges and self.config.bridge not in change.after.bridges:
                self.status.waits(f"{self.config.bridge}: the bridge was deleted; the agent creates it again")
            if _concerns_us(change, self.config.bridge):
                self._requests.request()

    async def _watch_host(self, names: HostNames) -> None:
        async with aclosing(self._host.watch(names)) as events:
            async for changed in events:
                if changed <= {names.uplink}:
                    self._requests.request_later(UPLINK_SETTLES)
                else:
                    self._requests.request()

    async def _audit(self, database: Database) -> NoReturn:
        while True:
            await asyncio.sleep(self.config.audit_seconds)
            await self._switch.audit()
            await self._snat_pools.check()
            if self._snat_pools.reserved and (state := self.view.state):  # another program may have replaced the list
                await self._snat_pools.reserve(self._host, [address.ip for address in state.node.addresses.values()])
            if self._pass.uplink is not None:
                with suppress(HostError):  # the next pass reports it
                    await self._pass.check_host(self._pass.uplink, database)

    def _lose_switch(self, reason: str) -> None:
        """The interfaces of the switch may be gone, too: the Node is not ready until the next pass is completed."""
        self.status.waits(reason)
        self._requests.request()

    async def keep_host_reachable(self) -> NoReturn:
        """Keep the host reachable while Open vSwitch is unavailable: on the userspace datapath."""
        fallback = Fallback(self._host, self.config.bridge, self.status.report)
        await fallback.keep(self._missing_switch, lambda: self._pass.uplink, self._using_uplink)

    async def _missing_switch(self) -> str:
        """Why Open vSwitch is unavailable; empty while it is there."""
        if problem := self._database.view.problem if self._database else self._database_lacks:
            return problem
        if self._pass.uplink is not None:
            return self._switch.trouble
        # Before the first pass there is no connection, and the pass may wait for the cluster while the host is cut off.
        return await unanswered(str(self.config.openflow_socket)) if self._database else ""

    @asynccontextmanager
    async def _using_uplink(self) -> AsyncIterator[None]:
        """Neither a pass nor the host's queue changes anything within the block."""
        async with self._passing, self._hosting.using:
            yield


def relax_garbage_collector() -> None:
    """For the whole process: an agent has many objects that stay, and few reference cycles.

    A thousand changed Services left 384 objects in cycles. The default threshold, 700 new objects, is a few Services.
    """
    gc.set_threshold(200_000, 20, 20)


def _concerns_us(change: DatabaseChange, bridge: str) -> bool:
    """Whether a port of the bridge changed or is gone. New ports need no pass: the agent itself adds them."""
    before, after = change
    if before.connections != after.connections or before.bridges.get(bridge) is None:
        return True
    now = {interface.name: interface for interface in after.interfaces_of(bridge)}
    numbered = (interface for interface in before.interfaces_of(bridge) if interface.ofport is not None)
    return any(now.get(interface.name) != interface for interface in numbered)
