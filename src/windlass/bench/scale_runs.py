"""The measurements of `windlass bench scale`, each in a new process: what other Nodes' Pods cost one agent."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from windlass.bench import agent_runs, bare_agents
from windlass.bench import policy_states as states
from windlass.bench.service_states import LOCAL_NODE
from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import Cluster, with_objects
from windlass.cluster.kinds import kinds_of
from windlass.cluster.kubernetes.connections import APIConnection
from windlass.cluster.kubernetes.credentials import Access
from windlass.cluster.kubernetes.feeds import Feed, Recovery
from windlass.lab.sandbox.labs import LabError
from windlass.nodes.policies import FollowedPolicies

_MEMBER = "peer_pods"
_SIZE = states.Size(namespaces=100, pods=0, local=50, policies=50, rules=10)


class KnownPods(Struct, frozen=True):
    seconds: float  # until all are listed and compiled
    cpu: float  # CPU seconds of it
    rss: float  # MB more than before
    cpu_of_change: float  # CPU milliseconds of one changed Pod, decoded and compiled


def known_pods(pods: int, changes: int) -> KnownPods:
    """List Pods from a simulated API server, and follow changes of them, under policies that select all of them."""
    bare_agents.configure_process()
    with _serving(pods, changes) as port:
        return asyncio.run(_known_pods(port, pods, changes))


@contextmanager
def _serving(pods: int, changes: int) -> Iterator[int]:
    command = [sys.executable, "-m", "windlass.bench.pod_servers", str(pods), str(changes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int((server.stdout or sys.stdin).readline())
        finally:
            server.kill()


async def _known_pods(port: int, pods: int, changes: int) -> KnownPods:
    follower = _Follower()
    access = Access(f"http://127.0.0.1:{port}", "the benchmark", "nobody")
    gc.collect()
    before = agent_runs.rss()
    async with APIConnection(lambda: access) as connection:
        began, cpu = time.perf_counter(), time.process_time()
        following = asyncio.create_task(follower.feed.follow(connection, Recovery()))
        try:
            await follower.until(lambda: follower.feed.is_listed)
            seconds, listed = time.perf_counter() - began, time.process_time()
            if len(follower.policies.policies.peers) < pods:
                raise LabError(f"the figures are invalid: fewer than {pods} Pods are compiled")
            rss = agent_runs.rss() - before
            await connection.request("GET", "/go")
            await follower.until(lambda: follower.changed >= pods + changes)
            ended = time.process_time()
        finally:
            following.cancel()
            await asyncio.wait([following])
    return KnownPods(seconds, listed - cpu, rss, 1000 * (ended - listed) / changes)


class _Follower:
    """From the watch to compiled policies; the switch is not part of it."""

    def __init__(self) -> None:
        self.policies = FollowedPolicies(states.NODE)
        self.changed = 0
        self._fresh = asyncio.Event()
        self.feed = Feed(kinds_of(Cluster)[_MEMBER], states.NODE, self._fresh.set)
        self._cluster = states.cluster(_SIZE)
        self._follow(ChangeSet(is_everything=True))

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._fresh.wait()
            self._fresh.clear()
            if self.feed.is_listed and self.feed.store.changed:
                objects, keys = self.feed.store.snapshot()
                self.changed += len(keys)
                self._cluster = with_objects(self._cluster, {_MEMBER: objects})
                self._follow(ChangeSet.of({self.feed.kind.struct: keys}))

    def _follow(self, changes: ChangeSet) -> None:
        for _ in self.policies.following(self._cluster, changes):
            pass
        self.policies.settle(LOCAL_NODE, states.attached_pods(_SIZE))
