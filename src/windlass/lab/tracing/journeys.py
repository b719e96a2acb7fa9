"""Follows one real connection through a running cluster: where its packets were captured, and what each switch did.

Everything is observed, nothing is computed from manifests: packets are captured on every interface
(`captures`), the passes through a switch are read from its megaflow cache (`megaflows`), and `ofproto/trace` names the
flows that matched (`traces`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from windlass.lab.orchestration.agents import ask_agent
from windlass.lab.orchestration.clusters import RunningCluster
from windlass.lab.probing import dialers
from windlass.lab.sandbox.labs import LabError
from windlass.lab.sandbox.time_limits import seconds
from windlass.lab.scenarios import targets
from windlass.lab.scenarios.directives import Probe
from windlass.lab.scenarios.objects import ProbeOutcome
from windlass.lab.scenarios.segments import SECOND, UPLINK
from windlass.lab.tracing import captures, megaflows, traces
from windlass.lab.tracing.captures import ACK, SYN, Capture
from windlass.lab.tracing.megaflows import Ends, Megaflow, PacketHeader, PathNotFoundError, Phase
from windlass.lab.tracing.traces import Pass
from windlass.nodes.config import Config
from windlass.switch.controls import ask, control_socket
from windlass.switch.ovsdb import SwitchRefusedError
from windlass.switch.streams import SwitchUnreachableError

SECONDS_TO_BE_CACHED = seconds(3.0)
SECONDS_BETWEEN_POLLS = 0.05
GATEWAY, BRIDGE = Config(node_name="any").gateway, Config(node_name="any").bridge
_OWN_INTERFACES = {GATEWAY, BRIDGE}  # the interfaces of a Node's host; the uplink belongs to the switch
# The actions of megaflow and trace must agree, except for ports: one prints names, the other numbers.
_COMPARABLE = ("ct(", "recirc(", "hash(")


@dataclass(frozen=True, slots=True)
class PathPoint:
    """Something that sends or receives packets. A Node is two of them: its host and its switch."""

    kind: str  # pod, host, switch, externalHost, or wire
    name: str = ""


WIRE = PathPoint("wire")


@dataclass(frozen=True, slots=True)
class Hop:
    """From one point to the next, by an interface of either."""

    sender: PathPoint
    receiver: PathPoint
    interface: str
    header: PacketHeader
    outer: PacketHeader | None = None  # the header of the tunnel packet

    @property
    def ends(self) -> Ends:
        return self.header.ends


@dataclass(frozen=True, slots=True)
class SwitchVisit:
    """The packet's way through one switch."""

    node: str
    interface: str  # where the packet came in: the gateway, the bridge, the uplink, or `pod/default/web-0`
    passes: tuple[Pass, ...]

    @property
    def ct(self) -> int:
        return sum(len(one.ct) for one in self.passes)


@dataclass(frozen=True, slots=True)
class PacketPath:
    """The path of one packet of the connection."""

    phase: Phase
    steps: tuple[Hop | SwitchVisit, ...]

    @property
    def visits(self) -> tuple[SwitchVisit, ...]:
        return tuple(step for step in self.steps if isinstance(step, SwitchVisit))

    @property
    def hops(self) -> tuple[Hop, ...]:
        return tuple(step for step in self.steps if isinstance(step, Hop))


class KnownFlow(msgspec.Struct, frozen=True):
    """What the agent reports about a flow of its switch."""

    cookie: str
    owner: str
    why: str
    symbolic: str


@dataclass(frozen=True, slots=True)
class Journey:
    asked: tuple[str, int]  # the address and port that the client connected to
    paths: Mapping[Phase, PacketPath]  # only the first packet if there is no answer
    known: Mapping[str, Mapping[int, KnownFlow]]  # the flows of each Node on the path, by cookie
    pods: Mapping[str, Mapping[int, str]]  # the Pods of each Node on the path, by port number

    @property
    def first(self) -> PacketPath:
        return self.paths[Phase.FIRST]


async def follow(cluster: RunningCluster, probe: Probe) -> Journey:
    """Opens one connection of the probe and traces it. Nothing else may use the network meanwhile."""
    destination = targets.resolve(probe, cluster.desired, cluster.addresses)
    to = dialers.SocketAddress(destination.address, destination.port)
    answered = probe.spec.expect.outcome is ProbeOutcome.CONNECTED
    tracer = _Tracer(cluster)
    async with AsyncExitStack() as ending:
        seen = ending.enter_context(captures.capturing(_machines(cluster)))
        if answered:
            # A connection before it resolves neighbours and tunnels, whose packets are not part of the path. It stays
            # open until the end, so that its last packets are not captured either.
            ending.callback((await tracer.dial(probe, to)).close)
            await _quiet(seen)
        await tracer.flush()
        seen.clear()
        trying = asyncio.ensure_future(tracer.dial(probe, to))
        ending.push_async_callback(_cancel, trying)
        if answered:
            await trying
        paths = await tracer.paths(seen, tuple(Phase) if answered else (Phase.FIRST,))
    nodes = dict.fromkeys(visit.node for path in paths.values() for visit in path.visits)
    known = {node: await known_flows(cluster, node) for node in nodes}
    pods = {node: {pod.ofport: key for key, pod in (await _pods(cluster, node)).items()} for node in nodes}
    return Journey((str(to.ip), to.port), paths, known, pods)


async def _quiet(seen: Sequence[Capture]) -> None:
    """Returns when no packet was captured for a moment."""
    before = -1
    while before != len(seen):
        before = len(seen)
        await asyncio.sleep(SECONDS_BETWEEN_POLLS)


async def _cancel(trying: asyncio.Future[dialers.Conversation]) -> None:
    trying.cancel()
    await asyncio.wait([trying])
    if not trying.cancelled() and trying.exception() is None:
        trying.result().close()


async def ask_switch(cluster: RunningCluster, node: str, *command: str) -> str:
    """The output of `ovs-appctl COMMAND` for the ovs-vswitchd of a Node."""
    try:
        return await ask(control_socket(cluster.places()[f"node/{node}"].ovs_run_directory), *command)
    except (SwitchRefusedError, SwitchUnreachableError) as error:
        raise LabError(f"Node {node}: {error}") from None


async def cached_megaflows(cluster: RunningCluster, node: str) -> tuple[Megaflow, ...]:
    return megaflows.parse(await ask_switch(cluster, node, "dpctl/dump-flows", "-m", "--names"))


async def flush_megaflows(cluster: RunningCluster, node: str) -> None:
    """Removes all megaflows, so that the cache then shows only the packets that follow."""
    await ask_switch(cluster, node, "revalidator/purge")


async def known_flows(cluster: RunningCluster, node: str) -> dict[int, KnownFlow]:
    answer = msgspec.json.decode(await _agent(cluster, node, "/v1/flows"), type=dict[str, list[KnownFlow]])
    return {int(flow.cookie, 16): flow for flow in answer["flows"]}


class _PodReport(msgspec.Struct):
    interface: str
    ofport: int


class _StateReport(msgspec.Struct):
    pods: dict[str, _PodReport]


class _Tracer:
    """Traces one connection."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._nodes = tuple(cluster.desired.nodes)
        self._homes = {key: pod.spec.node_name for key, pod in cluster.desired.pods.items()}

    async def dial(self, probe: Probe, to: dialers.SocketAddress) -> dialers.Conversation:
        namespace = self._cluster.namespace_of(probe.spec.source)
        try:
            return await dialers.dial(namespace, probe.spec.protocol, to, self._cluster.arrivals)
        except OSError as error:
            raise LabError(f"Probe {probe.name}: cannot trace the connection, because it failed: {error}") from None

    async def flush(self) -> None:
        await asyncio.gather(*(flush_megaflows(self._cluster, node) for node in self._nodes))

    async def paths(self, seen: Sequence[Capture], phases: tuple[Phase, ...]) -> dict[Phase, PacketPath]:
        """Waits until the switches have all megaflows of the connection in their caches."""
        ports = await self._ports()
        missing: PathNotFoundError | None = None
        deadline = asyncio.get_running_loop().time() + SECONDS_TO_BE_CACHED
        while missing is None or asyncio.get_running_loop().time() < deadline:
            caches = {node: await cached_megaflows(self._cluster, node) for node in self._nodes}
            try:
                found = dict(self._found(sorted(seen, key=lambda one: one.time), caches, ports, phases))
            except PathNotFoundError as error:
                missing = error
                await asyncio.sleep(SECONDS_BETWEEN_POLLS)
            else:
                return {phase: await self._explained(phase, steps) for phase, steps in found.items()}
        raise LabError(f"the packets were sent, but their path was not found: {missing}")

    def _found(
        self,
        seen: Sequence[Capture],
        caches: Mapping[str, Sequence[Megaflow]],
        ports: Mapping[str, str],
        phases: tuple[Phase, ...],
    ) -> Iterator[tuple[Phase, list[Hop | _Passing]]]:
        for phase, own in _by_phase(seen, phases).items():
            steps: list[Hop | _Passing] = []
            for crossing in self._crossings(own):
                steps.append(crossing)
                if crossing.receiver.kind == "switch":
                    steps.append(_passing(crossing, phase, caches[crossing.receiver.name], ports))
            yield phase, steps

    def _crossings(self, own: Iterable[Capture]) -> Iterator[Hop]:
        """Each interface is crossed once. A packet that leaves a machine by the wire arrives at another machine."""
        waiting: Hop | None = None
        for capture in own:
            hop = self._hop(capture)
            if hop is None:
                continue
            if waiting:
                yield Hop(waiting.sender, hop.receiver, hop.interface, hop.header, hop.outer)
                waiting = None
            elif hop.receiver == WIRE:
                waiting = hop
            else:
                yield hop
        if waiting:
            yield waiting

    def _hop(self, capture: Capture) -> Hop | None:
        kind, _, name = capture.machine.partition("/")
        interface = capture.interface
        if kind == "pod":
            inside, outside = PathPoint("pod", name), PathPoint("switch", self._homes[name])
            interface = capture.machine
        elif kind == "externalHost":
            inside, outside = PathPoint(kind, name), WIRE
        elif interface in _OWN_INTERFACES:
            inside, outside = PathPoint("host", name), PathPoint("switch", name)
        elif interface == UPLINK:
            inside, outside = PathPoint("switch", name), WIRE
        elif interface == SECOND:
            inside, outside = PathPoint("host", name), WIRE
        else:
            return None  # the switch's end of a Pod's link: the packet was captured at the Pod's end
        ends = (inside, outside) if capture.leaving else (outside, inside)
        return Hop(*ends, interface, capture.segment.header, capture.segment.outer)

    async def _ports(self) -> dict[str, str]:
        """The datapath's port name for each interface of a hop."""
        ports = {GATEWAY: GATEWAY, BRIDGE: BRIDGE, UPLINK: UPLINK}
        for node in self._nodes:
            ports |= {f"pod/{key}": pod.interface for key, pod in (await _pods(self._cluster, node)).items()}
        return ports

    async def _explained(self, phase: Phase, steps: Iterable[Hop | _Passing]) -> PacketPath:
        whole = [await self._visit(step) if isinstance(step, _Passing) else step for step in steps]
        return PacketPath(phase, tuple(whole))

    async def _visit(self, passing: _Passing) -> SwitchVisit:
        passes = [await self._traced(passing.node, flow) for flow in passing.megaflows]
        return SwitchVisit(passing.node, passing.interface, tuple(passes))

    async def _traced(self, node: str, flow: Megaflow) -> Pass:
        """The trace of this pass only: trace would have to guess the following ones."""
        first = traces.parse(await ask_switch(self._cluster, node, "ofproto/trace", flow.traceable))[0]
        said = [action for action in first.actions if action.startswith(_COMPARABLE)]
        did = [action for action in flow.actions if action.startswith(_COMPARABLE)]
        if said != did:
            raise LabError(f"Node {node}: trace gives {said}, but the switch did {did} with the packet: {flow.key}")
        return first


@dataclass(frozen=True, slots=True)
class _Passing:
    """A visit before it is traced: only its megaflows are known."""

    node: str
    interface: str
    megaflows: tuple[Megaflow, ...]


def _passing(hop: Hop, phase: Phase, cache: Sequence[Megaflow], ports: Mapping[str, str]) -> _Passing:
    port = ports[hop.interface]
    if hop.outer:
        passes = megaflows.path_from_tunnel(cache, port, hop.outer, hop.header, phase)
    else:
        passes = megaflows.path(cache, port, hop.header, phase)
    return _Passing(hop.receiver.name, hop.interface, passes)


def _by_phase(seen: Sequence[Capture], phases: tuple[Phase, ...]) -> dict[Phase, list[Capture]]:
    """The first packet, its reply, and the client's next packet. Retransmissions are left out."""
    opening = next((one.segment for one in seen if one.segment.flags & (SYN | ACK) == SYN), None)
    if opening is None:
        raise PathNotFoundError("no packet of the connection was captured")
    following = opening.sequence + 1 & 0xFFFFFFFF
    found: dict[Phase, dict[tuple[str, str, bool], Capture]] = {phase: {} for phase in phases}
    for one in seen:
        segment, flags = one.segment, one.segment.flags & (SYN | ACK)
        if flags == SYN and segment.sequence == opening.sequence:
            phase = Phase.FIRST
        elif flags == SYN | ACK and segment.acknowledged == following:
            phase = Phase.REPLY
        elif flags == ACK and segment.sequence == following and segment.length == 0:
            phase = Phase.ESTABLISHED
        else:
            continue
        if phase in found:
            found[phase].setdefault((one.machine, one.interface, one.leaving), one)
    missing = [phase.value for phase, own in found.items() if not own]
    if missing:
        raise PathNotFoundError(f"the connection's packet {' and '.join(missing)} was not captured")
    return {phase: list(own.values()) for phase, own in found.items()}


def _machines(cluster: RunningCluster) -> Iterator[tuple[str, str]]:
    for name, place in cluster.places().items():
        kind, _, key = name.partition("/")
        if kind != "pod" or not cluster.desired.pods[key].spec.host_network:
            yield place.namespace, name


async def _pods(cluster: RunningCluster, node: str) -> dict[str, _PodReport]:
    return msgspec.json.decode(await _agent(cluster, node, "/v1/state"), type=_StateReport).pods


async def _agent(cluster: RunningCluster, node: str, path: str) -> bytes:
    status, answer = await ask_agent(cluster.lab.node_folder(node) / "run" / "agent.sock", path)
    if status != HTTPStatus.OK:
        raise LabError(f"Node {node}: the agent does not answer {path}: {answer.decode(errors='replace')}")
    return answer
