"""Carries out changes of Services, peers and policies; the work grows with the objects that changed.

The host sends no packets to the switch before the switch has flows for them: they would be lost there, whereas the
host refuses them, which a client notices. So the flows of a Service come before its items on the host, and go
after them. Routes to a peer come before flows that lead there. A change that needs nothing of the host does not wait
for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace

from windlass.agent.areas import Area, Report
from windlass.agent.contexts import NodeContext
from windlass.agent.healthchecks import HealthChecks, health_check
from windlass.agent.hosting import Done, Hosting
from windlass.agent.news import News
from windlass.agent.pass_requests import FAILURES
from windlass.agent.policing import Policing
from windlass.agent.progress import Progress, Ticket
from windlass.agent.serving import ConnectionFlusher, Serving
from windlass.agent.slices import run_in_slices
from windlass.agent.switching import ProgrammedSwitch
from windlass.agent.tunnelling import Tunnelling
from windlass.cluster.objects import Node
from windlass.cluster.sources import ClusterChange
from windlass.host.plans import HostPlan, Item
from windlass.model.nodes import AttachedPod, LocalNode, NodeState
from windlass.nodes.peers import Peers
from windlass.program import Owner, OwnerKind

_SLICE = 100  # owners whose items are computed before other tasks run


@dataclass(eq=False)
class ClusterFollower:
    """Keeps Services, peers and policies of the state up to date, and carries out changes of them."""

    _news: News
    _serving: Serving
    _switch: ProgrammedSwitch
    _hosting: Hosting
    _checks: HealthChecks
    _tunnels: Tunnelling
    _policing: Policing
    _progress: Progress
    _report: Report
    _on_failure: Callable[[Ticket, Exception], None]
    context: NodeContext | None = None  # None until the first pass
    _peers: Peers = field(default_factory=Peers)
    _following: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reaching: asyncio.Lock = field(default_factory=asyncio.Lock)
    _arriving: set[str] = field(default_factory=set)  # peers that came or changed and are not reached yet
    _unrequested: set[Owner] = field(default_factory=set)  # owners whose present items may not be on the host yet

    def __post_init__(self) -> None:
        self.flusher = ConnectionFlusher(self._serving, self._switch)

    # --- the state ------------------------------------------------------------------------------------------------

    async def follow(self, context: NodeContext) -> tuple[Ticket, list[Owner]]:
        """Bring Services, peers and policies up to the newest state of the cluster.

        Returns the owners that changed. Their flows are due to be sent from now on.
        """
        async with self._following:
            change = self._news.take_up()
            ticket = self._progress.begin(change)
            changed = [*await self._follow_services(change, context), *self._follow_peers(change, context)]
            self._unrequested.update(changed)
            if self.context is None or self.context[2:] != context[2:]:
                self._unrequested.update(Owner(OwnerKind.SERVICE, key) for key in self._serving.services)
                self._unrequested.update(Owner(OwnerKind.PEER, name) for name in self._peers.usable)
            self.context = context
            await self._policing.follow(change)
            state = self._switch.state
            if state is not None:
                after = replace(state, services=self._serving.services, peers=self._peers.usable)
                after, policed = self._policing.applied(after)
                changed += policed
                self._switch.update(after, changed)
        return ticket, changed

    def state_with(self, node: LocalNode, pods: Mapping[str, AttachedPod]) -> NodeState:
        return NodeState(node, self._peers.usable, pods, self._serving.services)

    async def _follow_services(self, change: ClusterChange, context: NodeContext) -> list[Owner]:
        reported = self._serving.problems
        changed = await run_in_slices(self._serving.following(change, context.serving))
        if self._serving.problems is not reported:
            self._report(Area.SERVICES, self._serving.problems)
        self._report(Area.GROUP_NUMBERS, filter(None, [self._serving.numbers.problem]))
        for key in changed:
            service = self._serving.services.get(key)
            await self._checks.set(key, health_check(service) if service else None)
        return [Owner(OwnerKind.SERVICE, key) for key in changed]

    def _follow_peers(self, change: ClusterChange, context: NodeContext) -> list[Owner]:
        is_same_node = self.context is context or (self.context is not None and self.context.own == context.own)
        if is_same_node and not change.changes.concerns(Node):
            return []
        names = None if change.changes.is_everything else change.changes.keys(Node)
        changed = self._peers.follow(change.cluster.nodes, context.own, names)
        self._report(Area.CLUSTER, self._peers.problems())
        return [Owner(OwnerKind.PEER, name) for name in changed]

    # --- a change of a few ----------------------------------------------------------------------------------------

    async def carry_out(self, ticket: Ticket, changed: Collection[Owner], tasks: asyncio.TaskGroup) -> None:
        """Returns when the switch has the flows of all owners that need nothing of the host before.

        The rest is done by a task.
        """
        peers = [owner for owner in changed if owner.kind is OwnerKind.PEER]
        self._arriving.update(owner.name for owner in peers)
        wanted = await run_in_slices(self._differing(changed))
        if not wanted and not self._arriving:  # most changes: other endpoints of a Service, or policies
            await self._bring(changed)
            self._progress.complete(ticket)
            return
        leaving, removed = self._hosting.give_up(
            {o: items for o, items in wanted.items() if o.kind is OwnerKind.SERVICE}
        )
        led = self._leading_to_arriving(changed)
        waiting = {*peers, *leaving, *led}
        await self._bring([owner for owner in changed if owner not in waiting])
        if wanted or waiting:
            finishing = self._finish(ticket, wanted, waiting, removed, peers if peers or led else None)
            tasks.create_task(finishing, name="host's part of a change")
        else:
            self._progress.complete(ticket)

    async def _finish(
        self,
        ticket: Ticket,
        wanted: Collection[Owner],
        waiting: Collection[Owner],
        removed: Done,
        peers: Collection[Owner] | None,
    ) -> None:
        """Complete a ticket. `peers` must be reached first, with those of earlier changes; None: no peers."""
        try:
            if peers is not None:
                await self._reach(peers)
            await removed
            if waiting:
                await self._bring(waiting)
            await self.ask_host(wanted)
        except FAILURES as error:
            self._on_failure(ticket, error)
        else:
            self._progress.complete(ticket)

    async def _bring(self, owners: Collection[Owner]) -> None:
        await self._switch.bring(owners)
        await self.flusher.flush()

    async def _reach(self, peers: Collection[Owner]) -> None:
        """Returns when the host has its routes to these peers, and the switch knows their MACs; one call at a time."""
        async with self._reaching:
            try:
                if peers:
                    await self._hosting.ask(await run_in_slices(self._differing(peers)))
                    await self._tunnels.prepare()
            finally:
                self._arriving.difference_update(owner.name for owner in peers)

    def _leading_to_arriving(self, owners: Iterable[Owner]) -> list[Owner]:
        """The Services with endpoints on peers that are not reached yet: flows must not choose those before."""
        arriving = [self._peers.usable[name] for name in self._arriving if name in self._peers.usable]
        if not arriving:
            return []
        cidrs = [cidr for peer in arriving for cidr in peer.pod_cidrs.values()]
        found = []
        for owner in owners:
            service = self._serving.services.get(owner.name) if owner.kind is OwnerKind.SERVICE else None
            endpoints = (endpoint for port in service.ports for endpoint in port.endpoints) if service else ()
            if any(endpoint.address in cidr for endpoint in endpoints for cidr in cidrs):
                found.append(owner)
        return found

    async def ask_host(self, owners: Collection[Owner]) -> None:
        """Returns when the host has the items of those of these owners whose flows are in the switch."""
        ready = [owner for owner in owners if owner not in self._switch.owed]
        await self._hosting.ask(await run_in_slices(self._differing(ready)))

    # --- a pass ---------------------------------------------------------------------------------------------------

    async def lead_to_peers(self, context: NodeContext) -> None:
        """Returns when the host has its routes to new peers, so that flows may lead there."""
        peers = [owner for owner in self._unrequested if owner.kind is OwnerKind.PEER]
        wanted = await run_in_slices(self._differing(peers))
        if wanted:
            await self._hosting.lead_to(context.names, frozenset[Item]().union(*wanted.values()))
        await self._tunnels.prepare()

    async def bring_all(self, tasks: asyncio.TaskGroup) -> None:
        """Returns when the host has removed unneeded items, and after that the switch has all flows that are due."""
        owed = list(self._switch.owed)
        holders = [owner for owner in self._unrequested if owner in self._hosting.owners]
        _, removed = self._hosting.give_up(await run_in_slices(self._differing(holders)))
        await removed
        await self._hosting.drained()  # owners whose flows are due may wait for an earlier removal
        if self._switch.is_started:
            await self._switch.bring(owed)
        else:
            await self._switch.start(tasks)
        await self.flusher.flush()

    async def hold_host(self, context: NodeContext, shared: HostPlan) -> None:
        """Returns when the host holds this plan and the items of all owners, and nothing else of ours."""
        ready = [owner for owner in self._unrequested if owner not in self._switch.owed]
        await self._hosting.hold(context.names, shared, await run_in_slices(self._differing(ready)))

    def _differing(self, owners: Collection[Owner]) -> Generator[None, None, dict[Owner, frozenset[Item]]]:
        """The owners whose items differ from those that they requested before, each with its new items."""
        found: dict[Owner, frozenset[Item]] = {}
        for number, owner in enumerate(owners, start=1):
            state, context = self._switch.state, self.context
            items = context.items_of(owner, state) if context and state else frozenset()
            if self._hosting.differs(owner, items):
                found[owner] = items
            elif owner not in self._switch.owed:
                self._unrequested.discard(owner)
            if not number % _SLICE:
                yield
        return found
