"""Writes to the cluster: annotations and taint of this Node, Events and conditions about objects that cannot be used.

What is written is decided in `cluster.kubernetes.writing`. No other part of the agent waits for it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import msgspec

from windlass.agent.areas import Area
from windlass.agent.pending_events import RENEWED, PendingEvents
from windlass.agent.views import AgentView
from windlass.cluster.clusters import Cluster
from windlass.cluster.kubernetes.connections import (
    APIConnection,
    RequestRefused,
    SocketFactory,
    Unreachable,
    pause_after,
    watched_socket,
)
from windlass.cluster.kubernetes.credentials import NoAccess, Reader
from windlass.cluster.kubernetes.decoding import Garbled
from windlass.cluster.kubernetes.policy_conditions import write_conditions
from windlass.cluster.kubernetes.writing import GATEWAY_ADDRESSES, UPLINK_MAC, mark_node, write_event
from windlass.cluster.objects import Problem, field_sentence
from windlass.cluster.policy_objects import ClusterNetworkPolicy
from windlass.model.nodes import LocalNode
from windlass.policy.readings import read_cluster_network_policy

GRACE = 10.0  # seconds without a network before the Node gets the taint: a restart of the agent takes less
LOOK_AGAIN = 300.0  # seconds between checks whether another client has changed what the agent wrote
CHECKS = 120  # of conditions, by all agents together per `RENEWED` seconds: one in ten seconds
EVENTS_PER_SECOND = 20.0  # by all agents together: they find the same problems at the same moment

_INVALID = 422
_MARKS_FAIL, _EVENTS_FAIL = "annotations and taint of this Node cannot be written", "Events cannot be written"
_CONDITIONS_FAIL = "conditions of ClusterNetworkPolicies cannot be written"
_FAILURES = (RequestRefused, Unreachable, NoAccess, Garbled)


class NodeMarks(NamedTuple):
    """The annotations and the taint that the Node object should have."""

    uid: str  # the UID of the Node object: a new one of the same name has no marks yet
    annotations: Mapping[str, str]
    is_ready: bool


@dataclass(slots=True, eq=False)
class ClusterWriter:
    _access: Reader
    _node_name: str
    _socket_factory: SocketFactory = watched_socket
    _troubles: dict[str, str] = field(default_factory=dict)

    async def run(self, agent: AgentView) -> None:
        """Until cancelled."""
        async with APIConnection(self._access, self._socket_factory) as connection, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._mark_node(connection, agent), name="annotations and taint")
            tasks.create_task(self._write_events(connection, agent), name="Events")
            tasks.create_task(self._write_conditions(connection, agent), name="conditions")

    async def _mark_node(self, connection: APIConnection, agent: AgentView) -> NoReturn:
        status, failures = agent.status, 0
        while True:
            wanted = self._wanted(agent)
            try:
                if wanted:
                    await mark_node(connection, self._node_name, wanted.annotations, is_ready=wanted.is_ready)
            except _FAILURES as error:
                failures += 1
                self._note(agent, _MARKS_FAIL, error)
                await asyncio.sleep(_pause(error, failures))
                continue
            failures = 0
            self._note(agent, _MARKS_FAIL, None)
            in_grace = not status.ready and status.unready_seconds < GRACE
            await status.wait_until(
                lambda: self._wanted(agent) != wanted,  # noqa: B023 - it is awaited here
                GRACE - status.unready_seconds if in_grace else LOOK_AGAIN * random.uniform(0.7, 1.0),  # noqa: S311
            )

    def _wanted(self, agent: AgentView) -> NodeMarks | None:
        """None if there is no Node object, or if the Node has become unready just now."""
        status, state, cluster = agent.status, agent.state, agent.cluster
        node = cluster.nodes.get(self._node_name) if cluster else None
        if node is None:
            return None
        uid = node.metadata.uid or ""
        if status.ready and state:
            return NodeMarks(uid, annotations_of(state.node), is_ready=True)
        return NodeMarks(uid, {}, is_ready=False) if status.unready_seconds >= GRACE else None

    async def _write_events(self, connection: APIConnection, agent: AgentView) -> NoReturn:
        status, failures = agent.status, 0
        pending = PendingEvents(self._node_name)
        known: tuple[Problem, ...] | None = None
        while True:
            await status.wait_until(
                lambda: status.refusals is not known,  # noqa: B023 - it is awaited here
                pending.seconds_until_due(time.monotonic(), LOOK_AGAIN),
            )
            await asyncio.sleep(_stagger(agent.cluster))
            if status.refusals is not known:
                known = status.refusals
                pending.update(known, time.monotonic())
            problem = pending.due(time.monotonic())
            if problem is None:
                continue
            try:
                await write_event(connection, problem, self._node_name)
            except _FAILURES as error:
                failures += 1
                self._note(agent, _EVENTS_FAIL, error)
                if isinstance(error, RequestRefused) and error.code == _INVALID:  # it would fail again
                    pending.written(problem, time.monotonic())
                await asyncio.sleep(_pause(error, failures))
            else:
                failures = 0
                pending.written(problem, time.monotonic())
                self._note(agent, _EVENTS_FAIL, None)

    async def _write_conditions(self, connection: APIConnection, agent: AgentView) -> NoReturn:
        """The first agent writes them for all; the others read them and find nothing to change.

        Without a refused policy and without a condition there is nothing to check again.
        """
        status, failures = agent.status, 0
        while True:
            known, has_policies = _refused_policies(agent), _has_policies(agent)
            await asyncio.sleep(_stagger(agent.cluster))
            try:
                is_any = has_policies and await write_conditions(connection, refused_parts)
            except _FAILURES as error:
                failures += 1
                self._note(agent, _CONDITIONS_FAIL, error)
                await asyncio.sleep(_pause(error, failures))
                continue
            failures = 0
            self._note(agent, _CONDITIONS_FAIL, None)
            await status.wait_until(
                lambda: _refused_policies(agent) != known or _has_policies(agent) > has_policies,  # noqa: B023 - awaited
                _until_next_check(agent.cluster) if is_any or known else None,
            )

    def _note(self, agent: AgentView, what: str, error: Exception | None) -> None:
        """Report why this cannot be written; without an error: that it can."""
        self._troubles[what] = str(error or "")
        troubles = [f"{what}: {why}; the agent tries again" for what, why in self._troubles.items() if why]
        agent.status.report(Area.CLUSTER_WRITES, troubles)


def refused_parts(document: bytes) -> str:
    """What of a ClusterNetworkPolicy is not enforced as written, a line each; empty if all of it is."""
    try:
        policy = msgspec.json.decode(document, type=ClusterNetworkPolicy)
    except msgspec.ValidationError as error:
        return f"{field_sentence(str(error))}; these contents are not used"
    return "\n".join(read_cluster_network_policy(policy)[1])


def _refused_policies(agent: AgentView) -> set[Problem]:
    refusals = agent.status.refusals
    return {one for one in refusals if one.regarding is not None and one.regarding.kind == "ClusterNetworkPolicy"}


def _has_policies(agent: AgentView) -> bool:
    return agent.cluster is not None and bool(agent.cluster.cluster_network_policies)


def annotations_of(node: LocalNode) -> dict[str, str]:
    gateways = ",".join(str(node.gateway(family)) for family in node.families)
    return {UPLINK_MAC: node.uplink_mac, GATEWAY_ADDRESSES: gateways}


def _stagger(cluster: Cluster | None) -> float:
    """A random delay in seconds, in proportion to the Nodes: the first agent writes the Event for all of them."""
    nodes = len(cluster.nodes) if cluster else 1
    return random.uniform(0.0, 2 * nodes / EVENTS_PER_SECOND)  # noqa: S311


def _until_next_check(cluster: Cluster | None) -> float:
    """Seconds. The more agents there are, the less often each of them checks."""
    nodes = len(cluster.nodes) if cluster else 1
    return RENEWED * max(1.0, nodes / CHECKS) * random.uniform(0.7, 1.0)  # noqa: S311


def _pause(error: Exception, failures: int) -> float:
    asked = error.retry_after if isinstance(error, RequestRefused) else 0.0
    return max(asked, pause_after(failures))
