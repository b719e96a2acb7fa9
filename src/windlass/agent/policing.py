"""The policies of this Node's Pods as a part of the state that the switch should have.

Pods, subjects and peers of policies change in one bundle (`switching`): at no moment does a packet meet half a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from windlass.agent.areas import Area
from windlass.agent.slices import run_in_slices
from windlass.cluster.objects import Problem
from windlass.cluster.sources import ClusterChange
from windlass.model.nodes import NodeState
from windlass.nodes.policies import FollowedPolicies
from windlass.program import Owner, OwnerKind

Report = Callable[[Area, Iterable[str | Problem]], None]


class Policing:
    def __init__(self, node_name: str, report: Report) -> None:
        self._policies = FollowedPolicies(node_name)
        self._report = report
        self._reported: tuple[Problem, ...] = ()
        self._reading = asyncio.Lock()  # held while a change is half read

    async def follow(self, change: ClusterChange) -> None:
        """Read what has changed; `applied` must follow without an await in between."""
        async with self._reading:
            await run_in_slices(self._policies.following(change.cluster, change.changes))
        if self._policies.problems is not self._reported:
            self._reported = self._policies.problems
            self._report(Area.POLICIES, self._reported)

    async def is_read(self) -> None:
        """Returns when no change is half read. Call `applied` without an await in between."""
        async with self._reading:
            pass

    def applied(self, state: NodeState) -> tuple[NodeState, list[Owner]]:
        """The state with the policies of its Pods, and the owners whose flows differ by that."""
        changed = self._policies.settle(state.node, state.pods)
        owners = [Owner(OwnerKind.POLICY_SUBJECT, key) for key in changed.subjects]
        owners += [Owner(OwnerKind.POLICY_PEER, key) for key in changed.peers]
        owners += [Owner(OwnerKind.POD, pod.container_id) for pod in state.pods.values() if pod.key in changed.pods]
        return replace(state, policies=self._policies.policies), owners
