"""The agent that `windlass bench passes` measures, in a process of its own, and how it is told of changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import structlog

from windlass.agent.agents import Agent
from windlass.agent.collector import relax
from windlass.bench import service_states as states
from windlass.cluster.changes import ChangeSet
from windlass.cluster.clusters import Cluster
from windlass.cluster.objects import EndpointSlice, Node
from windlass.cluster.sources import ClusterChange, WatchHealth
from windlass.host.linux import namespaces
from windlass.host.linux.hosts import LinuxHost
from windlass.model.mappings import PersistentMap
from windlass.nodes.config import Config
from windlass.switch.ovsdb import open_database

PATIENCE = 120.0  # seconds


class Request(msgspec.Struct, frozen=True):
    """One change of the cluster, or of nothing."""

    slice: int | None = None  # the Service whose EndpointSlice changes
    times: int = 0  # how often it has changed
    node: int | None = None  # the number of the Node that changes
    address: int = 1  # of that Node; 0: it is deleted


def serve(connection: Connection, config: Config, namespace: str, services: int, endpoints: int, peers: int) -> None:
    """Carry out requests. An empty one ends the agent.

    True is sent when the Node is ready, and then when the Node holds what a request about a Node asked for.
    """
    relax()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with namespaces.entered(namespaces.path_of(namespace)):
        asyncio.run(_serve(connection, config, _Requested(services, endpoints, peers)))


def peer(number: int, address: int = 1) -> Node:
    """A peer in another subnet than this Node: its Pods are reached through the tunnel."""
    node_ip = f"10.{176 + address}.{number // 250}.{number % 250 + 1}"
    document = {
        "kind": "Node",
        "metadata": {"name": f"node-{number}"},
        "spec": {"podCIDRs": [f"10.{128 + number // 256}.{number % 256}.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": node_ip}]},
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=Node)


class _Requested:
    """A source of the cluster's state that changes on request."""

    watches: tuple[WatchHealth, ...] = ()

    def __init__(self, services: int, endpoints: int, peers: int) -> None:
        cluster = states.cluster(services, endpoints)
        self._nodes = PersistentMap({**cluster.nodes, **{f"node-{n}": peer(n) for n in range(2, peers + 2)}})
        self._slices = PersistentMap(cluster.slices)
        self._endpoints = endpoints
        self.cluster = replace(cluster, nodes=self._nodes)
        self._changes: asyncio.Queue[ClusterChange] = asyncio.Queue()

    async def changes(self) -> AsyncGenerator[ClusterChange, None]:
        yield ClusterChange(self.cluster)
        while True:
            yield await self._changes.get()

    def change(self, request: Request) -> int:
        """The revision of the state that the cluster has by this."""
        if request.slice is not None:
            changed = states.changed_slice(request.slice, self._endpoints, request.times)
            self._slices = self._slices.updated({changed.key: changed})
            changes = ChangeSet.of({EndpointSlice: {changed.key}})
        else:
            name = f"node-{request.node}"
            node = peer(request.node or 0, request.address) if request.address else None
            self._nodes = self._nodes.updated({name: node})
            changes = ChangeSet.of({Node: {name}})
        revision = int(self.cluster.revision) + 1
        self.cluster = Cluster(
            str(revision),
            nodes=self._nodes,
            services=self.cluster.services,
            slices=self._slices,
            service_cidrs=self.cluster.service_cidrs,
        )
        self._changes.put_nowait(ClusterChange(self.cluster, changes))
        return revision


async def _serve(connection: Connection, config: Config, source: _Requested) -> None:
    host = LinuxHost(Path(config.state_directory))
    agent = Agent(config, host, source)
    async with open_database(str(config.ovsdb_socket), patience=PATIENCE) as database:
        working = asyncio.create_task(agent.serve(database))
        answering = asyncio.create_task(_answer(connection, agent, source))
        await asyncio.wait([working, answering], return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        answering.cancel()
        await asyncio.wait([working, answering])
        await host.close()
    if not working.cancelled():
        working.result()


async def _answer(connection: Connection, agent: Agent, source: _Requested) -> None:
    loop = asyncio.get_running_loop()
    requests: asyncio.Queue[Request] = asyncio.Queue()
    await agent.status.wait_until(lambda: agent.status.ready, PATIENCE)
    connection.send(agent.status.ready)
    loop.add_reader(connection.fileno(), lambda: requests.put_nowait(connection.recv()))
    while True:
        request = await requests.get()
        if request == Request():
            loop.remove_reader(connection.fileno())
            return
        revision = source.change(request)
        if request.slice is None:
            connection.send(await agent.status.wait_for_revision(str(revision), PATIENCE))
