"""`windlass bench sync`: a Program of 100,000 flows into a switch, and one flow of it changed.

The floor is `ovs-ofctl` loading the same flows and groups from text files: the tool that people would use instead.
It can do so with and without `--bundle`; the quicker of the two is the floor.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path

import structlog

from windlass.bench.reports import Figure, Report, figure, this_machine
from windlass.host.linux import namespaces
from windlass.lab import labs, ovs
from windlass.lab.processes import program as program_path
from windlass.model.families import Family
from windlass.openflow import ofctl
from windlass.openflow.actions import Ct, Nat, Set, ToGroup
from windlass.openflow.fields import CT_STATE, TCP, destination, destination_port, reg
from windlass.openflow.flows import Bucket, Flow, Group
from windlass.openflow.matches import match
from windlass.program import Kind, Owner, Part, Program
from windlass.switch.programs import InstalledProgram

SERVICES = 10_000
PORTS = 10  # of a Service: one flow each
ENDPOINTS = 10  # of a Service: one bucket each
ROUNDS = 7
CHANGES = 1000

_BRIDGE = "br-bench"
_TABLE, _NEXT_TABLE, _PRIORITY, _ZONE = 40, 50, 200, 65520
_NEW = CT_STATE(0x21, 0x21)  # +new+trk
_VIRTUAL, _ENDPOINT = IPv4Address("10.96.0.0"), IPv4Address("10.128.0.0")


def run(say: Callable[[str], None] = print) -> Report:
    """Takes about a minute. `say` hears of the progress."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return asyncio.run(_run(say))


async def _run(say: Callable[[str], None]) -> Report:
    say(f"making {SERVICES} Services with {PORTS} ports and {ENDPOINTS} endpoints each")
    program = {_owner(number): _service(number) for number in range(SERVICES)}
    with labs.opened() as lab:
        flows, groups = _texts(program, lab.folder)
        async with _bridge(lab) as socket:
            figures = [
                await _cold_sync(say, socket, program, flows, groups),
                *await _restart(say, socket, program),
                *await _changes(say, socket, program),
            ]
    return Report("sync", this_machine(), tuple(figures))


async def _cold_sync(say: Callable[[str], None], socket: Path, program: Program, flows: Path, groups: Path) -> Figure:
    """Ours and the floor take turns, so that what disturbs the machine disturbs both."""
    ours: list[float] = []
    floors: dict[str, list[float]] = {"ovs-ofctl": [], "ovs-ofctl --bundle": []}
    for turn in range(1, ROUNDS + 1):
        for name, seconds in floors.items():
            await _empty(socket)
            began = time.perf_counter()
            await _ofctl(*name.split()[1:], "add-groups", socket, groups)
            await _ofctl(*name.split()[1:], "add-flows", socket, flows)
            seconds.append(time.perf_counter() - began)
        await _empty(socket)
        began = time.perf_counter()
        async with _installed(socket, program):
            ours.append(time.perf_counter() - began)
        in_words = ", ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in floors.items())
        say(f"cold sync, round {turn} of {ROUNDS}: {ours[-1]:.2f} s; {in_words}")
        # Without --bundle each flow waits for the one before; it is much slower, and has shown it.
        quicker = min(floors, key=lambda name: floors[name][-1])
        floors = {quicker: floors[quicker]}
    (floor,) = floors.values()
    return figure("cold-sync-100k-flows", statistics.median(ours), "s", statistics.median(floor))


async def _restart(say: Callable[[str], None], socket: Path, program: Program) -> list[Figure]:
    """An agent that starts anew while the switch holds all of it."""
    seconds: list[float] = []
    sent = 0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        async with _installed(socket, program) as installed:
            seconds.append(time.perf_counter() - began)
        sent += installed.counters.changes_sent
    say(f"restart with the same state: {seconds[-1]:.2f} s, {sent} messages that change something")
    return [
        figure("restart-same-state", statistics.median(seconds), "s"),
        figure("restart-same-state-changes-sent", sent, "messages"),
    ]


async def _changes(say: Callable[[str], None], socket: Path, program: Program) -> list[Figure]:
    """One of the flows of one Service, from its new value to the switch's word that packets meet it."""
    milliseconds: list[float] = []
    async with _installed(socket, program) as installed:
        for number in range(CHANGES):
            changed = _service(number, mark=1)
            began = time.perf_counter()
            await installed.apply({_owner(number): changed})
            milliseconds.append((time.perf_counter() - began) * 1000)
        sent = installed.counters.changes_sent
    percentiles = statistics.quantiles(milliseconds, n=100)
    say(f"{CHANGES} changes of one flow, {sent} messages that change something")
    return [
        figure("changed-flow-p50", percentiles[49], "ms"),
        figure("changed-flow-p99", percentiles[98], "ms"),
    ]


@asynccontextmanager
async def _installed(socket: Path, program: Program) -> AsyncIterator[InstalledProgram]:
    """The Program in the switch."""
    installed = InstalledProgram(str(socket), program)
    keeper = asyncio.create_task(installed.keep())
    try:
        await installed.synced()
        yield installed
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])
    if installed.problems:
        raise labs.LabError(f"the figures are worthless, for the switch refused flows: {installed.problems[0]}")


# ---- the Program


def _owner(number: int) -> Owner:
    return Owner(Kind.PEER, f"service-{number}")


def _service(number: int, mark: int = 0) -> Part:
    """A Service as kube-proxy would know it: each port leads to the endpoints. `mark` tells versions apart."""
    address, group = _VIRTUAL + number, number + 1
    ports = [
        Flow(
            _TABLE,
            _PRIORITY,
            match(_NEW, destination(address), destination_port(Family.IPV4, TCP, port)),
            (Set(reg(4)[0:16](mark if port == 1 else 0)), ToGroup(group)),
            "a port of a Service",
        )
        for port in range(1, PORTS + 1)
    ]
    endpoints = [
        Bucket(
            endpoint,
            (
                Ct(
                    _ZONE,
                    _NEXT_TABLE,
                    commit=True,
                    nat=Nat(to=_ENDPOINT + number * ENDPOINTS + endpoint, ports=(80, 80)),
                ),
            ),
        )
        for endpoint in range(ENDPOINTS)
    ]
    return Part(tuple(ports), (Group(group, tuple(endpoints), "the endpoints of a Service"),))


def _texts(program: Program, folder: Path) -> tuple[Path, Path]:
    """The files that `ovs-ofctl` loads."""
    flows, groups = folder / "flows.txt", folder / "groups.txt"
    flows.write_text("".join(f"{ofctl.flow_text(flow)}\n" for part in program.values() for flow in part.flows))
    groups.write_text("".join(f"{ofctl.group_text(group)}\n" for part in program.values() for group in part.groups))
    return flows, groups


# ---- the switch


@asynccontextmanager
async def _bridge(lab: labs.Lab) -> AsyncIterator[Path]:
    """The management socket of an empty bridge."""
    namespace = lab.namespace("bench")
    namespaces.create(namespace)
    switch = ovs.Switch("bench", namespace, lab.node_folder("bench"))
    try:
        await switch.start()
        datapath = f"datapath_type={ovs.datapath_type()}"
        await _command(
            "ovs-vsctl",
            f"--db=unix:{switch.folder}/db.sock",
            *("add-br", _BRIDGE, "--", "set", "bridge", _BRIDGE, datapath, "fail_mode=secure"),
        )
        yield switch.folder / f"{_BRIDGE}.mgmt"
    finally:
        await switch.end()


async def _empty(socket: Path) -> None:
    await _ofctl("del-groups", socket)
    await _ofctl("del-flows", socket)


async def _ofctl(*arguments: str | Path) -> None:
    await _command("ovs-ofctl", "-O", "OpenFlow15", *map(str, arguments))


async def _command(name: str, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        program_path(name), *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()  # also that it was busy for long, which is no news here
    if process.returncode != 0:
        raise labs.LabError(f"{name} {' '.join(arguments)} ended with status {process.returncode}: {said.decode()}")
