"""The policies of this Node's Pods as a part of the state that the switch should have.

Flows of Pods, subjects and peers of policies change in one bundle (`switching`), so that no packet is judged by
one half of a change. So nothing is applied while a change is half read, or while Pods that new policies select are not
known yet.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from windlass.agent.areas import Area, Report
from windlass.agent.news import News
from windlass.agent.slices import run_in_slices
from windlass.cluster.changes import ChangeSet, differences
from windlass.cluster.clusters import Cluster, Namespaces
from windlass.cluster.objects import PeerPod, Pod, Problem
from windlass.cluster.sources import ClusterChange, ClusterSource
from windlass.model.nodes import NodeState
from windlass.nodes.config import Config
from windlass.nodes.policies import FollowedPolicies
from windlass.program import Owner, OwnerKind

PATIENCE = 2.0  # seconds to wait for Pods that policies select; after that policies apply without them


class Policing:
    def __init__(self, config: Config, source: ClusterSource, news: News, report: Report) -> None:
        self._policies = FollowedPolicies(
            config.node_name, counts_rules=config.count_policy_rules, awaits_namespaces=not source.is_complete
        )
        self._source = source
        self._news = news
        self._report = report
        self._reported: tuple[Problem, ...] = ()
        self._namespaces: Namespaces = frozenset()  # namespaces whose Pods the source was asked for
        self._peers_are_late = False  # policies apply, and some of these Pods are not known yet
        self.compiler = self._policies.compiler  # explains what the switch denies
        self._reading = asyncio.Lock()  # held while a change is half read

    async def follow(self, change: ClusterChange) -> None:
        """Read what has changed. Call `applied` without an await in between."""
        async with self._reading:
            await run_in_slices(self._policies.following(change.cluster, change.changes))
            if self._policies.depends_on(change.changes):  # most changes are of Services, and should be quick
                await self._find_peers()
                if change.changes.concerns(PeerPod):
                    self._review_late_peers()
            newest = self._news.cluster
            # A CNI ADD may have used more than this change has: see `_find_peers`.
            if newest is not None and newest.listed_namespaces != self._policies.cluster.listed_namespaces:
                await self._follow_peers(newest)
        if self._policies.problems is not self._reported:
            self._reported = self._policies.problems
            self._report(Area.POLICIES, self._reported)

    async def learn(self, pod: str, uid: str) -> None:
        """Ask for a Pod on this Node that the watch has not delivered yet. Call `applied` without an await in between.

        A Pod that cannot be found in time is denied everything until it is known.
        """
        if self._source.is_complete:
            uid = ""  # manifests may have the uid of an earlier Pod, and no other Pod will come
        await self.is_read()
        found: Pod | None = None
        if not self._policies.knows(pod, uid):
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    found = await self._source.find_pod(pod)
        async with self._reading:
            self._policies.expect(pod, uid)
            if found is not None and found.has_uid(uid) and not self._policies.knows(pod, uid):
                self._policies.tell(found)
                await self._find_peers()

    async def is_read(self) -> None:
        """Returns when no change is half read. Call `applied` without an await in between."""
        async with self._reading:
            pass

    def applied(self, state: NodeState) -> tuple[NodeState, list[Owner]]:
        """The state with the policies of its Pods, and the owners whose flows change."""
        changed = self._policies.settle(state.node, state.pods)
        if not any(changed) and state.policies is self._policies.policies:
            return state, []
        owners = [Owner(OwnerKind.POLICY_SUBJECT, key) for key in changed.subjects]
        owners += [Owner(OwnerKind.POLICY_PORTS, key) for key in changed.ports]
        owners += [Owner(OwnerKind.POLICY_PEER, key) for key in changed.peers]
        owners += [Owner(OwnerKind.POD, pod.container_id) for pod in state.pods.values() if pod.key in changed.pods]
        return replace(state, policies=self._policies.policies), owners

    def take_review(self) -> bool:
        """Whether open connections must be compared with policies: see `FollowedPolicies`. Once for each change."""
        due, self._policies.review_is_due = self._policies.review_is_due, False
        return due

    def request_review(self) -> None:
        self._policies.review_is_due = True

    async def _find_peers(self) -> None:
        """Ask for the Pods of other Nodes that policies select now, and wait for them."""
        namespaces = self._policies.namespaces
        if namespaces == self._namespaces:
            return
        self._namespaces = namespaces
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await self._source.find_pods(namespaces)
        finally:  # also if the caller is cancelled, for example a CNI ADD
            self._peers_are_late |= not self._source.has_found_pods
        if self._news.cluster is not None:
            await self._follow_peers(self._news.cluster)

    async def _follow_peers(self, newest: Cluster) -> None:
        """Use the peers of this state already; of other objects it may have changes that must not be applied yet."""
        known = self._policies.cluster
        is_same = newest.peer_pods is known.peer_pods
        if not is_same or newest.listed_namespaces != known.listed_namespaces:
            changes = ChangeSet.of({PeerPod: differences(known.peer_pods, newest.peer_pods)})
            cluster = replace(known, peer_pods=newest.peer_pods, listed_namespaces=newest.listed_namespaces)
            await run_in_slices(self._policies.following(cluster, changes))
            self._review_late_peers()

    def _review_late_peers(self) -> None:
        """Call it when peers have changed. Unlike a new Pod, a peer that was listed late may have open connections."""
        if not self._peers_are_late:
            return
        self.request_review()
        newest = self._news.cluster
        is_newest = newest is None or newest.peer_pods is self._policies.cluster.peer_pods
        self._peers_are_late = not (is_newest and self._source.has_found_pods)
