"""The agent as a citizen of its cluster: when it writes there of its Node, and of objects that it had to refuse.

What exactly is written is decided in `cluster.kubernetes.writing`. Nothing else of the agent ever waits for any of it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn, Protocol

from windlass.agent.areas import Area
from windlass.agent.refusals import Refusals
from windlass.agent.status import Status
from windlass.cluster.clusters import Cluster
from windlass.cluster.kubernetes.connections import (
    APIConnection,
    RequestRefused,
    SocketFactory,
    Unreachable,
    watched_socket,
)
from windlass.cluster.kubernetes.credentials import NoAccess, Reader
from windlass.cluster.kubernetes.decoding import Garbled
from windlass.cluster.kubernetes.pauses import pause_after
from windlass.cluster.kubernetes.writing import GATEWAY_ADDRESSES, UPLINK_MAC, mark_node, tell
from windlass.cluster.objects import Problem
from windlass.model.nodes import LocalNode, NodeState

GRACE = 10.0  # seconds without a network before the Node is tainted: a restart of the agent takes less
LOOK_AGAIN = 300.0  # seconds; then somebody else may have changed what we wrote
EVENTS_PER_SECOND = 20.0  # of all agents together: they refuse the same objects at the same moment

_INVALID = 422
_FAILURES = (RequestRefused, Unreachable, NoAccess, Garbled)


class Subject(Protocol):
    """What a citizen speaks for."""

    status: Status

    @property
    def state(self) -> NodeState | None: ...
    @property
    def cluster(self) -> Cluster | None: ...
    def report(self, area: Area, problems: Iterable[str]) -> None: ...


class Marks(NamedTuple):
    """What the Node object shall have."""

    uid: str  # of the Node: another object of the same name has nothing of it
    annotations: Mapping[str, str]
    is_ready: bool


class Citizen:
    def __init__(self, access: Reader, node_name: str, socket_factory: SocketFactory = watched_socket) -> None:
        self._access = access
        self._node_name = node_name
        self._socket_factory = socket_factory
        self._troubles: dict[str, str] = {}

    async def live(self, subject: Subject) -> None:
        """Until cancelled."""
        async with APIConnection(self._access, self._socket_factory) as connection, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._mark_node(connection, subject), name="annotations and taint")
            tasks.create_task(self._tell_refusals(connection, subject), name="Events")

    async def _mark_node(self, connection: APIConnection, subject: Subject) -> NoReturn:
        status, failures = subject.status, 0
        while True:
            wanted = self._wanted(subject)
            try:
                if wanted:
                    await mark_node(connection, self._node_name, wanted.annotations, is_ready=wanted.is_ready)
            except _FAILURES as error:
                failures += 1
                self._fails(subject, "annotations and taint of this Node cannot be written", error)
                await asyncio.sleep(_pause(error, failures))
                continue
            failures = 0
            self._works(subject, "annotations and taint of this Node cannot be written")
            in_grace = not status.ready and status.unready_seconds < GRACE
            await status.wait_until(
                lambda: self._wanted(subject) != wanted,  # noqa: B023 - it is awaited here
                GRACE - status.unready_seconds if in_grace else LOOK_AGAIN * random.uniform(0.7, 1.0),  # noqa: S311
            )

    def _wanted(self, subject: Subject) -> Marks | None:
        """None while there is nothing to say: no Node object to say it of, or not ready for a moment only."""
        status, state, cluster = subject.status, subject.state, subject.cluster
        node = cluster.nodes.get(self._node_name) if cluster else None
        if node is None:
            return None
        uid = node.metadata.uid or ""
        if status.ready and state:
            return Marks(uid, annotations_of(state.node), is_ready=True)
        return Marks(uid, {}, is_ready=False) if status.unready_seconds >= GRACE else None

    async def _tell_refusals(self, connection: APIConnection, subject: Subject) -> NoReturn:
        status, failures = subject.status, 0
        refusals = Refusals(self._node_name)
        heard: tuple[Problem, ...] | None = None
        while True:
            await status.wait_until(
                lambda: status.refusals is not heard,  # noqa: B023 - it is awaited here
                refusals.seconds_until_due(time.monotonic(), LOOK_AGAIN),
            )
            await asyncio.sleep(_turn(subject.cluster))
            if status.refusals is not heard:
                heard = status.refusals
                refusals.hear(heard, time.monotonic())
            problem = refusals.due(time.monotonic())
            if problem is None:
                continue
            try:
                await tell(connection, problem, self._node_name)
            except _FAILURES as error:
                failures += 1
                self._fails(subject, "Events cannot be written", error)
                if isinstance(error, RequestRefused) and error.code == _INVALID:  # it will never be another
                    refusals.told(problem, time.monotonic())
                await asyncio.sleep(_pause(error, failures))
            else:
                failures = 0
                refusals.told(problem, time.monotonic())
                self._works(subject, "Events cannot be written")

    def _fails(self, subject: Subject, what: str, error: Exception) -> None:
        self._troubles[what] = str(error)
        self._report(subject)

    def _works(self, subject: Subject, what: str) -> None:
        if self._troubles.pop(what, None):
            self._report(subject)

    def _report(self, subject: Subject) -> None:
        subject.report(
            Area.CLUSTER_WRITES, [f"{what}: {why}; it is tried again" for what, why in self._troubles.items()]
        )


def annotations_of(node: LocalNode) -> dict[str, str]:
    gateways = ",".join(str(node.gateway(family)) for family in node.families)
    return {UPLINK_MAC: node.uplink_mac, GATEWAY_ADDRESSES: gateways}


def _turn(cluster: Cluster | None) -> float:
    """Seconds to wait for it: the more Nodes, the longer, and each another time. Who comes first tells it for all."""
    nodes = len(cluster.nodes) if cluster else 1
    return random.uniform(0.0, 2 * nodes / EVENTS_PER_SECOND)  # noqa: S311


def _pause(error: Exception, failures: int) -> float:
    asked = error.retry_after if isinstance(error, RequestRefused) else 0.0
    return max(asked, pause_after(failures))
