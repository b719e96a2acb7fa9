"""The agent that `windlass bench passes` measures, in a process of its own, and requests that change its cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from multiprocessing.connection import Connection

import msgspec

from windlass.bench import agent_runs
from windlass.bench import service_states as states
from windlass.bench.agent_runs import TIMEOUT, Events
from windlass.cluster.objects import Node
from windlass.host.linux import namespaces
from windlass.nodes.config import Config


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
    agent_runs.configure_process()
    cluster = states.cluster(services, endpoints)
    nodes = {**cluster.nodes, **{f"node-{number}": peer(number) for number in range(2, peers + 2)}}
    source = Events(replace(cluster, nodes=nodes))
    with namespaces.entered(namespaces.path_of(namespace)):
        asyncio.run(_serve(connection, config, source, endpoints))


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


async def _serve(connection: Connection, config: Config, source: Events, endpoints: int) -> None:
    loop = asyncio.get_running_loop()
    requests: asyncio.Queue[Request] = asyncio.Queue()
    async with agent_runs.running(config, source) as (agent, _):
        connection.send(True)
        loop.add_reader(connection.fileno(), lambda: requests.put_nowait(connection.recv()))
        while (request := await requests.get()) != Request():
            if request.slice is not None:
                changed = states.changed_slice(request.slice, endpoints, request.times)
                source.publish("slices", {changed.key: changed})
                continue
            node = peer(request.node or 0, request.address) if request.address else None
            revision = source.publish("nodes", {f"node-{request.node}": node})
            connection.send(await agent.status.wait_for_revision(str(revision), TIMEOUT))
        loop.remove_reader(connection.fileno())
