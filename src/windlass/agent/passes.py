"""The full pass: all that this Node should have is compared with what is there, and differences are corrected.

It is harmless to repeat, and many events cause one: a new Node object, a restarted switch, an address that
another program removed. It waits for the switch and the host, and nothing else waits for it: Pods, Services and peers
have paths of their own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import structlog

from windlass.agent import limits, preflights
from windlass.agent.areas import Area
from windlass.agent.contexts import NodeContext, bridge_spec
from windlass.agent.following import ClusterFollower
from windlass.agent.healthchecks import HealthChecks, served_addresses
from windlass.agent.hosting import Hosting
from windlass.agent.pods import PodFlows, RecordedPodPorts, present_pods
from windlass.agent.policing import Policing
from windlass.agent.progress import Progress, Ticket
from windlass.agent.snat_pools import SnatPools
from windlass.agent.switching import ProgrammedSwitch
from windlass.agent.tunnelling import Tunnelling
from windlass.agent.views import AgentView
from windlass.cluster.clusters import Cluster
from windlass.host.plans import HostNames
from windlass.host.protocol import Host, Uplink
from windlass.model.nodes import NodeState
from windlass.nodes.config import Config
from windlass.nodes.identities import local_node, other_addresses, own_identity, service_cidrs, serving_node
from windlass.pipeline.datapaths import datapath_of
from windlass.program import Owner, OwnerKind, owners
from windlass.switch.bridge_differences import uplink_of
from windlass.switch.bridge_specs import BridgeSpec
from windlass.switch.bridges import end_wait, ensure_bridge, requiring_bridge, retry_interfaces
from windlass.switch.ovsdb import Database
from windlass.switch.streams import SwitchUnreachableError

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class NodePass:
    _config: Config
    _host: Host
    _view: AgentView
    _switch: ProgrammedSwitch
    _hosting: Hosting
    _follower: ClusterFollower
    _progress: Progress
    _pods: PodFlows
    _policing: Policing
    _checks: HealthChecks
    _tunnels: Tunnelling
    _snat_pools: SnatPools
    uplink: Uplink | None = None  # None until a pass was completed
    _preflight_passed: bool = False
    _must_retry: bool = False  # ovs-vswitchd may have failed to create its bridge, and no pass was completed since

    async def run(
        self, cluster: Cluster, database: Database, ports: RecordedPodPorts, tasks: asyncio.TaskGroup
    ) -> Ticket:
        """Returns the ticket of the newest change that this pass has carried out."""
        context, uplink = await self._locate(cluster, database)
        spec = bridge_spec(self._config, context.node, uplink, self._host.boot)
        if not self._preflight_passed:
            await self.check_host(uplink, database)
            self._preflight_passed = True
        node_ips = list(context.own.addresses.values())
        pod_cidrs = context.node.pod_cidrs.values()
        self._must_retry |= await self._host.uplink.prepare(uplink.name, spec.name, node_ips, pod_cidrs)
        await ports.remove_stale()
        if self._must_retry:
            await retry_interfaces(database)
        await ensure_bridge(database, spec)
        if datapath_of(context.node).timeouts:
            await self._snat_pools.hold_timeouts(database, self._config)
        await self._checks.listen_at(served_addresses(context.node, context.node.node_port_networks))
        restored = await ports.restore()
        self._view.status.report(Area.POD_PORTS, restored.problems)
        ticket, _ = await self._follower.follow(context)
        try:
            await self._policing.is_read()
            known = self._switch.state.pods if self._switch.state else None
            pods = present_pods(database, spec.name, known, restored.containers, self._view.status.report)
            self._update(self._follower.state_with(context.node, pods))
            if uplink_of(database.view, spec.name):
                await self._tunnels.set_routes(uplink)
                await self._follower.lead_to_peers(context)
            # Flows come first: when the uplink becomes a port, the host's traffic needs them.
            async with requiring_bridge(database, spec.name):
                await self._follower.bring_all(tasks)
                await end_wait(database)
            await self._hosting.take_uplink(database, spec, node_ips)
            await self._hold_host(context, uplink, spec)
            self._require_switch()
        except BaseException:
            self._progress.needs_pass(ticket)
            raise
        self._must_retry = False
        self.uplink = uplink
        self._pods.uplink_mtu = uplink.mtu
        return ticket

    def _require_switch(self) -> None:
        """It may have gone away while the host was changed."""
        if self._switch.trouble:
            raise SwitchUnreachableError(self._switch.trouble)

    async def _locate(self, cluster: Cluster, database: Database) -> tuple[NodeContext, Uplink]:
        """This Node, by its Node object, its NIC and its configuration."""
        config = self._config
        own = own_identity(config, cluster)
        node_ips = list(own.addresses.values())
        port = uplink_of(database.view, config.bridge)
        uplink = await self._host.uplink.find(config.bridge, node_ips, config.uplink or None, port)
        cidrs, problems = service_cidrs(config, cluster)
        self._view.status.report(Area.SERVICE_CIDRS, problems)
        others = other_addresses(own, await self._host.held_addresses(), cidrs)
        if config.reserves_ports:
            await self._snat_pools.reserve(self._host, node_ips)
        node = replace(
            local_node(config, own, uplink, others, cidrs),
            ports_reserved=self._snat_pools.reserved,
            host_connections=self._snat_pools.host_connections,
        )
        names = HostNames(uplink.name, config.bridge, config.gateway)
        return NodeContext(own, serving_node(config, cluster, own), node, names, cidrs), uplink

    def _update(self, state: NodeState) -> None:
        """Update the state: all owners if the Node itself changed, otherwise the Pods that changed."""
        before = self._switch.state
        state, policed = self._policing.applied(state)
        old_pods = before.pods if before else {}
        changed = policed + [
            Owner(OwnerKind.POD, container)
            for container in old_pods.keys() | state.pods.keys()
            if old_pods.get(container) != state.pods.get(container)
        ]
        if before is None or before.node != state.node:
            changed += owners(state)
        self._switch.update(state, changed)

    async def _hold_host(self, context: NodeContext, uplink: Uplink, spec: BridgeSpec) -> None:
        shared = context.shared_plan(self._config, uplink, spec) | limits.host_plan(self._config)
        await self._follower.hold_host(context, shared)
        if self._config.is_userspace:
            await limits.raise_switch_limit(self._config)
        await self._tunnels.hold(uplink)

    async def check_host(self, uplink: Uplink, database: Database) -> None:
        """The preflight checks. HostError if the NIC has not been taken yet and must not be."""
        found = await preflights.checked(self._config, self._host, uplink.name, database.view)
        for finding in self._view.status.finds(found):
            _log.warning("preflight", severity=finding.severity.value, check=finding.check, finding=str(finding))
