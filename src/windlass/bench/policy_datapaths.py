"""What datapath flows cost where policies decide: to compute them again after a change, and to forget them.

When an OpenFlow flow changes, ovs-vswitchd computes the actions of every datapath flow again. That is measured for the
same policies in two forms: look-ups of exact verdicts, as Windlass has them, and conjunctive matches on address, Pod
and port, as Antrea has them. The same packets make the datapath flows of both. Times are CPU times of ovs-vswitchd.
"""

from __future__ import annotations

import asyncio
import re
import socket as sockets
import statistics
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from windlass.bench import bridges, policy_states
from windlass.bench.policy_runs import state_of
from windlass.bench.policy_states import Size
from windlass.host.linux import namespaces
from windlass.lab.sandbox import labs
from windlass.model.nodes import NodeState
from windlass.model.policies import Direction
from windlass.openflow import ofctl
from windlass.openflow.actions import Output
from windlass.openflow.conditions import destination
from windlass.openflow.fields import LOCAL_PORT
from windlass.openflow.flows import Flow
from windlass.openflow.matches import match
from windlass.pipeline.declarations import goto
from windlass.pipeline.packet_marks import PEER_CLASS, SUBJECT
from windlass.pipeline.policies import TABLES
from windlass.program import OwnerKind, owners, part
from windlass.switch.controls import ask, control_socket

ROUNDS = 5
_SENDER, _PORT = "bench-out", "bench-in"
_ATTEMPTS, _PAUSE = 100, 0.1  # to send all packets: the switch drops some of a burst
_ETHERNET = bytes.fromhex("020000000002 020000000001 0800")
_UNUSED_TABLE = 240
_CONJUNCTIONS = 10  # the table of conjunctive matches


class DatapathCosts(Struct, frozen=True):
    """Milliseconds of CPU of ovs-vswitchd."""

    lookups: float  # to compute the datapath flows of look-ups again
    conjunctions: float
    purge: float  # to purge the datapath flows
    again: float  # to make one of them again for a packet


async def measure(size: Size, again: int, purged: int) -> DatapathCosts:
    """Measure how `again` datapath flows are computed again, and how `purged` ones are purged.

    ovs-vswitchd itself holds fewer flows if it takes long to compute them again: with conjunctive matches, 1,000.
    """
    packets = [packet for _, packet in zip(range(max(again, purged)), _packets(size), strict=False)]
    with labs.opened() as lab:
        async with bridges.empty_bridge(lab) as socket, _sending(lab.namespace("bench"), socket) as send:
            switch = _MeasuredSwitch(socket, send)
            await switch.load(lab.folder / "conjunctions.txt", _conjunctive_flows(size))
            conjunctions = await switch.revalidated(packets[:again])
            await switch.load(lab.folder / "lookups.txt", _lookup_flows(size))
            lookups = await switch.revalidated(packets[:again])
            await switch.fill(packets[:purged])
            purge = await switch.cpu_of(lambda: switch.ask("revalidator/purge"))
            filled = await switch.cpu_of(lambda: switch.fill(packets[:purged]))
    return DatapathCosts(lookups, conjunctions, purge, filled / purged)


class _MeasuredSwitch:
    def __init__(self, socket: Path, send: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._send = send
        self._process = int((socket.parent / "ovs-vswitchd.pid").read_text())

    async def load(self, file: Path, flows: Iterable[str]) -> None:
        """Make the switch hold these flows only, and no datapath flows."""
        await asyncio.to_thread(file.write_text, "".join(f"{flow}\n" for flow in flows))
        await bridges.empty(self._socket)
        await bridges.ofctl_output("--bundle", "add-flows", self._socket, file)
        await self.ask("revalidator/purge")

    async def fill(self, packets: list[bytes]) -> None:
        """Send packets until each has its datapath flow."""
        for _ in range(_ATTEMPTS):
            await asyncio.to_thread(self._send, packets)
            await asyncio.sleep(_PAUSE)
            if await self._count() >= len(packets):
                return
        raise labs.LabError(f"the figures are invalid: {await self._count()} datapath flows of {len(packets)}")

    async def revalidated(self, packets: list[bytes]) -> float:
        """The CPU time of the datapath flows of these packets, after a change of one flow that none depends on."""
        without = await self._cpu_of_changes()
        await self.fill(packets)
        cpu = await self._cpu_of_changes() - without
        if (found := await self._count()) < len(packets):
            raise labs.LabError(f"the figures are invalid: {found} datapath flows of {len(packets)} are left")
        return cpu

    async def _cpu_of_changes(self) -> float:
        return statistics.median([await self.cpu_of(partial(self._change, number)) for number in range(ROUNDS)])

    async def cpu_of(self, work: Callable[[], Coroutine[None, None, object]]) -> float:
        before = self._cpu()
        await work()
        return self._cpu() - before

    async def ask(self, command: str) -> str:
        return await ask(control_socket(str(self._socket.parent)), command)

    async def _change(self, number: int) -> None:
        flow = f"table={_UNUSED_TABLE},priority={number + 1},actions=drop"
        await bridges.ofctl_output("add-flow", self._socket, flow)
        await self.ask("revalidator/wait")

    async def _count(self) -> int:
        (found,) = re.findall(r"flows: (\d+)", await self.ask("dpctl/show"))
        return int(found)

    def _cpu(self) -> float:
        threads = Path(f"/proc/{self._process}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e6


@asynccontextmanager
async def _sending(namespace: str, socket: Path) -> AsyncIterator[Callable[[list[bytes]], None]]:
    """A link into the bridge. Yields a function that sends packets."""
    link = ("link", "add", _PORT, "up", "type", "veth", "peer", "name", _SENDER)
    await bridges.command("ip", "-netns", namespace, *link)
    await bridges.command("ip", "-netns", namespace, "link", "set", _SENDER, "up")
    database = f"--db=unix:{socket.parent}/db.sock"
    # No flow is deleted meanwhile, unless it takes a second to compute all of them again. A wait takes two at most.
    settings = ("other_config:max-idle=600000", "other_config:max-revalidator=2000")
    await bridges.command("ovs-vsctl", database, "set", "Open_vSwitch", ".", *settings)
    await bridges.command("ovs-vsctl", database, "add-port", bridges.BRIDGE, _PORT)
    with namespaces.entered(namespaces.path_of(namespace)):
        sender = sockets.socket(sockets.AF_PACKET, sockets.SOCK_RAW)
    with sender:
        sender.bind((_SENDER, 0))

        def send(packets: list[bytes]) -> None:
            for packet in packets:
                sender.send(packet)

        yield send


# ---- packets that the policies allow


def _packets(size: Size) -> Iterator[bytes]:
    """A packet from each remote Pod that a rule selects, to the Pod and port of that rule."""
    allowed = {
        policy_states.named_team(number, place, size): (number % size.local, place)
        for number in range(size.policies)
        for place in range(size.rules)
    }
    for number in range(size.pods):
        for team, (local, place) in sorted(allowed.items()):
            source = policy_states.address_of_other_pod(team, number, size)
            yield _packet(source, policy_states.address_of_local_pod(local), policy_states.port_of(place))


def _packet(source: int, to: int, port: int) -> bytes:
    """A SYN. Open vSwitch does not look at the checksums."""
    tcp = struct.pack("!HHIIBBHHH", 40000, port, 1, 0, 5 << 4, 2, 65535, 0, 0)
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0, source, to)
    return _ETHERNET + ip + tcp


# ---- the same policies in two forms


def _lookup_flows(size: Size) -> Iterator[str]:
    """The flows of Windlass, between a table that finds the Pod and one that sends the packet."""
    state = state_of(policy_states.cluster(size), size)
    kinds = {OwnerKind.POLICY_SUBJECT, OwnerKind.POLICY_PORTS, OwnerKind.POLICY_PEER}
    flows = {flow for owner in owners(state) if owner.kind in kinds for flow in part(state, owner).flows}
    return (ofctl.flow_text(flow) for flow in (*flows, *_around_lookups(state, size)))


def _around_lookups(state: NodeState, size: Size) -> Iterator[Flow]:
    tables = TABLES[Direction.INGRESS]
    for number in range(size.local):
        policy = state.policies.pods[f"local/pod-{number}"].ingress
        if policy is not None:
            to_pod = destination((4, policy_states.address_of_local_pod(number), 32))
            look_up = (*SUBJECT.load(policy.subject), *PEER_CLASS.load(0), goto(tables.peer))
            yield Flow(0, 1, match(to_pod), look_up, "to a Pod")
    yield Flow(tables.ports.onward, 1, (), (Output(LOCAL_PORT),), "allowed")


def _conjunctive_flows(size: Size) -> Iterator[str]:
    """A flow for each address, Pod and port, with one action for each rule that names it; and one for each rule."""
    rules = [(number, place) for number in range(size.policies) for place in range(size.rules)]
    by_team: dict[int, list[int]] = {}
    by_pod: dict[int, list[int]] = {}
    by_port: dict[int, list[int]] = {}
    for rule, (number, place) in enumerate(rules, start=1):
        by_team.setdefault(policy_states.named_team(number, place, size), []).append(rule)
        by_pod.setdefault(number % size.local, []).append(rule)
        by_port.setdefault(place, []).append(rule)
    table = f"table={_CONJUNCTIONS},priority="
    yield f"table=0,ip,actions=goto_table:{_CONJUNCTIONS}"
    for team, named in by_team.items():
        actions = _conjunctions(named, 1)
        for number in range(size.pods):
            address = _text(policy_states.address_of_other_pod(team, number, size))
            yield f"{table}200,ip,nw_src={address},actions={actions}"
    for number, named in by_pod.items():
        pod = f"ip,nw_dst={_text(policy_states.address_of_local_pod(number))}"
        yield f"{table}200,{pod},actions={_conjunctions(named, 2)}"
        yield f"{table}100,{pod},actions=drop"
    for place, named in by_port.items():
        yield f"{table}200,tcp,tcp_dst={policy_states.port_of(place)},actions={_conjunctions(named, 3)}"
    yield from (f"{table}200,ip,conj_id={rule},actions=LOCAL" for rule in range(1, len(rules) + 1))


def _conjunctions(rules: Iterable[int], clause: int) -> str:
    return ",".join(f"conjunction({rule},{clause}/3)" for rule in rules)


def _text(address: int) -> str:
    return sockets.inet_ntoa(address.to_bytes(4))
