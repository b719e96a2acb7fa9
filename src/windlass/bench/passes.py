"""`windlass bench passes`: what waits for a full pass of the agent, on a Node with many Services and many peers.

Passes are caused from outside, again and again: by an address that the host gets and loses, after which every flow is
computed again, and by a route of the gateway that comes and goes, after which all is compared and nothing changes.
Meanwhile Pods are attached by the CNI plugin and endpoints change. Then, without passes, a Node joins, gets another
address, and leaves.

There is no floor: the figures during passes are to be compared with those of the same run without a pass.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address
from multiprocessing.connection import Connection
from threading import Event, Thread

import msgspec

from windlass.bench import agent_runs, bare_agents, bare_changes, bench_nodes, cni
from windlass.bench import service_states as states
from windlass.bench.bare_agents import TIMEOUT, Events
from windlass.bench.reports import BenchReport, Figure, percentiles, this_machine
from windlass.cluster.objects import EndpointSlice, Node
from windlass.host.linux import namespaces
from windlass.lab.orchestration.node_programs import Programs
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.progress import Say
from windlass.model.families import Family
from windlass.model.services import Protocol
from windlass.nodes.config import Config
from windlass.nodes.group_numbers import GroupNumbers
from windlass.openflow.wire import messages as wire

SERVICES, ENDPOINTS, PEERS = 10_000, 10, 1_000
ADDS, CHANGES, NODES = 60, 200, 20  # how many of each are measured, in each stretch
SETTLING = 5.0  # seconds after the start in which the agent compares and saves everything once
GAP = 0.02  # seconds between changes, so that they meet every part of a pass

Causes = dict[str, tuple[str, str]]
CAUSES: Causes = {  # what causes a pass: two commands, run in turn
    "every-flow": ("ip address add 10.99.0.1/32 dev other0", "ip address del 10.99.0.1/32 dev other0"),
    "compare": ("ip route add 198.51.100.0/24 dev windlass-gw0", "ip route del 198.51.100.0/24 dev windlass-gw0"),
}


async def run(say: Say = print) -> BenchReport:
    """Takes about five minutes."""
    async with bench_nodes.standing() as (config, namespace):
        figures = await asyncio.to_thread(_measure, config, namespace, say)
    return BenchReport("passes", this_machine(), tuple(figures))


def _measure(config: Config, namespace: str, say: Say) -> list[Figure]:
    figures: list[Figure] = []
    with namespaces.entered(namespaces.path_of(namespace)):
        subprocess.run(["ip", "link", "add", "other0", "up", "type", "veth", "peer", "name", "other1"], check=True)
        say(f"an agent with {SERVICES} Services and {PEERS} peers starts")
        with _agent(config, namespace) as agent:
            bench = _Bench(config, namespace, agent)
            time.sleep(SETTLING)
            figures += bench.waits("alone")
            for cause, commands in CAUSES.items():
                say(f"Pods and endpoints while the agent passes again and again: {cause}")
                with _repeated(commands):
                    figures += bench.waits(f"during-{cause}-pass")
                bench.calm()
            say("Nodes join, change and leave")
            figures += bench.nodes()
    return figures


class ChangeRequest(msgspec.Struct, frozen=True):
    """One change of the cluster, or an empty request."""

    slice: int | None = None  # the Service whose EndpointSlice changes
    times: int = 0  # how often it has changed
    node: int | None = None  # the number of the Node that changes
    address: int = 1  # its address: a number; 0: the Node is deleted


class _Bench:
    def __init__(self, config: Config, namespace: str, agent: Connection) -> None:
        self._config = config
        self._namespace = namespace
        self._agent = agent
        self._changes = self._pods = 0
        self._numbers = GroupNumbers()

    def waits(self, name: str) -> list[Figure]:
        adds = [self._add() for _ in range(ADDS)]
        return [
            *percentiles(f"cni-add-{name}", adds, "ms"),
            *percentiles(f"service-change-{name}", self._change_endpoints(), "ms"),
        ]

    def nodes(self) -> list[Figure]:
        taken: dict[str, list[float]] = {"joins": [], "changes": [], "leaves": []}
        for number in range(PEERS + 2, PEERS + 2 + NODES):
            for what, address in (("joins", 1), ("changes", 2), ("leaves", 0)):
                taken[what].append(self._ask(ChangeRequest(node=number, address=address)))
        return [one for what, times in taken.items() for one in percentiles(f"node-{what}", times, "ms")]

    def calm(self) -> None:
        """Wait until the agent holds everything."""
        self._ask(ChangeRequest(node=PEERS + 1, address=1))
        time.sleep(2)

    def _ask(self, request: ChangeRequest) -> float:
        began = time.perf_counter()
        self._agent.send(request)
        if not self._agent.poll(TIMEOUT) or not self._agent.recv():
            raise LabError(f"the agent does not carry out a change within {TIMEOUT:.0f} s")
        return 1000 * (time.perf_counter() - began)

    def _change_endpoints(self) -> list[float]:
        """Milliseconds from the time at which each change was due until the switch has it.

        Changes are due at fixed times, whether or not the ones before are done: all that have to wait are counted.
        """
        began = time.perf_counter() + GAP
        due = [began + number * GAP for number in range(CHANGES)]
        sent: list[tuple[int, bytes]] = []
        taken: list[float] = []
        with bare_changes.connected(str(self._config.openflow_socket)) as switch:
            while len(taken) < CHANGES:
                now = time.perf_counter()
                if len(sent) < CHANGES and now >= due[len(sent)]:
                    sent.append(self._change())
                elif len(sent) > len(taken) and _has(switch, *sent[len(taken)]):
                    taken.append(1000 * (time.perf_counter() - due[len(taken)]))
                elif now > due[-1] + TIMEOUT:
                    raise LabError(f"a changed endpoint is not in the switch after {TIMEOUT:.0f} s")
                else:
                    time.sleep(0.0005)
        return taken

    def _change(self) -> tuple[int, bytes]:
        """Another endpoint of one Service. The group in the switch that gets it, and its address."""
        self._changes += 1
        service = states.spread(self._changes, SERVICES)
        self._agent.send(ChangeRequest(slice=service, times=self._changes))
        group = self._numbers.of(f"default/service-{service:05} http {Protocol.TCP} {Family.IPV4}")
        return group, _last_endpoint(states.changed_slice(service, ENDPOINTS, self._changes))

    def _add(self) -> float:
        """Milliseconds of the plugin, which is started anew for each Pod."""
        self._pods += 1
        plugin = Programs().cni.resolve()
        network = {"type": "windlass-cni", "agentSocket": str(self._config.cni_socket)}
        with cni.pod_namespace() as pod:
            taken = cni.call_plugin(plugin, network, "ADD", pod, self._pods)
            cni.call_plugin(plugin, network, "DEL", pod, self._pods)
        return taken


@contextmanager
def _agent(config: Config, namespace: str) -> Iterator[Connection]:
    fresh = multiprocessing.get_context("spawn")
    ours, theirs = fresh.Pipe()
    process = fresh.Process(target=serve, args=(theirs, config, namespace, SERVICES, ENDPOINTS, PEERS))
    process.start()
    try:
        if not ours.poll(TIMEOUT) or not ours.recv():
            raise LabError(f"the agent is not ready after {TIMEOUT:.0f} s")
        yield ours
        ours.send(ChangeRequest())
        process.join(10)
    finally:
        process.kill()
        process.join()


@contextmanager
def _repeated(commands: tuple[str, str]) -> Iterator[None]:
    """Runs both commands in turn, in a thread, until the block ends; then the second one once more."""
    ended = Event()

    def repeat() -> None:
        while not ended.is_set():
            for command in commands:
                subprocess.run(command.split(), check=True)
                ended.wait(0.3)

    # The thread has the namespace of the one that starts it.
    repeating = Thread(target=repeat)
    repeating.start()
    try:
        yield
    finally:
        ended.set()
        repeating.join()


def _last_endpoint(one: EndpointSlice) -> bytes:
    """The address of the last endpoint."""
    *_, last = one.endpoints or ()
    (address,) = last.addresses or ()
    return IPv4Address(address).packed


def _has(switch: socket.socket, group: int, endpoint: bytes) -> bool:
    """Whether a bucket of this group leads to the endpoint."""
    switch.sendall(wire.multipart_request(wire.MultipartType.GROUPS, 2, struct.pack("!I4x", group)))
    return endpoint in switch.recv(65536)


# ---- the agent, in a process of its own


def serve(connection: Connection, config: Config, namespace: str, services: int, endpoints: int, peers: int) -> None:
    """Carry out requests. An empty one ends the agent.

    True is sent when the Node is ready, and then when the Node holds what a request about a Node asked for.
    """
    bare_agents.configure_process()
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
    requests: asyncio.Queue[ChangeRequest] = asyncio.Queue()
    async with agent_runs.running(config, source) as (agent, _):
        connection.send(True)
        loop.add_reader(connection.fileno(), lambda: requests.put_nowait(connection.recv()))
        while (request := await requests.get()) != ChangeRequest():
            if request.slice is not None:
                changed = states.changed_slice(request.slice, endpoints, request.times)
                source.publish("slices", {changed.key: changed})
                continue
            node = peer(request.node or 0, request.address) if request.address else None
            revision = source.publish("nodes", {f"node-{request.node}": node})
            connection.send(await agent.status.wait_for_revision(str(revision), TIMEOUT))
        loop.remove_reader(connection.fileno())
